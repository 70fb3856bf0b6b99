//! Verifies a table by nothing but the words of its region: what a client could do too, over words that it copied.
//!
//! No write may be under way.

use kv_common::block::{self, Verdict};
use kv_common::hash::KeyHash;
use kv_common::layout::{
    BLOCK_HEADER_BYTES, COUNTER_NAMES, Counter, HOME_LINES, HOMES, Header, LINE_SLOTS, Lengths, LineNumber,
    Place, Run, SEGMENT_GRANULES, SEGMENT_LINES, SEGMENT_WORDS, SegmentEntry, SegmentKind, Slot, Span,
    stored_bytes, superblock, superblock_segments,
};
use kv_common::limits::{OVERFLOW_CHAIN_MAX, WORKERS_MAX};
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
        },
    };
    walker.segment_table();
    walker.directory();
    let mut index: Vec<u64> = view.directory().to_vec();
    index.sort_unstable();
    index.dedup();
    for &segment in &index {
        walker.index_segment(segment);
    }
    walker.no_block_twice();
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
    pub(super) block_bytes: usize,
}

/// A key that was seen in an index segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    hash: u64,
    place: Place,
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

    /// Every entry names an index segment that answers for it, and every index segment is named.
    fn directory(&mut self) {
        let mut named = vec![false; self.walk.segments.len()];
        for (entry, &segment) in self.view.directory().iter().enumerate() {
            self.kind(segment, SegmentKind::Index);
            named[segment as usize] = true;
            let (line, depth) = (LineNumber::new(segment, 0), self.view.directory().len().ilog2());
            let found = self.header(line);
            if found.depth() > depth || !found.answers_for(KeyHash(entry as u64)) {
                let expected = Header::home(depth, entry as u64);
                self.note(CheckFinding::Header { line, expected, found });
            }
        }
        let named = named.iter().filter(|&&named| named).count() as u64;
        self.sum("index segments in the directory", named, self.walk.report.index_segments);
    }

    fn index_segment(&mut self, segment: u64) {
        let plain = self.header(LineNumber::new(segment, 0)).with_next(0);
        let mut seen = Vec::new();
        for line in 0..HOME_LINES {
            self.home_line(LineNumber::new(segment, line), plain, &mut seen);
        }
        let mut is_chained = vec![false; SEGMENT_LINES as usize];
        for home in 0..HOMES {
            self.chain(LineNumber::new(segment, home), plain, &mut is_chained, &mut seen);
        }
        for line in (HOME_LINES..SEGMENT_LINES).filter(|&line| !is_chained[line as usize]) {
            self.free_line(LineNumber::new(segment, line), plain);
        }
        self.no_key_twice(seen);
    }

    fn home_line(&mut self, line: LineNumber, plain: Header, seen: &mut Vec<Seen>) {
        let found = self.header(line);
        if found.with_next(0) != plain {
            self.note(CheckFinding::Header { line, expected: plain, found });
        }
        if line.in_segment() == HOMES && found.next() != 0 {
            self.note(CheckFinding::Link { line, next: found.next() });
        }
        self.line_slots(line, seen, |home| home == line || home.next() == line);
    }

    fn chain(&mut self, home: LineNumber, plain: Header, is_chained: &mut [bool], seen: &mut Vec<Seen>) {
        let mut before = home;
        for position in 1..=OVERFLOW_CHAIN_MAX + 1 {
            let next = self.header(before).next();
            if next == 0 {
                return;
            }
            let is_overflow_line = (HOME_LINES..SEGMENT_LINES).contains(&(next as u64));
            if !is_overflow_line || is_chained[next as usize] || position > OVERFLOW_CHAIN_MAX {
                return self.note(CheckFinding::Link { line: before, next });
            }
            is_chained[next as usize] = true;
            let line = home.sibling(next);
            let (found, expected) = (self.header(line), plain.overflow_of(home.in_segment() as u16));
            if found.with_next(0) != expected {
                self.note(CheckFinding::Header { line, expected, found });
            }
            let keys = self.line_slots(line, seen, |key_home| key_home == home);
            if keys == 0 && found.next() == 0 {
                self.note(CheckFinding::EmptyTail { line });
            }
            self.walk.overflow_lines.push(line);
            self.walk.report.overflow_lines += 1;
            self.walk.report.overflow_keys += keys;
            self.walk.report.overflow_reads += keys * position as u64;
            before = line;
        }
    }

    fn free_line(&mut self, line: LineNumber, plain: Header) {
        let found = self.header(line);
        if found != plain {
            self.note(CheckFinding::Header { line, expected: plain, found });
        }
        for index in 0..LINE_SLOTS {
            let slot = self.slot(line, index);
            if !slot.is_empty() {
                self.note(CheckFinding::Slot { line, index, slot, fault: SlotFault::UnusedLine });
            }
        }
    }

    /// Looks at the slots of a line and returns how many are in use.
    fn line_slots(
        &mut self,
        line: LineNumber,
        seen: &mut Vec<Seen>,
        is_home: impl Fn(LineNumber) -> bool,
    ) -> u64 {
        let mut used = 0;
        for index in 0..LINE_SLOTS {
            let slot = self.slot(line, index);
            if slot.is_empty() {
                continue;
            }
            used += 1;
            match self.block_of(slot, &is_home) {
                Ok(hash) => seen.push(Seen { hash: hash.0, place: slot.place() }),
                Err(fault) => self.note(CheckFinding::Slot { line, index, slot, fault }),
            }
            self.walk.slots.push(slot);
            self.walk.report.keys += 1;
        }
        used
    }

    /// Verifies the block of a slot; returns its key's hash.
    fn block_of(&mut self, slot: Slot, is_home: impl Fn(LineNumber) -> bool) -> Result<KeyHash, SlotFault> {
        let is_large = slot.span().is_large();
        let verified = if is_large { self.large_block(slot)? } else { self.small_block(slot)? };
        let Verified { hash, version, block_bytes } = verified;
        self.walk.report.data_bytes += (block_bytes - BLOCK_HEADER_BYTES) as u64;
        self.walk.report.block_bytes += stored_bytes(block_bytes);
        if hash.fingerprint() != slot.fingerprint() {
            return Err(SlotFault::Fingerprint { found: hash.fingerprint() });
        }
        let home = self.view.home(hash);
        if !is_home(home) {
            return Err(SlotFault::Home { home });
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
            Verdict::Found { version, .. } => version,
            Verdict::NotLive => return Err(SlotFault::NotLive),
            Verdict::OtherKey | Verdict::Torn => return Err(SlotFault::Damaged),
        };
        let block_bytes = Lengths::decode(self.block[2]).block_bytes();
        if Span::of_bytes(block_bytes) != span {
            return Err(SlotFault::Span { block_bytes });
        }
        Ok(Verified { hash: self.view.hash(key), version, block_bytes })
    }

    /// Two slots of a key would have the same hash, and so lie in the same segment.
    fn no_key_twice(&mut self, mut seen: Vec<Seen>) {
        seen.sort_unstable();
        for same_hash in seen.chunk_by(|a, b| a.hash == b.hash) {
            for (i, second) in same_hash.iter().enumerate() {
                let second_key = self.key_at(second.place);
                if let Some(first) =
                    same_hash[..i].iter().find(|first| self.key_at(first.place) == second_key)
                {
                    self.note(CheckFinding::KeyTwice { first: first.place, second: second.place });
                }
            }
        }
    }

    fn no_block_twice(&mut self) {
        self.walk.slots.sort_unstable_by_key(|slot| slot.place());
        let twice: Vec<Place> = self
            .walk
            .slots
            .windows(2)
            .filter(|pair| pair[0].place() == pair[1].place())
            .map(|pair| pair[0].place())
            .collect();
        for place in twice {
            self.note(CheckFinding::BlockTwice { place });
        }
        self.no_page_twice();
    }

    fn counters(&mut self) {
        let report = self.walk.report.clone();
        for (counter, expected) in [
            (Counter::Keys, report.keys),
            (Counter::BlockBytes, report.block_bytes),
            (Counter::DataBytes, report.data_bytes),
            (Counter::OverflowLines, report.overflow_lines),
        ] {
            let pages = (0..WORKERS_MAX).map(|worker| {
                self.region.load(superblock::COUNTERS + worker * superblock::COUNTER_WORDS + counter as usize)
            });
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

    /// The key of a block that was verified.
    fn key_at(&self, place: Place) -> Vec<u64> {
        let lengths = Lengths::decode(self.region.load(place.word() + 2));
        let mut words = vec![0; (lengths.key_bytes as usize).div_ceil(8)];
        self.region.copy_out(place.word() + 3, &mut words);
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
