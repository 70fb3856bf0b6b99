//! Superblock, segment table and directory.

use std::collections::BTreeMap;

use super::findings::CheckFinding;
use super::region::{Region, read_each, read_into};
use super::{Findings, IdentityError};
use crate::hash::KeyHash;
use crate::layout::{
    BLOCK_HEADER_BYTES, DIRECTORY_DEPTH_MAX, Header, LineNumber, SEGMENT_WORDS, SegmentEntry, SegmentKind,
    Span, superblock, superblock_segments,
};
use crate::limits::{KEY_MAX_BYTES, WORKERS_MAX};
use crate::probe::TableView;

/// Words in front of the segment table.
pub(super) const FRONT_WORDS: usize = superblock::SEGMENT_TABLE;

/// What the check knows of a table before it looks at lines.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) view: TableView,
    /// The superblock in front of the segment table.
    pub(super) front: Vec<u64>,
    pub(super) segments: Vec<SegmentEntry>,
    /// The index segments that are in the directory, or that a split fills.
    pub(super) index_segments: Vec<u64>,
}

/// Identity and directory of the table in a region.
///
/// # Errors
/// There is no table, as far as its first words say.
pub(super) fn view_of<R: Region>(
    region: &mut R,
    identity: &[u64],
) -> Result<Result<TableView, IdentityError>, R::Error> {
    let view = TableView::from_identity(identity, region.len_words());
    let depth = TableView::check_depth(identity[superblock::DIRECTORY_DEPTH]);
    let (mut view, depth) = match (view, depth) {
        (Ok(view), Ok(depth)) => (view, depth),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    let mut entries = vec![0; 1 << depth];
    read_into(region, view.directory_word, &mut entries)?;
    Ok(view.set_directory(&entries).map(|()| view))
}

/// The entries of the segment table, what is none as free, and noted.
pub(super) fn read_segments<R: Region>(
    region: &mut R,
    findings: &mut Findings,
) -> Result<Vec<SegmentEntry>, R::Error> {
    let mut words = vec![0; region.len_words() / SEGMENT_WORDS];
    read_into(region, superblock::SEGMENT_TABLE, &mut words)?;
    let entry = |(segment, found): (u64, u64)| {
        // The smallest block has a header and a byte of key.
        let is_class =
            |class: Span| (Span::of_bytes(BLOCK_HEADER_BYTES + 1)..=Span::SMALL_MAX).contains(&class);
        let is_entry =
            |entry: &SegmentEntry| entry.kind != SegmentKind::Blocks || is_class(Span(entry.class));
        SegmentEntry::decode(found).filter(is_entry).unwrap_or_else(|| {
            findings.note(CheckFinding::SegmentEntry { segment, found });
            SegmentEntry { kind: SegmentKind::Free, class: 0 }
        })
    };
    Ok((0u64..).zip(words).map(entry).collect())
}

impl Tables {
    /// Reads them, and says what is wrong with them.
    pub(super) fn read<R: Region>(
        region: &mut R,
    ) -> Result<(Result<Tables, IdentityError>, Findings), R::Error> {
        let mut findings = Findings::default();
        let mut front = vec![0; FRONT_WORDS];
        read_into(region, 0, &mut front)?;
        let view = match view_of(region, &front)?.and_then(|view| check_fields(&front).map(|()| view)) {
            Ok(view) => view,
            Err(error) => return Ok((Err(error), findings)),
        };
        // After the directory: what is in that is an index segment by now.
        let segments = read_segments(region, &mut findings)?;
        let mut tables = Tables { view, front, segments, index_segments: Vec::new() };
        tables.check_reserved(&mut findings);
        tables.check_fixed(&mut findings);
        tables.read_index_segments(region, &mut findings)?;
        Ok((Ok(tables), findings))
    }

    pub(super) fn ceiling(&self) -> u64 {
        self.front[superblock::VERSION_CEILING]
    }

    pub(super) fn kind(&self, segment: u64) -> SegmentKind {
        self.segments[segment as usize].kind
    }

    fn check_reserved(&self, findings: &mut Findings) {
        let in_use = |word: &usize| match *word {
            superblock::MAGIC..=superblock::LEASE_NS
            | superblock::CLOCK_NS
            | superblock::VERSION_CEILING
            | superblock::KEY_MAX_BYTES..=superblock::EVICTS => true,
            word => {
                word >= superblock::COUNTERS_FIRST
                    && is_counter((word - superblock::COUNTERS_FIRST) % superblock::COUNTER_WORDS)
            }
        };
        for word in (0..FRONT_WORDS).filter(|word| !in_use(word)) {
            if self.front[word] != 0 {
                findings.note(CheckFinding::Reserved { word, found: self.front[word] });
            }
        }
    }

    fn check_fixed(&self, findings: &mut Findings) {
        let superblocks = superblock_segments(self.segments.len() as u64);
        let directory = (self.view.directory_word / SEGMENT_WORDS) as u64;
        for segment in 0..superblocks {
            self.check_kind(segment, SegmentKind::Superblock, findings);
        }
        self.check_kind(directory, SegmentKind::Directory, findings);
        let is_fixed =
            |entry: &&SegmentEntry| matches!(entry.kind, SegmentKind::Superblock | SegmentKind::Directory);
        let found = self.segments.iter().filter(is_fixed).count() as u64;
        findings.sum("segments of superblock and directory", superblocks + 1, found);
    }

    fn check_kind(&self, segment: u64, expected: SegmentKind, findings: &mut Findings) {
        let found = self.kind(segment);
        if found != expected {
            findings.note(CheckFinding::Kind { segment, expected, found });
        }
    }

    /// Every entry of the directory names an index segment that answers for it; and every index segment is named, or filled by
    /// a split.
    fn read_index_segments<R: Region>(
        &mut self,
        region: &mut R,
        findings: &mut Findings,
    ) -> Result<(), R::Error> {
        let is_index = |&segment: &u64| self.kind(segment) == SegmentKind::Index;
        let mut segments: Vec<u64> = (0..self.segments.len() as u64).filter(is_index).collect();
        segments.extend_from_slice(self.view.directory());
        segments.sort_unstable();
        segments.dedup();
        let firsts = read_each(region, segments.iter().map(|&segment| LineNumber::new(segment, 0).word()))?;
        let headers: BTreeMap<u64, Header> =
            segments.iter().copied().zip(firsts.into_iter().map(Header)).collect();
        let mut is_named = vec![false; self.segments.len()];
        for (entry, &segment) in (0u64..).zip(self.view.directory()) {
            self.check_kind(segment, SegmentKind::Index, findings);
            is_named[segment as usize] = true;
            let (found, depth) = (headers[&segment], self.view.directory().len().ilog2());
            if self.kind(segment) != SegmentKind::Index {
                continue;
            }
            if found.depth() > depth || !found.answers_for(KeyHash(entry)) {
                let (line, expected) = (LineNumber::new(segment, 0), Header::home(depth, entry));
                findings.note(CheckFinding::Header { line, expected, found });
            }
        }
        let is_led_to =
            |&segment: &u64| is_named[segment as usize] || self.is_being_filled(segment, &headers);
        let (found, lost): (Vec<u64>, Vec<u64>) = segments.into_iter().filter(is_index).partition(is_led_to);
        for segment in lost {
            findings.note(CheckFinding::Unreachable { segment });
        }
        self.index_segments = found;
        Ok(())
    }

    /// True if the directory leads to a segment that is marked, for the hashes that `segment` answers for.
    fn is_being_filled(&self, segment: u64, headers: &BTreeMap<u64, Header>) -> bool {
        let header = headers[&segment];
        let depth = header.depth();
        if !(1..=DIRECTORY_DEPTH_MAX).contains(&depth) || header.prefix() >> (depth - 1) != 1 {
            return false;
        }
        let source_prefix = header.prefix() & ((1 << (depth - 1)) - 1);
        self.view.directory().get(source_prefix as usize).is_some_and(|source| {
            headers[source].with_next(0) == Header::home(depth - 1, source_prefix).with_moving(true)
        })
    }
}

/// Fields that readers do not need, but servers never write otherwise.
fn check_fields(front: &[u64]) -> Result<(), IdentityError> {
    for (field, word, is_right) in [
        ("workers", superblock::WORKERS, (1..=WORKERS_MAX as u64).contains(&front[superblock::WORKERS])),
        ("longest key", superblock::KEY_MAX_BYTES, front[superblock::KEY_MAX_BYTES] == KEY_MAX_BYTES as u64),
        ("page size", superblock::PAGE_BYTES, front[superblock::PAGE_BYTES].is_power_of_two()),
        ("evicts", superblock::EVICTS, front[superblock::EVICTS] <= 1),
        ("owner", superblock::OWNER, front[superblock::OWNER] >> 32 == 0),
    ] {
        if !is_right {
            return Err(IdentityError::Field { field, found: front[word] });
        }
    }
    Ok(())
}

fn is_counter(word: usize) -> bool {
    word < crate::layout::COUNTER_NAMES.len() || word >= superblock::EVICTED_AGES
}
