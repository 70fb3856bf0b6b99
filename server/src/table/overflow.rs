//! Which overflow lines are free, by index segment. Linking and unlinking is in `publish` and `delete`.

use kv_common::layout::{HOME_LINES, LineNumber, OVERFLOW_LINES};
use parking_lot::Mutex;

/// The free overflow lines of every index segment. Index segments lie side by side in the region.
pub(super) struct OverflowLines {
    first_segment: u64,
    free: Box<[Mutex<Vec<u16>>]>,
}

impl OverflowLines {
    /// All overflow lines of `segments` index segments, free.
    pub(super) fn new(first_segment: u64, segments: u64) -> OverflowLines {
        // From the end, so that the first line is taken first.
        let lines = || (HOME_LINES..HOME_LINES + OVERFLOW_LINES).rev().map(|line| line as u16).collect();
        OverflowLines { first_segment, free: (0..segments).map(|_| Mutex::new(lines())).collect() }
    }

    pub(super) fn segments(&self) -> u64 {
        self.free.len() as u64
    }

    pub(super) fn first_segment(&self) -> u64 {
        self.first_segment
    }

    /// Takes a free overflow line of the segment of `home`.
    pub(super) fn take(&self, home: LineNumber) -> Option<LineNumber> {
        self.lines(home).lock().pop().map(|line| home.sibling(line))
    }

    /// Gives a line back that no chain leads to any more.
    pub(super) fn give_back(&self, line: LineNumber) {
        assert!(line.in_segment() >= HOME_LINES, "a home line is never free");
        self.lines(line).lock().push(line.in_segment() as u16);
    }

    /// The free lines of index segment `segment`, in no order.
    pub(super) fn free_lines(&self, segment: u64) -> Vec<u16> {
        self.free[(segment - self.first_segment) as usize].lock().clone()
    }

    fn lines(&self, line: LineNumber) -> &Mutex<Vec<u16>> {
        &self.free[(line.segment() - self.first_segment) as usize]
    }
}
