//! The walk over directory and index segments.
//!
//! A split under way shows in this: lines marked as moving, up to the home that is being copied or, later, of any homes that
//! are tidied; headers that answer for one more bit, up to a home, behind which all are marked; a segment that is filled
//! and not in the directory yet; and slots that are in both segments. Nothing else of it is allowed. (A mark too many is
//! never wrong: misses there are asked of the server.)

use kv_common::hash::KeyHash;
use kv_common::layout::{
    DIRECTORY_DEPTH_MAX, HOME_LINES, HOMES, Header, LINE_SLOTS, LineNumber, Place, SEGMENT_LINES,
    SegmentKind, Slot,
};
use kv_common::limits::OVERFLOW_CHAIN_MAX;

use super::Walker;
use crate::table::findings::{CheckFinding, SlotFault};

/// A slot in use.
#[derive(Clone, Copy)]
struct Used {
    slot: Slot,
    line: LineNumber,
    index: u8,
    /// Its line does not answer for its key: it can only be a copy.
    is_given_away: bool,
}

/// A key that was seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    hash: u64,
    place: Place,
    segment: u64,
}

/// What the walk over the index collects.
#[derive(Default)]
struct Collected {
    used: Vec<Used>,
    /// The keys of a segment, or of all segments while any is being split.
    seen: Vec<Seen>,
}

impl Walker<'_> {
    pub(super) fn index(&mut self) {
        let unnamed = self.directory();
        let mut segments: Vec<u64> = self.view.directory().iter().copied().chain(unnamed.clone()).collect();
        segments.sort_unstable();
        segments.dedup();
        let is_marked = |&segment: &u64| {
            [0, HOME_LINES - 1].iter().any(|&line| self.header(LineNumber::new(segment, line)).is_moving())
        };
        let is_splitting = !unnamed.is_empty() || segments.iter().any(is_marked);
        let mut collected = Collected::default();
        for &segment in &segments {
            self.index_segment(segment, &mut collected);
            if !is_splitting {
                self.no_key_twice(std::mem::take(&mut collected.seen));
            }
        }
        self.no_key_twice(collected.seen);
        self.no_block_twice(collected.used);
    }

    /// Every entry names an index segment that answers for it. Returns the index segments that are not named, but filled
    /// by a split.
    fn directory(&mut self) -> Vec<u64> {
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
        let is_index = |&segment: &u64| self.walk.segments[segment as usize].kind == SegmentKind::Index;
        let all = 0..self.walk.segments.len() as u64;
        let unnamed: Vec<u64> = all.filter(|&segment| !named[segment as usize]).filter(is_index).collect();
        let (filled, lost): (Vec<u64>, Vec<u64>) =
            unnamed.into_iter().partition(|&segment| self.is_being_filled(segment));
        for segment in lost {
            self.note(CheckFinding::Unreachable { segment });
        }
        filled
    }

    /// True if the directory leads to a segment that is marked, for the hashes that `segment` answers for.
    fn is_being_filled(&self, segment: u64) -> bool {
        let header = self.header(LineNumber::new(segment, 0));
        let depth = header.depth();
        if !(1..=DIRECTORY_DEPTH_MAX).contains(&depth) || header.prefix() >> (depth - 1) != 1 {
            return false;
        }
        let source_prefix = header.prefix() & ((1 << (depth - 1)) - 1);
        self.view.directory().get(source_prefix as usize).is_some_and(|&source| {
            let found = self.header(LineNumber::new(source, 0)).with_next(0);
            found == Header::home(depth - 1, source_prefix).with_moving(true)
        })
    }

    fn index_segment(&mut self, segment: u64, collected: &mut Collected) {
        // A split goes from the first home to the last, so the last line shows what all were before. If it is marked, so are
        // all others that do not answer for one bit more yet.
        let behind = self.header(LineNumber::new(segment, HOME_LINES - 1)).with_next(0);
        let first = self.header(LineNumber::new(segment, 0)).with_next(0).with_moving(false);
        let mut expected = ahead_of(behind).filter(|&ahead| ahead == first).unwrap_or(behind);
        for line in 0..HOME_LINES {
            let line = LineNumber::new(segment, line);
            if self.header(line).with_next(0) == behind {
                expected = behind;
            }
            self.home_line(line, expected, collected);
        }
        let mut is_chained = vec![false; SEGMENT_LINES as usize];
        for home in 0..HOMES {
            self.chain(LineNumber::new(segment, home), &mut is_chained, collected);
        }
        for line in (HOME_LINES..SEGMENT_LINES).filter(|&line| !is_chained[line as usize]) {
            self.free_line(LineNumber::new(segment, line));
        }
    }

    fn home_line(&mut self, line: LineNumber, expected: Header, collected: &mut Collected) {
        let found = self.header(line);
        if found.with_next(0) != expected && found.with_next(0) != expected.with_moving(true) {
            self.note(CheckFinding::Header { line, expected, found });
        }
        let number = line.in_segment();
        if number == HOMES && found.next() != 0 {
            self.note(CheckFinding::Link { line, next: found.next() });
        }
        self.line_slots(line, collected, |home| home == number || home + 1 == number);
    }

    fn chain(&mut self, home: LineNumber, is_chained: &mut [bool], collected: &mut Collected) {
        let number = home.in_segment();
        let expected = self.header(home).with_next(0).overflow_of(number as u16);
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
            let found = self.header(line);
            if found.with_next(0) != expected {
                self.note(CheckFinding::Header { line, expected, found });
            }
            let keys = self.line_slots(line, collected, |home| home == number);
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

    fn free_line(&mut self, line: LineNumber) {
        let found = self.header(line);
        if found != Header::FREE {
            self.note(CheckFinding::Header { line, expected: Header::FREE, found });
        }
        for index in 0..LINE_SLOTS {
            let slot = self.slot(line, index);
            if !slot.is_empty() {
                self.note(CheckFinding::Slot { line, index, slot, fault: SlotFault::UnusedLine });
            }
        }
    }

    /// Looks at the slots of a line whose keys have a home with a number for which `is_home` holds. Returns how many are in
    /// use.
    fn line_slots(
        &mut self,
        line: LineNumber,
        collected: &mut Collected,
        is_home: impl Fn(u64) -> bool,
    ) -> u64 {
        let (mut used, segment) = (0, line.segment());
        for index in 0..LINE_SLOTS {
            let slot = self.slot(line, index);
            if slot.is_empty() {
                continue;
            }
            used += 1;
            let mut is_given_away = false;
            match self.block_of(slot, &is_home) {
                Ok(hash) => {
                    let home = LineNumber::new(segment, hash.home());
                    is_given_away = !self.header(home).answers_for(hash);
                    collected.seen.push(Seen { hash: hash.0, place: slot.place(), segment });
                    let lengths = self.lengths_at(slot.place());
                    self.walk.report.data_bytes += lengths.data_bytes() as u64;
                    self.walk.report.expiring_keys += u64::from(lengths.expires());
                }
                Err(fault) => self.note(CheckFinding::Slot { line, index, slot, fault }),
            }
            collected.used.push(Used { slot, line, index: index as u8, is_given_away });
            self.walk.report.keys += 1;
            self.walk.report.block_bytes += slot.span().bytes();
        }
        *self.walk.used.entry(segment).or_default() += used;
        used
    }

    /// Two slots of a key have the same hash.
    fn no_key_twice(&mut self, mut seen: Vec<Seen>) {
        seen.sort_unstable();
        for same_hash in seen.chunk_by(|a, b| a.hash == b.hash) {
            for (i, second) in same_hash.iter().enumerate() {
                let second_key = self.key_at(second.place);
                let is_same = |first: &&Seen| {
                    let is_copy = first.place == second.place && first.segment != second.segment;
                    !is_copy && self.key_at(first.place) == second_key
                };
                if let Some(first) = same_hash[..i].iter().find(is_same) {
                    self.note(CheckFinding::KeyTwice { first: first.place, second: second.place });
                }
            }
        }
    }

    /// No two slots name the same block, unless one is the copy that a split has left.
    fn no_block_twice(&mut self, mut used: Vec<Used>) {
        used.sort_unstable_by_key(|used| (used.slot.place(), used.is_given_away, used.line));
        for same_place in used.chunk_by(|a, b| a.slot.place() == b.slot.place()) {
            self.walk.slots.push(same_place[0].slot);
            let is_copied = match same_place {
                [_] => false,
                &[a, b] => a.slot == b.slot && (self.is_split(b, a) || self.is_split(a, b)),
                _ => false,
            };
            if is_copied {
                self.uncount_copy(same_place[0].slot);
            } else if same_place.len() > 1 {
                self.note(CheckFinding::BlockTwice { place: same_place[0].slot.place() });
                let extra = same_place.iter().skip(1).map(|used| used.slot);
                self.walk.slots.extend(extra);
            }
            if let Some(&Used { slot, line, index, .. }) =
                same_place.iter().find(|used| used.is_given_away && !is_copied)
            {
                let fault = SlotFault::GivenAway;
                self.note(CheckFinding::Slot { line, index: index as usize, slot, fault });
            }
        }
    }

    /// True if the segment of `target` is being filled from the one of `source`.
    fn is_split(&self, source: Used, target: Used) -> bool {
        let header = |used: Used| self.header(LineNumber::new(used.line.segment(), HOME_LINES - 1));
        let (from, to) = (header(source), header(target));
        let is_half = (1..=DIRECTORY_DEPTH_MAX).contains(&to.depth())
            && to.prefix() == from.prefix() | 1 << (to.depth() - 1)
            && to.prefix() != from.prefix();
        is_half && (from.depth() == to.depth() || from.depth() + 1 == to.depth()) && !target.is_given_away
    }

    fn uncount_copy(&mut self, slot: Slot) {
        let lengths = self.lengths_at(slot.place());
        let report = &mut self.walk.report;
        report.copied_keys += 1;
        report.keys -= 1;
        report.block_bytes -= slot.span().bytes();
        report.data_bytes -= lengths.data_bytes() as u64;
        report.expiring_keys -= u64::from(lengths.expires());
    }
}

/// The header, but for its mark, of a line that answers for one bit more than others, whose header is this one.
fn ahead_of(behind: Header) -> Option<Header> {
    let is_possible = behind.is_moving() && behind.depth() < DIRECTORY_DEPTH_MAX && !behind.is_overflow();
    is_possible.then(|| behind.deepened())
}
