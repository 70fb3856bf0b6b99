//! Verifies a table by nothing but the words of its region: what a client could do too, over words that it copied.
//!
//! No write may be under way. Splits may: they show in headers and in slots that are there twice (see `index`).

mod index;

use std::collections::BTreeMap;

use kv_common::block::{self, Verdict};
use kv_common::hash::KeyHash;
use kv_common::layout::{
    BLOCK_HEADER_WORDS, COUNTER_NAMES, Counter, Header, Lengths, LineNumber, Place, Run, SEGMENT_GRANULES,
    SEGMENT_WORDS, SegmentEntry, SegmentKind, Slot, Span, superblock, superblock_segments,
};
use kv_common::limits::WORKERS_MAX;
use kv_common::probe::{IdentityError, TableView};
use kv_common::region::ReadWords;

use super::findings::{CheckFinding, CheckReport, SlotFault};

/// Findings after which a check stops looking: one broken line can bring about very many.
const FINDINGS_MAX: usize = 100;

/// Identity and directory of the table in `region`.
pub fn view_of(region: &ReadWords) -> Result<TableView, IdentityError> {
    let mut identity = [0; superblock::IDENTITY_WORDS];
    region.copy_out(0, &mut identity);
    let mut view = TableView::from_identity(&identity, region.len_words())?;
    let depth = TableView::check_depth(identity[superblock::DIRECTORY_DEPTH])?;
    let mut entries = vec![0; 1 << depth];
    region.copy_out(view.directory_word, &mut entries);
    view.set_directory(&entries)?;
    Ok(view)
}

/// What a walk has seen, and found wrong.
#[derive(Debug)]
pub struct Walk {
    /// Sums over what was seen.
    pub report: CheckReport,
    /// What was found wrong, at most 100.
    pub findings: Vec<CheckFinding>,
    /// The slots in use, by place.
    pub slots: Vec<Slot>,
    /// The runs of pages in use.
    pub runs: Vec<Run>,
    /// The overflow lines in use.
    pub overflow_lines: Vec<LineNumber>,
    /// The segment table.
    pub segments: Vec<SegmentEntry>,
    /// Slots in use, copies too, by index segment.
    pub used: BTreeMap<u64, u64>,
}

/// Walks over all of the table in `region`.
pub fn walk(region: &ReadWords) -> Result<Walk, IdentityError> {
    let view = view_of(region)?;
    let mut walker = Walker {
        region,
        view: &view,
        ceiling: region.load(superblock::VERSION_CEILING),
        block: Vec::new(),
        walk: Walk {
            report: CheckReport::default(),
            findings: Vec::new(),
            slots: Vec::new(),
            runs: Vec::new(),
            overflow_lines: Vec::new(),
            segments: Vec::new(),
            used: BTreeMap::new(),
        },
    };
    walker.segment_table();
    walker.index();
    walker.counters();
    Ok(walker.walk)
}

pub(super) struct Walker<'a> {
    pub(super) region: &'a ReadWords,
    pub(super) view: &'a TableView,
    ceiling: u64,
    /// The block that was looked at last.
    pub(super) block: Vec<u64>,
    pub(super) walk: Walk,
}

/// A block that was verified by itself.
pub(super) struct Verified {
    pub(super) hash: KeyHash,
    pub(super) version: u64,
}

impl Walker<'_> {
    pub(super) fn note(&mut self, finding: CheckFinding) {
        if self.walk.findings.len() < FINDINGS_MAX {
            self.walk.findings.push(finding);
        }
    }

    fn segment_table(&mut self) {
        let segments = (self.region.len_words() / SEGMENT_WORDS) as u64;
        for segment in 0..segments {
            let found = self.region.load(superblock::SEGMENT_TABLE + segment as usize);
            let entry = SegmentEntry::decode(found).unwrap_or_else(|| {
                self.note(CheckFinding::SegmentEntry { segment, found });
                SegmentEntry { kind: SegmentKind::Free, class: 0 }
            });
            self.walk.segments.push(entry);
            let report = &mut self.walk.report;
            *match entry.kind {
                SegmentKind::Free => &mut report.free_segments,
                SegmentKind::Superblock | SegmentKind::Directory => &mut report.fixed_segments,
                SegmentKind::Index => &mut report.index_segments,
                SegmentKind::Blocks => &mut report.block_segments,
                SegmentKind::Large => &mut report.large_segments,
            } += 1;
        }
        let fixed = superblock_segments(segments);
        for segment in 0..fixed {
            self.kind(segment, SegmentKind::Superblock);
        }
        self.kind((self.view.directory_word / SEGMENT_WORDS) as u64, SegmentKind::Directory);
        self.sum("segments of superblock and directory", fixed + 1, self.walk.report.fixed_segments);
    }

    /// Verifies the block of a slot whose key's home has a number for which `is_home` holds; returns its key's hash.
    fn block_of(&mut self, slot: Slot, is_home: impl Fn(u64) -> bool) -> Result<KeyHash, SlotFault> {
        let is_large = slot.span().is_large();
        let Verified { hash, version } =
            if is_large { self.large_block(slot)? } else { self.small_block(slot)? };
        if hash.fingerprint() != slot.fingerprint() {
            return Err(SlotFault::Fingerprint { found: hash.fingerprint() });
        }
        if !is_home(hash.home()) {
            return Err(SlotFault::Home { home: self.view.home(hash) });
        }
        if version >= self.ceiling {
            return Err(SlotFault::Ceiling { version });
        }
        Ok(hash)
    }

    fn small_block(&mut self, slot: Slot) -> Result<Verified, SlotFault> {
        let (span, place) = (slot.span(), slot.place());
        let words = self.view.block_words(slot).ok_or(SlotFault::NoBlock)?;
        let class = SegmentEntry { kind: SegmentKind::Blocks, class: span.0 };
        let start_granules = place.0 % SEGMENT_GRANULES;
        if self.walk.segments[place.segment() as usize] != class
            || !start_granules.is_multiple_of(span.granules())
            || start_granules + span.granules() > SEGMENT_GRANULES
        {
            return Err(SlotFault::NoBlock);
        }
        self.block.resize(words, 0);
        self.region.copy_out(place.word(), &mut self.block);
        let key = block::key_of(&self.block).filter(|key| !key.is_empty()).ok_or(SlotFault::Damaged)?;
        let version = match block::judge(&self.block, key, place, self.view.table_id) {
            Verdict::Found { version, .. } | Verdict::Expiring { version, .. } => version,
            Verdict::NotLive => return Err(SlotFault::NotLive),
            Verdict::OtherKey | Verdict::Torn => return Err(SlotFault::Damaged),
        };
        let block_bytes = Lengths::decode(self.block[2]).block_bytes();
        if Span::of_bytes(block_bytes) != span {
            return Err(SlotFault::Span { block_bytes });
        }
        Ok(Verified { hash: self.view.hash(key), version })
    }

    fn counters(&mut self) {
        let report = self.walk.report.clone();
        for (counter, expected) in [
            (Counter::Keys, report.keys),
            (Counter::BlockBytes, report.block_bytes),
            (Counter::DataBytes, report.data_bytes),
            (Counter::ExpiringKeys, report.expiring_keys),
            (Counter::OverflowLines, report.overflow_lines),
        ] {
            let pages = superblock::counter_pages(WORKERS_MAX)
                .map(|page_word| self.region.load(page_word + counter as usize));
            let found = pages.fold(0, u64::wrapping_add);
            self.sum(COUNTER_NAMES[counter as usize], expected, found);
        }
    }

    fn kind(&mut self, segment: u64, expected: SegmentKind) {
        let found = self.walk.segments[segment as usize].kind;
        if found != expected {
            self.note(CheckFinding::Kind { segment, expected, found });
        }
    }

    fn sum(&mut self, what: &str, expected: u64, found: u64) {
        if found != expected {
            self.note(CheckFinding::Sum { what: what.to_owned(), expected, found });
        }
    }

    /// The lengths of a block that was verified.
    fn lengths_at(&self, place: Place) -> Lengths {
        Lengths::decode(self.region.load(place.word() + 2))
    }

    /// The key of a block that was verified.
    fn key_at(&self, place: Place) -> Vec<u64> {
        let lengths = self.lengths_at(place);
        let mut words = vec![0; (lengths.key_bytes as usize).div_ceil(8)];
        self.region.copy_out(place.word() + BLOCK_HEADER_WORDS, &mut words);
        // The bytes of the value that share the last word are no part of the key.
        if let (Some(last), used @ 1..) = (words.last_mut(), lengths.key_bytes % 8) {
            *last &= (1 << (used * 8)) - 1;
        }
        words.push(lengths.key_bytes as u64);
        words
    }

    fn header(&self, line: LineNumber) -> Header {
        Header(self.region.load(line.word()))
    }

    fn slot(&self, line: LineNumber, index: usize) -> Slot {
        Slot(self.region.load(line.word() + 1 + index))
    }
}
