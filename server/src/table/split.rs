//! One index segment becomes two: a *source* that keeps the hashes whose next bit is 0, and a *target* that gets the
//! others. Reads and writes go on. `docs/design.md` proves that no reader misses a key meanwhile; these are the rules that
//! the proof rests on:
//!
//! 1. A home's lines are marked *moving* before the first of its keys is copied. From then on a reader that finds no slot
//!    there asks the server.
//! 2. Home by home, under the stripes, keys are copied. From then on they are written in the target; a write that changes
//!    or clears a slot there does the same to the copy of it, so that the source leads to the same blocks.
//! 3. The directory leads to the target only when all of its keys are there.
//! 4. Only then do the source's headers stop answering for what it has given away. That takes the mark away, too, except
//!    from homes with overflow lines.
//! 5. The slots that were copied are cleared no sooner than GRACE after the last mark: lookups that saw a header without
//!    it and still count have ended.
//! 6. Homes that are still marked are *tidied* in the same step: keys move from overflow lines to slots that are free now.
//!    Their mark goes away no sooner than GRACE after the last of these moves.
//!
//! The target needs no mark: nobody is led to it before it is complete.

use std::sync::atomic::{Ordering, fence};

use kv_common::adversary::{Mutant, mutant};
use kv_common::layout::{
    Counter, HOME_LINES, HOMES, Header, LineNumber, SegmentEntry, SegmentKind, Slot, superblock,
};

use super::Table;
use super::counters::Counters;
use super::index::{Role, State};
use super::lookup::{At, Room};

/// Words of a block that are fetched ahead: its header and a short key.
const PREFETCH_WORDS: usize = 8;

/// A split under way.
pub(super) struct Split {
    pub(super) source: u64,
    target: u64,
    /// Hash bits that both have in common.
    depth: u32,
    /// Homes that kept their mark, to be tidied.
    marked_homes: u64,
    pub(super) stage: Stage,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Marking the lines of this home and copying its keys.
    Move { home: u64 },
    /// Letting the headers of this home answer for one more bit.
    Deepen { home: u64 },
    /// Nothing until this moment of the table's clock, then `Clear`.
    Wait { until_ns: u64 },
    /// Clearing slots of this home that were copied, and tidying it.
    Clear { home: u64 },
    /// Nothing until this moment of the table's clock, then `Unmark`.
    Settle { until_ns: u64 },
    /// Taking the mark of this home away, if it has kept one.
    Unmark { home: u64 },
    /// Nothing any more.
    Done,
}

impl Split {
    /// Ends a wait that is over by `now_ns`. Says how long one lasts that is not.
    pub(super) fn wait_ns(&mut self, now_ns: u64) -> Option<u64> {
        let (until_ns, next) = match self.stage {
            Stage::Wait { until_ns } => (until_ns, Stage::Clear { home: 0 }),
            Stage::Settle { until_ns } => (until_ns, Stage::Unmark { home: 0 }),
            _ => return None,
        };
        let left_ns = until_ns.checked_sub(now_ns).filter(|&left_ns| left_ns > 0);
        if left_ns.is_none() {
            self.stage = next;
        }
        left_ns
    }
}

impl Table {
    /// Begins a split, with a free segment. `None` if there is none.
    pub(super) fn begin_split(&self, source: u64, counters: &Counters) -> Option<Split> {
        let state = self.index.state(source);
        let target = self.slab.take_segment(SegmentEntry { kind: SegmentKind::Index, class: 0 })?;
        let prefix = state.prefix | 1 << state.depth;
        write_lines(&self.region, target, Header::home(state.depth + 1, prefix));
        let role = Role::Target { source };
        self.index.add(target, State { depth: state.depth + 1, prefix, role });
        let stage = Stage::Move { home: 0 };
        let split = Split { source, target, depth: state.depth, marked_homes: 0, stage };
        self.set_moved_homes(&split, 0);
        counters.add(Counter::SplitsUnderWay, 1);
        if mutant(Mutant::PublishBeforeCopy) {
            self.publish_target(&split);
        }
        Some(split)
    }

    /// Goes on with a split, home by home, as long as `goes_on`.
    pub(super) fn advance_split(
        &self,
        split: &mut Split,
        scratch: &mut Vec<u64>,
        counters: &Counters,
        goes_on: &mut dyn FnMut(u64) -> bool,
    ) {
        loop {
            let (home, next) = match split.stage {
                Stage::Move { home } => {
                    self.move_home(split, home, scratch, counters);
                    (home, Stage::Move { home: home + 1 })
                }
                Stage::Deepen { home } => {
                    split.marked_homes += u64::from(self.deepen_home(split, home));
                    (home, Stage::Deepen { home: home + 1 })
                }
                Stage::Clear { home } => {
                    self.clear_home(split, home, counters);
                    (home, Stage::Clear { home: home + 1 })
                }
                Stage::Unmark { home } => {
                    self.unmark_home(split, home);
                    (home, Stage::Unmark { home: home + 1 })
                }
                Stage::Wait { .. } | Stage::Settle { .. } | Stage::Done => return,
            };
            split.stage = if home + 1 < HOMES { next } else { self.end_stage(split, counters) };
            if !goes_on(home) {
                return;
            }
        }
    }

    /// All homes are done: what a stage ends with, and the stage that follows.
    fn end_stage(&self, split: &Split, counters: &Counters) -> Stage {
        match split.stage {
            Stage::Move { .. } => {
                self.publish_target(split);
                Stage::Deepen { home: 0 }
            }
            Stage::Deepen { .. } if mutant(Mutant::ClearWithoutGrace) => Stage::Clear { home: 0 },
            Stage::Deepen { .. } => Stage::Wait { until_ns: self.grace_from_now() },
            Stage::Clear { .. } => {
                self.end_split(split, counters);
                match split.marked_homes {
                    0 => self.end_tidying(),
                    _ if mutant(Mutant::UnmarkWithoutGrace) => Stage::Unmark { home: 0 },
                    _ => Stage::Settle { until_ns: self.grace_from_now() },
                }
            }
            Stage::Unmark { .. } => self.end_tidying(),
            Stage::Wait { .. } | Stage::Settle { .. } | Stage::Done => unreachable!("these have no homes"),
        }
    }

    /// When lookups that began before now, and still count, have ended.
    fn grace_from_now(&self) -> u64 {
        // What was stored is visible to all before the clock is looked at.
        fence(Ordering::SeqCst);
        self.monotonic_ns() + self.growth.grace_ns()
    }

    /// Marks the lines of a home and copies its keys that belong to the target, to the same slots of the same lines. Those
    /// in overflow lines go where there is room.
    fn move_home(&self, split: &Split, home: u64, scratch: &mut Vec<u64>, counters: &Counters) {
        let (from, to) = (LineNumber::new(split.source, home), LineNumber::new(split.target, home));
        self.prefetch_blocks(split, home + 2);
        let _held = self.stripes.lock(home);
        if !mutant(Mutant::SkipMarking) {
            // The next line's chain, too, so that a chain is always marked as its home is.
            for line in self.lines(from).chain(self.chain(from.next())) {
                self.store_header(line, self.header(line).with_moving(true));
            }
        }
        let mut copied = 0;
        for line in [from, from.next()] {
            for at in self.slots(line) {
                if self.goes(split, line, home, at.slot, scratch) {
                    let line = to.sibling(line.in_segment() as u16);
                    self.copy_slot(At { line, ..at }, Room::Slot(at), to, counters);
                    copied += 1;
                }
            }
        }
        self.set_moved_homes(split, home + 1);
        for line in self.chain(from) {
            for Slot(slot) in self.slots(line).map(|at| at.slot) {
                if self.goes(split, line, home, Slot(slot), scratch) {
                    self.copy_from_overflow(Slot(slot), to, counters);
                    copied += 1;
                }
            }
        }
        if copied > 0 {
            counters.add(Counter::KeysMoved, copied);
        }
    }

    /// True if the key of a slot has this home and belongs to the target.
    fn goes(&self, split: &Split, line: LineNumber, home: u64, slot: Slot, scratch: &mut Vec<u64>) -> bool {
        if slot.is_empty() {
            return false;
        }
        let hash = self.hash_of(slot.place(), scratch);
        let is_of_home = if mutant(Mutant::SplitLineByLine) {
            line.in_segment() == home || line.in_segment() >= HOME_LINES
        } else {
            hash.home() == home
        };
        is_of_home && hash.0 >> split.depth & 1 == 1
    }

    /// Copies a slot of an overflow line into the target. There is room: the window had as much for the keys in it, and
    /// those in overflow lines need no more such lines than they have.
    fn copy_from_overflow(&self, slot: Slot, home: LineNumber, counters: &Counters) {
        let room = self.room(home).expect("no home needs more lines for a part of its keys");
        let at = match room {
            Room::Slot(at) => at,
            Room::BehindTail(_) => {
                let line = self.index.take_overflow_for_copy(home).expect("so many lines are kept free");
                At { line, index: 0, slot: Slot::EMPTY }
            }
        };
        self.copy_slot(At { slot, ..at }, room, home, counters);
    }

    fn copy_slot(&self, at: At, room: Room, home: LineNumber, counters: &Counters) {
        debug_assert!(self.region.load(at.word()) == 0, "a slot is copied to an empty one");
        self.store_slot(at, room, home, counters);
    }

    /// Lets the directory lead to the target.
    fn publish_target(&self, split: &Split) {
        let _held = self.growth.directory.lock();
        let State { depth, prefix, .. } = self.index.state(split.target);
        let directory_word = self.view.directory_word;
        let directory_depth = self.region.load(superblock::DIRECTORY_DEPTH) as u32;
        let entries = 1usize << directory_depth;
        if depth <= directory_depth {
            for entry in (prefix as usize..entries).step_by(1 << depth) {
                self.region.store_release(directory_word + entry, split.target);
            }
            return;
        }
        // Twice as many entries: what is there stays, so that an old copy stays right for its own depth.
        for entry in 0..entries {
            let is_target = entry + entries == prefix as usize;
            let segment = if is_target { split.target } else { self.region.load(directory_word + entry) };
            self.region.store(directory_word + entries + entry, segment);
        }
        self.region.store_release(superblock::DIRECTORY_DEPTH, depth as u64);
    }

    /// Lets the headers of a home answer for one more bit. True if it keeps its mark: it has overflow lines, whose keys will
    /// have room in the window when those of the target are gone from there.
    fn deepen_home(&self, split: &Split, home: u64) -> bool {
        let from = LineNumber::new(split.source, home);
        let _held = self.stripes.lock(home);
        let keeps_mark = self.header(from).next() != 0;
        for line in [from].into_iter().chain(self.chain(from)) {
            let deepened = self.header(line).deepened();
            self.store_header(line, deepened.with_moving(keeps_mark && !mutant(Mutant::TidyUnmarked)));
        }
        if home + 1 == HOMES {
            // The last home line is nobody's home.
            self.store_header(from.next(), self.header(from.next()).deepened());
        }
        keeps_mark
    }

    /// Clears the slots of a home that were copied: they name the same blocks as slots of the target. What is left in
    /// overflow lines moves to where there is room now, if the home is marked.
    fn clear_home(&self, split: &Split, home: u64, counters: &Counters) {
        let (from, to) = (LineNumber::new(split.source, home), LineNumber::new(split.target, home));
        let _held = self.stripes.lock(home);
        let copies: Vec<Slot> = self.lines(to).flat_map(|line| self.slots(line)).map(|at| at.slot).collect();
        let is_copied = |at: &At| !at.slot.is_empty() && copies.contains(&at.slot);
        let copied: Vec<At> = self.lines(from).flat_map(|line| self.slots(line)).filter(is_copied).collect();
        for at in copied {
            self.clear_slot(at, from, counters);
        }
        if self.header(from).is_moving() || mutant(Mutant::TidyUnmarked) {
            self.tidy_home(from, counters);
        }
    }

    /// Moves keys from overflow lines to free slots of the window, or of overflow lines before theirs. Overflow lines would
    /// else stay for a few keys each, be fewer for others with every split, and run out one day. Under the stripes; readers
    /// that pass both places at the wrong times find the home marked.
    fn tidy_home(&self, home: LineNumber, counters: &Counters) {
        let chain: Vec<LineNumber> = self.chain(home).collect();
        for (position, &line) in chain.iter().enumerate().rev() {
            let used: Vec<At> = self.slots(line).filter(|at| !at.slot.is_empty()).collect();
            for at in used {
                match self.room(home) {
                    Ok(room @ Room::Slot(free)) if !chain[position..].contains(&free.line) => {
                        self.store_slot(At { slot: at.slot, ..free }, room, home, counters);
                        self.clear_slot(at, home, counters);
                    }
                    _ => return,
                }
            }
        }
    }

    /// Takes the mark of a home away. Nobody but splits of this segment marks it.
    fn unmark_home(&self, split: &Split, home: u64) {
        let line = LineNumber::new(split.source, home);
        if self.header(line).is_moving() {
            let _held = self.stripes.lock(home);
            for line in [line].into_iter().chain(self.chain(line)) {
                self.store_header(line, self.header(line).with_moving(false));
            }
        }
    }

    /// Both segments are whole: writes go to the one or the other as to any.
    fn end_split(&self, split: &Split, counters: &Counters) {
        for segment in [split.source, split.target] {
            let state = self.index.state(segment);
            self.index.set_state(segment, State { depth: split.depth + 1, role: Role::Plain, ..state });
        }
        counters.add(Counter::Splits, 1);
        counters.sub(Counter::SplitsUnderWay, 1);
        tracing::debug!(
            source = split.source,
            target = split.target,
            depth = split.depth,
            "index segment split"
        );
    }

    /// No key will move any more.
    fn end_tidying(&self) -> Stage {
        self.expiry.note_split();
        Stage::Done
    }

    fn set_moved_homes(&self, split: &Split, moved_homes: u64) {
        let state = self.index.state(split.source);
        let role = Role::Source { target: split.target, moved_homes };
        self.index.set_state(split.source, State { role, ..state });
    }

    /// Headers are changed under the stripe of their line only.
    fn store_header(&self, line: LineNumber, header: Header) {
        if self.header(line) != header {
            self.region.store_release(line.word(), header.0);
        }
    }

    /// Hints at the blocks of a line: their keys are hashed soon.
    fn prefetch_blocks(&self, split: &Split, line: u64) {
        if line < HOME_LINES {
            for at in self.slots(LineNumber::new(split.source, line)).filter(|at| !at.slot.is_empty()) {
                self.region.prefetch(at.slot.place().word(), PREFETCH_WORDS);
            }
        }
    }
}

/// Writes the headers of an index segment without keys. Its slots and overflow lines are zero.
pub(super) fn write_lines(region: &kv_common::region::Words, segment: u64, header: Header) {
    for line in 0..HOME_LINES {
        region.store(LineNumber::new(segment, line).word(), header.0);
    }
}
