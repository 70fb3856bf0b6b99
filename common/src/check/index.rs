//! The walk over an index segment, of which all words were copied.
//!
//! A split under way shows in this: lines marked as moving, up to the home that is being copied or, later, of any homes that
//! are tidied; headers that answer for one more bit, up to a home, behind which all are marked; a segment that is filled
//! and not in the directory yet; and slots that are in both segments. Nothing else of it is allowed. (A mark too many is
//! never wrong: misses there are asked of the server.)

use std::cell::Cell;

use super::Findings;
use super::findings::{CheckFinding, SlotFault};
use crate::layout::{
    DIRECTORY_DEPTH_MAX, HOME_LINES, HOMES, Header, LINE_SLOTS, LINE_WORDS, LineNumber, Place, SEGMENT_LINES,
    Slot,
};
use crate::limits::OVERFLOW_CHAIN_MAX;

/// A slot in use. The check keeps one for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) slot: Slot,
    /// `line:45 | index:3 | home:16`, with the line's home: of an overflow line the one whose chain it is in.
    at: u64,
    /// The hash of the key, once its block was verified.
    pub(super) hash: Cell<u64>,
}

impl Entry {
    pub(super) fn new(slot: Slot, line: LineNumber, index: usize, home: u64) -> Entry {
        Entry { slot, at: line.0 << 19 | (index as u64) << 16 | home, hash: Cell::new(0) }
    }

    pub(super) fn place(&self) -> Place {
        self.slot.place()
    }

    pub(super) fn line(&self) -> LineNumber {
        LineNumber(self.at >> 19)
    }

    pub(super) fn index(&self) -> usize {
        (self.at >> 16 & 7) as usize
    }

    /// Offset of the slot in words.
    pub(super) fn word(&self) -> usize {
        self.line().word() + 1 + self.index()
    }

    /// What identifies it among those of one look.
    pub(super) fn at(&self) -> u64 {
        self.at >> 16
    }

    /// True if a key with this home may be in this slot.
    pub(super) fn is_of_home(&self, home: u64) -> bool {
        let own = self.at & 0xffff;
        home == own || self.line().in_segment() < HOME_LINES && home + 1 == own
    }
}

/// What all home lines of a segment have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The headers of homes before `border`.
    ahead: Header,
    /// The headers of the others.
    behind: Header,
    border: u64,
}

impl State {
    /// The header of a home, its link apart.
    pub(super) fn header(self, home: u64) -> Header {
        if home < self.border { self.ahead } else { self.behind }
    }
}

/// What is in an index segment.
#[derive(Debug)]
pub(super) struct IndexSegment {
    pub(super) state: State,
    pub(super) entries: Vec<Entry>,
    pub(super) overflow_lines: Vec<LineNumber>,
    /// Slots in use in these.
    pub(super) overflow_keys: u64,
    /// READs that it takes to find them, behind those of windows.
    pub(super) overflow_reads: u64,
}

/// Looks at a segment, given its words.
pub(super) fn walk(segment: u64, words: &[u64], findings: &mut Findings) -> IndexSegment {
    let behind = Header(words[(HOME_LINES as usize - 1) * LINE_WORDS]).with_next(0);
    let state = State { ahead: behind, behind, border: 0 };
    let found = IndexSegment {
        state,
        entries: Vec::new(),
        overflow_lines: Vec::new(),
        overflow_keys: 0,
        overflow_reads: 0,
    };
    let mut walker = Walker { segment, words, findings, found };
    walker.homes();
    walker.chains();
    walker.found
}

struct Walker<'a> {
    segment: u64,
    words: &'a [u64],
    findings: &'a mut Findings,
    found: IndexSegment,
}

impl Walker<'_> {
    fn homes(&mut self) {
        // A split goes from the first home to the last, so the last line shows what all were before. If it is marked, so are
        // all others that do not answer for one bit more yet.
        let behind = self.found.state.behind;
        let first = self.header(0).with_next(0).with_moving(false);
        let ahead = ahead_of(behind).filter(|&ahead| ahead == first).unwrap_or(behind);
        let mut expected = ahead;
        let mut border = HOME_LINES;
        for line in 0..HOME_LINES {
            if expected != behind && self.header(line).with_next(0) == behind {
                (expected, border) = (behind, line);
            }
            self.home_line(line, expected);
        }
        self.found.state = State { ahead, behind, border };
    }

    fn home_line(&mut self, number: u64, expected: Header) {
        let (line, found) = (self.line(number), self.header(number));
        if found.with_next(0) != expected && found.with_next(0) != expected.with_moving(true) {
            self.findings.note(CheckFinding::Header { line, expected, found });
        }
        if number == HOMES && found.next() != 0 {
            self.findings.note(CheckFinding::Link { line, next: found.next() });
        }
        self.slots(number, number);
    }

    fn chains(&mut self) {
        let mut is_chained = vec![false; SEGMENT_LINES as usize];
        for home in 0..HOMES {
            self.chain(home, &mut is_chained);
        }
        for line in (HOME_LINES..SEGMENT_LINES).filter(|&line| !is_chained[line as usize]) {
            self.free_line(line);
        }
    }

    fn chain(&mut self, home: u64, is_chained: &mut [bool]) {
        let expected = self.header(home).with_next(0).overflow_of(home as u16);
        let mut before = home;
        for position in 1..=OVERFLOW_CHAIN_MAX + 1 {
            let next = self.header(before).next();
            if next == 0 {
                return;
            }
            let number = next as u64;
            let is_overflow_line = (HOME_LINES..SEGMENT_LINES).contains(&number);
            if !is_overflow_line || is_chained[number as usize] || position > OVERFLOW_CHAIN_MAX {
                return self.findings.note(CheckFinding::Link { line: self.line(before), next });
            }
            is_chained[number as usize] = true;
            let (line, found) = (self.line(number), self.header(number));
            if found.with_next(0) != expected {
                self.findings.note(CheckFinding::Header { line, expected, found });
            }
            let keys = self.slots(number, home);
            if keys == 0 && found.next() == 0 {
                self.findings.note(CheckFinding::EmptyTail { line });
            }
            self.found.overflow_lines.push(line);
            self.found.overflow_keys += keys;
            self.found.overflow_reads += keys * position as u64;
            before = number;
        }
    }

    fn free_line(&mut self, number: u64) {
        let (line, found) = (self.line(number), self.header(number));
        if found != Header::FREE {
            self.findings.note(CheckFinding::Header { line, expected: Header::FREE, found });
        }
        for index in 0..LINE_SLOTS {
            let slot = self.slot(number, index);
            if !slot.is_empty() {
                self.findings.note(CheckFinding::Slot { line, index, slot, fault: SlotFault::UnusedLine });
            }
        }
    }

    /// Collects the slots in use of a line of this home. Returns how many there are.
    fn slots(&mut self, number: u64, home: u64) -> u64 {
        let before = self.found.entries.len();
        for index in 0..LINE_SLOTS {
            let slot = self.slot(number, index);
            if !slot.is_empty() {
                self.found.entries.push(Entry::new(slot, self.line(number), index, home));
            }
        }
        (self.found.entries.len() - before) as u64
    }

    fn line(&self, number: u64) -> LineNumber {
        LineNumber::new(self.segment, number)
    }

    fn header(&self, number: u64) -> Header {
        Header(self.words[number as usize * LINE_WORDS])
    }

    fn slot(&self, number: u64, index: usize) -> Slot {
        Slot(self.words[number as usize * LINE_WORDS + 1 + index])
    }
}

/// The header, but for its mark, of a line that answers for one bit more than others, whose header is this one.
fn ahead_of(behind: Header) -> Option<Header> {
    let is_possible = behind.is_moving() && behind.depth() < DIRECTORY_DEPTH_MAX && !behind.is_overflow();
    is_possible.then(|| behind.deepened())
}
