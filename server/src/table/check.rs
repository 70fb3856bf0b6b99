//! The check of a quiescent table: the walk over the region, then what the server keeps privately.

use std::collections::HashMap;

use kv_common::check::{CheckFinding, CheckReport, Walk, walk};
use kv_common::layout::{
    HOME_LINES, LineNumber, NOT_LIVE, Place, SEGMENT_LINES, SegmentEntry, SegmentKind, superblock,
};

use super::Table;
use super::slab::{ClassReport, blocks_per_segment};

impl Table {
    /// Verifies every invariant of the table. No write may be under way; blocks on their way back through the epochs
    /// are counted, not waited for.
    pub fn check(&self) -> Result<CheckReport, Vec<CheckFinding>> {
        let mut walk = walk(&self.region);
        if walk.findings.is_empty() {
            self.check_blocks(&mut walk);
            self.check_pages(&mut walk);
            self.check_waiting(&mut walk);
            self.check_segments(&mut walk);
            self.check_index(&mut walk);
        }
        if walk.findings.is_empty() { Ok(walk.report) } else { Err(walk.findings) }
    }

    /// Blocks in use, free, waiting and uncut make up the segments of their class, to the block.
    fn check_blocks(&self, walk: &mut Walk) {
        let mut used: HashMap<u8, Vec<Place>> = HashMap::new();
        for slot in walk.slots().filter(|slot| !slot.span().is_large()) {
            used.entry(slot.span().0).or_default().push(slot.place());
        }
        let mut waiting = 0;
        for class in self.slab.report() {
            let used = used.remove(&class.span.0).unwrap_or_default();
            let blocks = class.segments * blocks_per_segment(class.span);
            let accounted = used.len() as u64 + class.free.len() as u64 + class.uncut_blocks;
            if accounted > blocks {
                let what = format!("blocks of {} bytes", class.span.bytes());
                walk.findings.push(CheckFinding::Sum { what, expected: blocks, found: accounted });
            }
            waiting += blocks.saturating_sub(accounted);
            self.check_free_blocks(&class, used, walk);
            let entry = SegmentEntry { kind: SegmentKind::Blocks, class: class.span.0 };
            let expected = walk.segments.iter().filter(|&&other| other == entry).count() as u64;
            if class.segments != expected {
                let what = format!("segments of blocks of {} bytes", class.span.bytes());
                walk.findings.push(CheckFinding::Sum { what, expected, found: class.segments });
            }
        }
        walk.report.waiting_blocks = waiting;
    }

    fn check_waiting(&self, walk: &mut Walk) {
        let waiting = walk.report.waiting_blocks;
        if waiting != self.slab.waiting() {
            let what = "blocks on their way back".to_owned();
            walk.findings.push(CheckFinding::Sum { what, expected: waiting, found: self.slab.waiting() });
        }
    }

    /// Free blocks are not live, not in use and listed once.
    fn check_free_blocks(&self, class: &ClassReport, used: Vec<Place>, walk: &mut Walk) {
        for &place in &class.free {
            if self.region.load(place.word()) & NOT_LIVE == 0 {
                walk.findings.push(CheckFinding::FreeBlockLive { place });
            }
        }
        let mut places = used;
        places.extend_from_slice(&class.free);
        places.sort_unstable();
        let twice = places.windows(2).filter(|pair| pair[0] == pair[1]);
        walk.findings.extend(twice.map(|pair| CheckFinding::BlockTwice { place: pair[0] }));
    }

    fn check_segments(&self, walk: &mut Walk) {
        let (expected, found) =
            (walk.report.free_segments, self.free_segments() + self.quarantined_segments());
        if expected != found {
            let what = "free segments".to_owned();
            walk.findings.push(CheckFinding::Sum { what, expected, found });
        }
        let ceiling = self.region.load(superblock::VERSION_CEILING);
        if self.versions.peek() > ceiling {
            let what = "ceiling of versions".to_owned();
            walk.findings.push(CheckFinding::Sum { what, expected: self.versions.peek(), found: ceiling });
        }
    }

    /// Every overflow line is either in a chain or free, once; and as many slots are in use as were counted.
    fn check_index(&self, walk: &mut Walk) {
        let is_index = |&segment: &usize| walk.segments[segment].kind == SegmentKind::Index;
        let segments: Vec<u64> =
            (0..walk.segments.len()).filter(is_index).map(|segment| segment as u64).collect();
        for segment in segments {
            let (expected, found) = (walk.used.get(&segment).copied().unwrap_or(0), self.index.used(segment));
            if expected != found {
                let what = format!("slots in use of index segment {segment}");
                walk.findings.push(CheckFinding::Sum { what, expected, found });
            }
            let mut listed = vec![0u64; SEGMENT_LINES as usize];
            for line in self.index.free_overflow_lines(segment) {
                listed[line as usize] += 1;
            }
            let mut in_use = vec![false; SEGMENT_LINES as usize];
            for line in walk.overflow_lines.iter().filter(|line| line.segment() == segment) {
                in_use[line.in_segment() as usize] = true;
            }
            for line in HOME_LINES as usize..SEGMENT_LINES as usize {
                if listed[line] != !in_use[line] as u64 {
                    let (listed, in_use) = (listed[line], in_use[line]);
                    let line = LineNumber::new(segment, line as u64);
                    walk.findings.push(CheckFinding::OverflowLine { line, listed, in_use });
                }
            }
        }
    }
}
