//! Segments go from one use to another.
//!
//! A class whose values were deleted keeps segments with few blocks in use, or none. Pages of large blocks are free or in use,
//! and segments with free pages alone are empty; runs of pages are not moved. When free segments get few, one thread
//! of the server *empties* segments: it moves the blocks that are in use to other segments of their class. An empty segment
//! is not free yet. Readers may hold places in it, and whatever is written there next could be bytes that a client chose,
//! shaped like a valid block. So:
//!
//! 1. No slot names a block of it, and no thread of the server looks at one: every block has come back, through the epochs.
//! 2. The place epoch is raised: from now on no reader learns a place under the old one.
//! 3. LEASE and a margin pass: whoever has not noticed by then does not accept a block any more before it has read the epoch
//!    anew, and then drops its places.
//! 4. The segment is zeroed and free.
//!
//! If the server evicts, a few segments are kept free: for index segments to be split, and for the first value of a size.
//! For them, and for classes that evict what was used lately while others keep what was used long ago, the segment that is
//! cheapest to lose is emptied by eviction; and neighbouring ones for a large value that finds no room among others (see
//! `clear`).
//!
//! A write that finds no room meanwhile waits for it, if there is something to wait for (see `waiting`); its session
//! takes no other request, and others go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use kv_common::adversary::{Mutant, mutant};
use kv_common::block;
use kv_common::layout::{Counter, Place, SEGMENT_WORDS, Slot, superblock};
use kv_common::limits::LEASE_NS;
use kv_common::region::bytes_of;
use parking_lot::Mutex;

use super::clear::Clearing;
use super::counters::Counters;
use super::hand::Loser;
use super::lookup::{At, HeldKey};
use super::put::Payload;
use super::slab::{Candidate, Emptied};
use super::upkeep::{Signal, Upkeep, by_any_clock};
use super::waiting::Want;
use super::worker::grown;
use super::{Table, Worker};

/// Of so many segments one is to be free.
const FREE_SHARE: u64 = 64;
/// When there is none, one of so many is to be, ...
const BATCH_SHARE: u64 = 4;
/// ... and so many at least: a batch takes the time of a lease, whatever is in it.
const BATCH_MIN: u64 = 4;
/// A segment is emptied early if so many percent of it are in use at most, ...
const EARLY_PERCENT_MAX: u64 = 50;
/// ... and when there is none left, if so many are.
const LATE_PERCENT_MAX: u64 = 94;
/// A class gives a segment to one that evicts if its own blocks were not used for longer by so many doublings.
const AGE_CLASSES_APART: u32 = 2;
/// Blocks that are moved before others get their turn.
const BLOCKS_PER_STEP: usize = 64;
/// Passes over a segment before it is left as it is: some block of it does not come back.
const PASSES_MAX: u32 = 64;
/// Between two passes.
const PASS_PAUSE_NS: u64 = 1_000_000;

/// What writes and the keeper of the space tell each other.
#[derive(Default)]
pub(super) struct Space {
    pub(super) signal: Arc<Signal>,
    /// Writes that have found no room so far.
    pub(super) asked: AtomicU64,
    /// Of those, as many as had asked when it turned out that nothing can be made free.
    pub(super) refused: AtomicU64,
    /// The same when enough were free.
    pub(super) served: AtomicU64,
    /// Segments that are empty and not free yet.
    quarantined: AtomicU64,
    /// Of a class that evicts: 1 and the age class of what it has evicted; 0 for none since the last look.
    hungry: AtomicU64,
    /// When that was noted last, in seconds.
    hungry_s: AtomicU64,
    /// Large values of a server that evicts that wait for a run.
    pub(super) wants: Mutex<Vec<Want>>,
}

impl Space {
    /// A segment has no block in use any more.
    pub(super) fn note_empty_segment(&self, is_scarce: bool) {
        if is_scarce {
            self.signal.set();
        }
    }

    /// A segment was taken; so many are free now, of so many in all.
    pub(super) fn note_taken(&self, free_segments: u64, all_segments: u64) {
        if free_segments < (all_segments / FREE_SHARE).max(1) {
            self.signal.set();
        }
    }

    /// A class evicts blocks of that age. Noted once in a second.
    pub(super) fn note_hungry(&self, age_class: u32, now_s: u64) {
        if self.hungry_s.swap(now_s, Ordering::Relaxed) != now_s {
            self.hungry.store(1 + u64::from(age_class), Ordering::Relaxed);
            self.signal.set();
        }
    }

    /// What was noted since the last call.
    fn take_hungry(&self) -> Option<u32> {
        self.hungry.swap(0, Ordering::Relaxed).checked_sub(1).map(|age_class| age_class as u32)
    }
}

impl Table {
    /// What wakes whoever calls [`SpaceKeeper::step`].
    pub fn space_signal(&self) -> &Arc<Signal> {
        &self.space.signal
    }

    /// Segments that are empty and not free yet.
    pub(super) fn quarantined_segments(&self) -> u64 {
        self.space.quarantined.load(Ordering::Relaxed)
    }

    pub(super) fn all_segments(&self) -> u64 {
        self.slab.all_segments()
    }

    /// How many more segments should be free. Of those that are empty so many will not be.
    fn lacks_segments(&self, for_runs: u64) -> u64 {
        let there = (self.free_segments() + self.quarantined_segments()).saturating_sub(for_runs);
        if self.evicts() {
            return self.slab.reserve().saturating_sub(there);
        }
        let all = self.all_segments();
        let [asked, refused, served] = [&self.space.asked, &self.space.refused, &self.space.served]
            .map(|count| count.load(Ordering::Relaxed));
        let is_wanted = asked > refused.max(served);
        let wanted = if is_wanted { (all / BATCH_SHARE).max(BATCH_MIN) } else { (all / FREE_SHARE).max(1) };
        wanted.saturating_sub(there)
    }
}

/// The one that makes segments free. It writes the table as a worker does, in a counter page of its own.
pub struct SpaceKeeper {
    pub(super) worker: Worker,
    pub(super) emptying: Option<Emptying>,
    /// Empty segments whose readers have not been told yet.
    pub(super) empty: Vec<Emptied>,
    pub(super) quarantine: Option<Quarantine>,
    /// Those that are made free for a large block: while there are any, no others are emptied.
    pub(super) clearing: Option<Clearing>,
    /// Until then no segment is taken from large blocks.
    pub(super) pages_kept_until_ns: u64,
    /// The class that segments are made free for now evicts blocks of this age class.
    hungry: Option<u32>,
}

/// A segment that is being emptied.
pub(super) struct Emptying {
    candidate: Candidate,
    /// What cannot be moved is evicted.
    evicts: bool,
    places: Vec<Place>,
    passes: u32,
    not_before_ns: u64,
    /// Its blocks may go to a segment that was free before.
    may_cut: bool,
}

impl Emptying {
    /// Of what has room elsewhere in its class.
    fn new(candidate: Candidate) -> Emptying {
        let places = candidate.places().collect();
        Emptying { candidate, evicts: false, places, passes: 0, not_before_ns: 0, may_cut: false }
    }

    /// Of whatever it takes.
    pub(super) fn by_eviction(candidate: Candidate) -> Emptying {
        Emptying { evicts: true, ..Emptying::new(candidate) }
    }
}

/// Segments that become free at a moment of the table's clock.
pub(super) struct Quarantine {
    segments: Vec<Emptied>,
    /// Those that are large blocks' then.
    pub(super) clearing: Option<Clearing>,
    until_ns: u64,
}

impl SpaceKeeper {
    /// The keeper of `table`. There is one.
    pub fn new(table: &Arc<Table>) -> SpaceKeeper {
        let worker = Worker::with_counters(table, Counters::of_space(&table.region), None);
        SpaceKeeper {
            worker,
            emptying: None,
            empty: Vec::new(),
            quarantine: None,
            clearing: None,
            pages_kept_until_ns: 0,
            hungry: None,
        }
    }

    /// Does a small part of what there is to do.
    pub fn step(&mut self) -> Upkeep {
        let now_ns = self.table().monotonic_ns();
        if let Some(quarantine) = self.quarantine.take_if(|quarantine| quarantine.until_ns <= now_ns) {
            self.release(quarantine);
            return Upkeep::Busy;
        }
        if let Some(emptying) = self.emptying.take() {
            return self.go_on(emptying, now_ns);
        }
        if self.clear_next(now_ns) {
            return Upkeep::Busy;
        }
        // Half of what is lacking at a time: who waits is served sooner.
        let lacking = self.table().lacks_segments(self.for_runs()).saturating_sub(self.empty.len() as u64);
        let asked = self.table().space.asked.load(Ordering::Relaxed);
        if lacking > 0 && self.find_more(lacking) || lacking == 0 && self.feed_hungry() {
            return Upkeep::Busy;
        }
        match &self.quarantine {
            None if !self.empty.is_empty() => {
                self.begin_quarantine();
                Upkeep::Busy
            }
            Some(quarantine) => Upkeep::WaitNs(quarantine.until_ns - now_ns),
            // What large blocks have lost is on its way back, or they are not to lose anything yet.
            None if lacking > 0
                && self.table().evicts()
                && (self.table().slab.waiting_runs() > 0 || !self.may_take_pages()) =>
            {
                self.worker.reclaim();
                Upkeep::WaitNs(PASS_PAUSE_NS)
            }
            None => {
                let space = &self.table().space;
                // Whoever asked before this look is told if there is nothing.
                let answer = if lacking > 0 { &space.refused } else { &space.served };
                answer.fetch_max(asked, Ordering::Relaxed);
                space.until_want_ns(now_ns).map_or(Upkeep::Idle, Upkeep::WaitNs)
            }
        }
    }

    pub(super) fn table(&self) -> &Table {
        &self.worker.table
    }

    /// Takes empty segments, or begins to empty one.
    fn find_more(&mut self, lacking: u64) -> bool {
        self.find_unneeded(lacking) || self.give_up_one(0)
    }

    /// Makes a few segments free for a class that evicts what was used lately, if another has blocks that were not used
    /// for much longer.
    fn feed_hungry(&mut self) -> bool {
        let segments_max = (self.table().all_segments() / FREE_SHARE).max(1);
        if self.quarantine.is_some() || self.empty.len() as u64 >= segments_max {
            return false;
        }
        if self.empty.is_empty() {
            self.hungry = self.table().space.take_hungry();
        }
        self.hungry
            .is_some_and(|age_class| self.find_unneeded(1) || self.give_up_one(age_class + AGE_CLASSES_APART))
    }

    /// Begins to empty the segment that is cheapest to lose, if its blocks are so old.
    fn give_up_one(&mut self, age_class_min: u32) -> bool {
        let cheapest = self.table().slab.cheapest(self.table().now_s());
        let Some(aged) = cheapest.filter(|aged| aged.age_class >= age_class_min) else { return false };
        match aged.loser {
            Loser::Class(candidate) => {
                self.begin(Emptying::by_eviction(candidate));
                true
            }
            Loser::Large(_) if !self.may_take_pages() => false,
            Loser::Large(segment) => {
                let is_getting_on = self.worker.evict_pages_of(segment);
                self.take_empty(1) || is_getting_on && self.table().slab.waiting_runs() == 0
            }
        }
    }

    /// Takes segments without a block in use, or begins to empty one whose blocks have room elsewhere.
    fn find_unneeded(&mut self, lacking: u64) -> bool {
        if self.take_empty(lacking) {
            return true;
        }
        let Some(candidate) = self.table().slab.emptiest() else { return false };
        let is_late = self.table().free_segments() == 0 && !self.table().evicts();
        let percent_max = if is_late { LATE_PERCENT_MAX } else { EARLY_PERCENT_MAX };
        if candidate.used_granules() * 100 > kv_common::layout::SEGMENT_GRANULES * percent_max {
            return false;
        }
        self.begin(Emptying::new(candidate));
        true
    }

    fn take_empty(&mut self, max: u64) -> bool {
        let taken = self.table().slab.take_empty(max as usize, self.may_take_pages());
        self.note_quarantined(taken.len() as u64);
        self.empty.extend(&taken);
        !taken.is_empty()
    }

    fn begin(&mut self, emptying: Emptying) {
        self.table().slab.close(emptying.candidate);
        self.emptying = Some(emptying);
    }

    /// Begins to empty any segment of blocks, whether segments are lacking or not; by eviction if the server evicts. False if
    /// there is none, or another is being emptied.
    #[cfg(feature = "adversary")]
    pub fn empty_any(&mut self, draw: usize) -> bool {
        let Some(candidate) =
            self.table().slab.any(draw).filter(|_| self.emptying.is_none() && self.clearing.is_none())
        else {
            return false;
        };
        let evicts = self.table().evicts();
        self.begin(Emptying { may_cut: !evicts, evicts, ..Emptying::new(candidate) });
        true
    }

    pub(super) fn note_quarantined(&self, segments: u64) {
        self.table().space.quarantined.fetch_add(segments, Ordering::Relaxed);
    }

    /// Moves some blocks. The segment is empty when all have come back, through the epochs.
    fn go_on(&mut self, mut emptying: Emptying, now_ns: u64) -> Upkeep {
        if now_ns < emptying.not_before_ns {
            let wait_ns = emptying.not_before_ns - now_ns;
            self.emptying = Some(emptying);
            return Upkeep::WaitNs(wait_ns);
        }
        let (mut moved, mut has_room) = (0, true);
        while moved < BLOCKS_PER_STEP
            && has_room
            && let Some(place) = emptying.places.pop()
        {
            has_room = self.worker.move_block(place, emptying.candidate, emptying.may_cut);
            if !has_room && emptying.evicts {
                // If it has gone meanwhile, the better.
                let _: Option<u64> = self.worker.evict_block(place, emptying.candidate.span);
                has_room = true;
            }
            moved += 1;
        }
        let candidate = emptying.candidate;
        if !has_room {
            self.table().slab.reopen(candidate);
            return Upkeep::Busy;
        }
        if emptying.places.is_empty() {
            self.worker.reclaim();
            emptying.passes += 1;
            if let Some(clearing) = &mut self.clearing {
                if let Some(emptied) = self.worker.table.slab.take_emptied(candidate) {
                    clearing.cleared.push(emptied);
                    self.note_quarantined(1);
                    return Upkeep::Busy;
                }
            } else if self.table().slab.used_of(candidate) == 0 {
                // Another empty one may be taken in its place: then it serves its class again.
                self.table().slab.reopen(candidate);
                self.take_empty(1);
                return Upkeep::Busy;
            }
            if emptying.passes == PASSES_MAX {
                self.table().slab.reopen(candidate);
                self.give_up_clearing();
                return Upkeep::Busy;
            }
            // Blocks that were being written, and those that others have not given back yet.
            emptying.places.extend(candidate.places());
            emptying.not_before_ns = now_ns + PASS_PAUSE_NS;
        }
        self.emptying = Some(emptying);
        Upkeep::Busy
    }

    pub(super) fn begin_quarantine(&mut self) {
        let table = self.table();
        let epoch = table.region.load(superblock::PLACE_EPOCH) + 1;
        if !mutant(Mutant::KeepPlaceEpoch) {
            table.region.store_release(superblock::PLACE_EPOCH, epoch);
        }
        // What was stored is visible to all before the clock is looked at.
        fence(Ordering::SeqCst);
        let lease_ns = if mutant(Mutant::ReuseWithoutLease) { 0 } else { by_any_clock(LEASE_NS) };
        let until_ns = table.monotonic_ns() + lease_ns;
        let (segments, clearing) = (std::mem::take(&mut self.empty), self.clearing.take());
        tracing::debug!(segments = segments.len(), for_run = ?clearing, epoch, "segments emptied");
        self.quarantine = Some(Quarantine { segments, clearing, until_ns });
    }

    fn release(&mut self, quarantine: Quarantine) {
        let table = self.table();
        let for_run = quarantine.clearing.as_ref().map_or(&[][..], |clearing| &clearing.cleared);
        for &Emptied { segment, used_words } in quarantine.segments.iter().chain(for_run) {
            for word in 0..used_words {
                table.region.store(segment as usize * SEGMENT_WORDS + word, 0);
            }
        }
        quarantine.segments.iter().for_each(|emptied| table.slab.give_segment_back(emptied.segment));
        let released = (quarantine.segments.len() + for_run.len()) as u64;
        table.space.quarantined.fetch_sub(released, Ordering::Relaxed);
        self.worker.counters.add(Counter::SegmentsReused, released);
        if let Some(clearing) = &quarantine.clearing {
            self.end_clearing(clearing);
        }
    }
}

impl Worker {
    /// Moves the block at `place`, if it is a present key's, to another segment of its class. False if there is no room.
    fn move_block(&mut self, place: Place, candidate: Candidate, may_cut: bool) -> bool {
        let table = Arc::clone(&self.table);
        let Some(HeldKey { _held, hash, home, at }) = table.hold_key_at(place, candidate.span) else {
            return true;
        };
        let span = candidate.span;
        let taken = if may_cut { table.slab.take(span) } else { table.slab.take_within(span) };
        let Some(new) = taken else { return false };
        let payload = self.payload_at(at);
        let version = table.version_of(place);
        self.store_draft(new, &payload);
        let moved = At { slot: Slot::new(hash.fingerprint(), span, new), ..at };
        // The same version at another place: whoever looks at the old one looks again.
        table.note_moved(at.slot, new);
        self.publish_moved(place, moved, table.twin(home, at), &payload, version);
        self.counters.add(Counter::BlocksMoved, 1);
        self.retire(at.slot);
        true
    }

    /// The payload of a present key's block, in this worker's private memory. Under the stripes.
    fn payload_at(&mut self, at: At) -> Payload {
        let lengths = self.table.lengths_of(at.slot.place());
        let payload_bytes = lengths.block_bytes() - 16;
        let words = grown(&mut self.block, payload_bytes.div_ceil(8));
        self.table.region.copy_out(at.slot.place().word() + 2, words);
        Payload {
            words: words.len(),
            hash: block::hash_of(&bytes_of(words)[..payload_bytes]),
            span: at.slot.span(),
            stored_bytes: at.slot.span().bytes(),
            data_bytes: lengths.data_bytes() as u64,
            expires_ns: self.table.expiry_of(at.slot.place()),
        }
    }
}
