//! Verifies a table by nothing but the words of its region: what a client can do too, by READs. `docs/layout.md` lists the
//! invariants, each with its finding.
//!
//! The words may be anything: whatever they are, the check ends, reads nothing outside the region and does not panic. It
//! keeps 24 bytes per slot in use, and room for an eighth more; of more slots than blocks can be in the region it looks at none.
//!
//! In a region that nobody writes to everything that is wrong is a finding. In one that is *live* (see [`Region::is_live`])
//! what was read at different moments need not agree: what looks wrong is read again, up to ten times within some
//! seconds, and is a finding if it stays. Splits may be under way in both (see `index`).
//!
//! | file | |
//! |---|---|
//! | `region` | where the words come from |
//! | `tables` | superblock, segment table, directory |
//! | `index` | an index segment |
//! | `blocks`, `large` | the blocks that slots name |
//! | `again` | slots that looked wrong in a live region |
//! | `twice` | keys, blocks and pages that are there twice |
//! | `sums` | what the server has counted |
//! | `findings` | what there is to find |

mod again;
mod blocks;
mod findings;
mod index;
mod large;
mod region;
mod sums;
mod tables;
mod twice;

use std::collections::BTreeMap;

pub use findings::{CheckFinding, CheckReport, FindingDescription, SlotFault};
pub use region::{PIECE_MAX_WORDS, Piece, Region, Take, cut};

use index::{Entry, State};
use region::read_into;
use tables::Tables;

use crate::layout::{
    BLOCK_HEADER_BYTES, Counter, LINE_SLOTS, LineNumber, Run, SEGMENT_LINES, SEGMENT_WORDS, SegmentEntry,
    SegmentKind, Slot, Span, superblock,
};
use crate::probe::{IdentityError, TableView};
use crate::region::ReadWords;

/// Findings after which no more are kept: one broken line can bring about very many.
pub const FINDINGS_MAX: usize = 100;
/// How often what looks wrong in a live region is looked at again before it is a finding.
const LOOKS: u32 = 10;
/// The smallest block, with a key of one byte.
const BLOCK_MIN_WORDS: usize = Span::of_bytes(BLOCK_HEADER_BYTES + 1).0 as usize * 2;

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckProgress {
    /// Index segments that were read, of how many.
    Index {
        /// Read.
        done: u64,
        /// Of so many.
        total: u64,
    },
    /// Keys whose blocks were looked at, of how many.
    Blocks {
        /// Looked at.
        done: u64,
        /// Of so many.
        total: u64,
    },
}

/// What was not judged, because the region was written to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unjudged {
    /// Writes went on, so that sums cannot be compared with what the server counts.
    pub sums: bool,
    /// Slots that were written each time they were looked at.
    pub slots: u64,
    /// What the server was in the middle of when it was stopped: in order for what it is, a write that is half done.
    pub half_done: Vec<CheckFinding>,
}

/// What a walk has seen, and found wrong.
#[derive(Debug)]
pub struct Walk {
    /// Sums over what was seen.
    pub report: CheckReport,
    /// What was found wrong, at most 100.
    pub findings: Vec<CheckFinding>,
    /// What was not judged.
    pub unjudged: Unjudged,
    /// The runs of pages in use.
    pub runs: Vec<Run>,
    /// The overflow lines in use.
    pub overflow_lines: Vec<LineNumber>,
    /// The segment table.
    pub segments: Vec<SegmentEntry>,
    /// Slots in use, copies too, by index segment.
    pub used: BTreeMap<u64, u64>,
    entries: Vec<Entry>,
}

impl Walk {
    /// The slots in use, by place; of those that a split has copied, one.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.entries.iter().map(|entry| entry.slot)
    }

    fn of_no_table(error: IdentityError) -> Walk {
        Walk {
            report: CheckReport::default(),
            findings: vec![CheckFinding::Identity(error)],
            unjudged: Unjudged::default(),
            runs: Vec::new(),
            overflow_lines: Vec::new(),
            segments: Vec::new(),
            used: BTreeMap::new(),
            entries: Vec::new(),
        }
    }
}

/// Identity and directory of the table in `region`.
///
/// # Errors
/// There is no table, as far as its first words say.
pub fn view_of(region: &ReadWords) -> Result<TableView, IdentityError> {
    let mut identity = [0; superblock::IDENTITY_WORDS];
    region.copy_out(0, &mut identity);
    let Ok(view) = tables::view_of(&mut region.clone(), &identity);
    view
}

/// Walks over all of the table in `region`, which nobody writes to.
pub fn walk(region: &ReadWords) -> Walk {
    let Ok(walk) = check(&mut region.clone(), &mut |_| {});
    walk
}

/// Walks over all of the table in a region. `observe` is told how far that has come.
///
/// # Errors
/// The region cannot be read.
pub fn check<R: Region>(region: &mut R, observe: &mut dyn FnMut(CheckProgress)) -> Result<Walk, R::Error> {
    let mut findings = Findings::default();
    let tables = match read_tables(region, &mut findings)? {
        Ok(tables) => tables,
        Err(error) => return Ok(Walk::of_no_table(error)),
    };
    let mut checker = Checker {
        region,
        observe: Observe(observe),
        tables,
        findings,
        report: CheckReport::default(),
        unjudged: Unjudged::default(),
        entries: Vec::new(),
        states: BTreeMap::new(),
        runs: Vec::new(),
        overflow_lines: Vec::new(),
        used: BTreeMap::new(),
    };
    checker.index()?;
    checker.blocks()?;
    checker.nothing_twice()?;
    checker.sums()?;
    checker.set_aside_half_done()?;
    checker.count_segments();
    Ok(checker.into_walk())
}

/// Superblock, segment table and directory, once they are sound, or stay as they are.
fn read_tables<R: Region>(
    region: &mut R,
    findings: &mut Findings,
) -> Result<Result<Tables, IdentityError>, R::Error> {
    let (mut tables, mut found) = Tables::read(region)?;
    for look in 1..=LOOKS {
        if tables.is_ok() && found.list.is_empty() || !region.is_live() {
            break;
        }
        region.look_again(look)?;
        let (next, again) = Tables::read(region)?;
        found.keep(&again);
        tables = next;
    }
    found.list.into_iter().for_each(|finding| findings.note(finding));
    Ok(tables)
}

/// What was found wrong.
#[derive(Debug, Default)]
struct Findings {
    list: Vec<CheckFinding>,
}

impl Findings {
    fn note(&mut self, finding: CheckFinding) {
        if self.list.len() < FINDINGS_MAX && !self.list.contains(&finding) {
            self.list.push(finding);
        }
    }

    fn sum(&mut self, what: &str, expected: u64, found: u64) {
        if found != expected {
            self.note(CheckFinding::Sum { what: what.to_owned(), expected, found });
        }
    }

    /// Leaves only those that were found again.
    fn keep(&mut self, again: &Findings) {
        self.list.retain(|finding| again.list.contains(finding));
    }
}

/// Who is told how far the check is.
struct Observe<'a>(&'a mut dyn FnMut(CheckProgress));

impl Observe<'_> {
    fn index(&mut self, done: u64, total: u64) {
        (self.0)(CheckProgress::Index { done, total });
    }

    fn blocks(&mut self, done: u64, total: u64) {
        (self.0)(CheckProgress::Blocks { done, total });
    }
}

struct Checker<'a, R> {
    region: &'a mut R,
    observe: Observe<'a>,
    tables: Tables,
    findings: Findings,
    report: CheckReport,
    unjudged: Unjudged,
    entries: Vec<Entry>,
    states: BTreeMap<u64, State>,
    runs: Vec<Run>,
    overflow_lines: Vec<LineNumber>,
    used: BTreeMap<u64, u64>,
}

impl<R: Region> Checker<'_, R> {
    /// Looks at all index segments. Those that come while a live region is read hold keys of others that were read before; they
    /// are read, too, as far as they come in time.
    fn index(&mut self) -> Result<(), R::Error> {
        let mut segments = self.tables.index_segments.clone();
        self.entries.reserve_exact(self.entries_expected());
        let mut words = vec![0; SEGMENT_WORDS];
        for round in 0..=u64::from(self.region.is_live()) * 2 {
            let total = segments.len() as u64 + self.states.len() as u64;
            for segment in segments {
                self.index_segment(segment, &mut words)?;
                self.observe.index(self.states.len() as u64, total);
            }
            if !self.region.is_live() || round == 2 {
                break;
            }
            // What is wrong with them now was right before.
            let (Ok(now), _) = Tables::read(self.region)? else { break };
            segments = now.index_segments;
            segments.retain(|segment| !self.states.contains_key(segment));
        }
        self.cap_entries();
        Ok(())
    }

    fn index_segment(&mut self, segment: u64, words: &mut [u64]) -> Result<(), R::Error> {
        let at_word = LineNumber::new(segment, 0).word();
        let mut found = Findings::default();
        read_into(self.region, at_word, words)?;
        let mut walked = index::walk(segment, words, &mut found);
        for look in 1..=LOOKS {
            if found.list.is_empty() || !self.region.is_live() {
                break;
            }
            self.region.look_again(look)?;
            read_into(self.region, at_word, words)?;
            let mut again = Findings::default();
            walked = index::walk(segment, words, &mut again);
            found.keep(&again);
        }
        found.list.into_iter().for_each(|finding| self.findings.note(finding));
        self.states.insert(segment, walked.state);
        self.used.insert(segment, walked.entries.len() as u64);
        if self.entries.len() <= self.entries_max() {
            self.entries.append(&mut walked.entries);
        }
        self.report.overflow_lines += walked.overflow_lines.len() as u64;
        self.report.overflow_keys += walked.overflow_keys;
        self.report.overflow_reads += walked.overflow_reads;
        self.overflow_lines.append(&mut walked.overflow_lines);
        Ok(())
    }

    /// Slots in use that there is reason to expect: as many as keys are counted and an eighth, if so many can be.
    fn entries_expected(&self) -> usize {
        let keys = sums::sum(&self.tables.front, Counter::Keys);
        let slots = self.tables.index_segments.len() as u64 * SEGMENT_LINES * LINE_SLOTS as u64;
        (keys.saturating_add(keys / 8).min(slots) as usize).min(self.entries_max())
    }

    /// Slots that can be in use at most, copies included.
    fn entries_max(&self) -> usize {
        2 * self.region.len_words() / BLOCK_MIN_WORDS
    }

    fn cap_entries(&mut self) {
        let (expected, found) = (self.entries_max() as u64, self.used.values().sum());
        if found > expected {
            self.findings.note(CheckFinding::Sum { what: "slots in use, at most".into(), expected, found });
            self.entries.clear();
        }
    }

    fn count_segments(&mut self) {
        let report = &mut self.report;
        for entry in &self.tables.segments {
            *match entry.kind {
                SegmentKind::Free => &mut report.free_segments,
                SegmentKind::Superblock | SegmentKind::Directory => &mut report.fixed_segments,
                SegmentKind::Index => &mut report.index_segments,
                SegmentKind::Blocks => &mut report.block_segments,
                SegmentKind::Large => &mut report.large_segments,
            } += 1;
        }
    }

    fn into_walk(mut self) -> Walk {
        self.report.large_keys = self.runs.len() as u64;
        self.report.used_pages = self.runs.iter().map(|run| run.pages).sum();
        Walk {
            report: self.report,
            findings: self.findings.list,
            unjudged: self.unjudged,
            runs: self.runs,
            overflow_lines: self.overflow_lines,
            segments: self.tables.segments,
            used: self.used,
            entries: self.entries,
        }
    }
}
