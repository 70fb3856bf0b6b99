//! The stores of a write, in their order.
//!
//! A reader may look at any block at any time, through a place that it learned at any time, and its READ brings words
//! from different moments. So:
//!
//! - **Never two live blocks of one key**, and none live that holds a value no longer true: an update kills the old
//!   block before the new one lives; a delete kills the block first of all. In between the key has no live block, and
//!   readers look again; they take nothing for absent, since the slot still names a block.
//! - **The slot is stored before the block lives**: whoever finds the new value by its place is not contradicted by
//!   someone who reads the index afterwards.
//! - **The store of word 0 is the moment of the write.** It is a release store, and so are those of slots, headers and
//!   marks: everything before it is visible to whoever sees it, on any machine. The reply leaves after it.
//!
//! # Payload and marks
//! A release store does not hold back what comes after it: on a weak machine payload words of an update in place may
//! become visible before the mark "not live" does. No fence is spent on this, because no reader relies on it. Whatever
//! mixture a READ brings, it is accepted only if the check in it is the hash of the payload in it *and of the word 0 in
//! it*. Old word 0 and any new payload or check word: the check is computed with the old version, which the new check is
//! not made of. New word 0 and any old word: likewise. All words old but the mark unseen: the READ fetched word 0
//! before the moment of the update, and the old value was the key's. All words new: the new value, which no reader
//! can see with its word 0 before that moment. The mark therefore only saves readers a wasted hash, and tells them why to
//! look again.
//!
//! A block that is used again holds a dead word 0, or zeros if it was never used, until it lives. The same argument
//! covers a reader that still sees its former word 0 there: that version is in no check written later.

use kv_common::adversary::{Mutant, mutant};
use kv_common::block::check_of;
use kv_common::layout::{Counter, Header, LineNumber, NOT_LIVE, Place, Slot};

use super::counters::Counters;
use super::lookup::{At, Room};
use super::put::Payload;
use super::{Table, Worker};

impl Worker {
    /// Writes a block that nobody can reach, not live and without its check.
    pub(super) fn store_draft(&self, place: Place, payload: &Payload) {
        self.table.region.store_release(place.word(), NOT_LIVE);
        self.store_payload(place, payload);
    }

    /// Publishes a new key whose block is a draft. True if its index segment is so full that it is to be split.
    pub(super) fn publish_insert(
        &self,
        at: At,
        room: Room,
        home: LineNumber,
        payload: &Payload,
        version: u64,
    ) -> bool {
        self.store_check(at.slot.place(), payload, version);
        if mutant(Mutant::LiveBeforeSlot) {
            self.make_live(at.slot.place(), version);
        }
        let is_full = self.table.store_slot(at, room, home, &self.counters);
        self.make_live(at.slot.place(), version);
        if is_full {
            self.table.want_split(at.line.segment());
        }
        is_full
    }

    /// Publishes a draft as the new block of a key whose block is at `old`; `twin` is the copy of its slot that a split
    /// under way has left.
    pub(super) fn publish_moved(
        &self,
        old: Place,
        new: At,
        twin: Option<At>,
        payload: &Payload,
        version: u64,
    ) {
        self.store_check(new.slot.place(), payload, version);
        let store_slot = || {
            for at in [Some(new), twin].into_iter().flatten() {
                self.table.region.store_release(at.word(), new.slot.0);
            }
        };
        if mutant(Mutant::LiveBeforeDead) {
            self.make_live(new.slot.place(), version);
            self.kill(old);
            store_slot();
        } else if mutant(Mutant::OldStaysAlive) {
            store_slot();
            self.make_live(new.slot.place(), version);
            self.kill(old);
        } else {
            self.kill(old);
            store_slot();
            self.make_live(new.slot.place(), version);
        }
    }

    /// Overwrites the block of a key.
    pub(super) fn publish_in_place(&self, at: At, payload: &Payload, version: u64) {
        let place = at.slot.place();
        self.kill(place);
        self.store_payload(place, payload);
        self.store_check(place, payload, version);
        self.make_live(place, version);
    }

    /// Makes a key absent. Its slot is free afterwards, and its `twin` if a split under way has left one, and so are empty
    /// overflow lines at the chain's tail.
    pub(super) fn publish_delete(&self, at: At, twin: Option<At>, home: LineNumber) {
        if !mutant(Mutant::ForgetTombstone) {
            self.kill(at.slot.place());
        }
        self.table.clear_slot(at, home, &self.counters);
        if let Some(twin) = twin {
            let old_home = LineNumber::new(twin.line.segment(), home.in_segment());
            self.table.clear_slot(twin, old_home, &self.counters);
        }
    }

    fn store_payload(&self, place: Place, payload: &Payload) {
        self.table.region.copy_in(place.word() + 2, &self.block[..payload.words]);
    }

    fn store_check(&self, place: Place, payload: &Payload, version: u64) {
        let check = check_of(payload.hash, version, place, self.table.view.table_id);
        self.table.region.store(place.word() + 1, check);
    }

    fn make_live(&self, place: Place, version: u64) {
        self.table.region.store_release(place.word(), version);
    }

    fn kill(&self, place: Place) {
        let version = self.table.version_of(place);
        self.table.region.store_release(place.word(), NOT_LIVE | version);
    }
}

impl Table {
    /// Stores the slot of a key that had none in this segment, and chains its line to the home if it is a new overflow
    /// line. True if the segment is so full by now that it should be split.
    pub(super) fn store_slot(&self, at: At, room: Room, home: LineNumber, counters: &Counters) -> bool {
        if let Room::BehindTail(tail) = room {
            // Until the link is stored nobody is led here, and the header of a free line sends strays away.
            let header = self.header(home).overflow_of(home.in_segment() as u16);
            self.region.store_release(at.word(), at.slot.0);
            self.region.store_release(at.line.word(), header.0);
            let linked = self.header(tail).with_next(at.line.in_segment() as u16);
            self.region.store_release(tail.word(), linked.0);
            counters.add(Counter::OverflowLines, 1);
        } else {
            self.region.store_release(at.word(), at.slot.0);
        }
        self.index.note_used(at.line)
    }

    /// Empties a slot that may be in an overflow line of `home`.
    pub(super) fn clear_slot(&self, at: At, home: LineNumber, counters: &Counters) {
        self.region.store_release(at.word(), Slot::EMPTY.0);
        self.index.note_freed(at.line);
        self.free_empty_overflow(home, counters);
    }

    /// Unlinks and frees empty overflow lines at the tail of the chain. Only there: a reader on its way along the chain
    /// then finds every line that it is led to still leading to all lines behind it. If a line were taken out of the
    /// middle and chained again at the tail, a reader that was led to its former position would miss those between.
    fn free_empty_overflow(&self, home: LineNumber, counters: &Counters) {
        let is_empty = |line| self.slots(line).all(|at| at.slot.is_empty());
        loop {
            let mut links = std::iter::once(home).chain(self.chain(home)).zip(self.chain(home));
            let unused = if mutant(Mutant::UnlinkMiddleOverflow) {
                links.find(|&(_, line)| is_empty(line))
            } else {
                links.last().filter(|&(_, line)| is_empty(line))
            };
            let Some((before, line)) = unused else { return };
            let (header, next) = (self.header(before), self.header(line).next());
            self.region.store_release(before.word(), header.with_next(next).0);
            self.region.store_release(line.word(), Header::FREE.0);
            self.index.give_overflow_back(line);
            counters.sub(Counter::OverflowLines, 1);
        }
    }
}
