//! Eviction: a write that finds no room makes some, if the server was started so.
//!
//! To readers and writers an eviction is a delete, at a moment that nobody asked for. It happens before a write takes
//! stripes, or in the thread that keeps the space, and takes those of the key that goes.
//!
//! For a block of a class others of that class go; for a large one, large ones that are neighbours. If there are none of these that
//! make a run, the thread that keeps the space makes one of segments of classes (see `clear`).

use std::sync::Arc;

use kv_common::hash::KeyHash;
use kv_common::layout::{
    Counter, EVICTED_AGES, PAGE_BYTES, Place, Run, SEGMENT_GRANULES, SegmentEntry, SegmentKind, Slot, Span,
    superblock,
};
use kv_common::wire::Refusal;

use super::hand::{ChosenRuns, age_class};
use super::lookup::HeldKey;
use super::recency::Recency;
use super::slab::blocks_per_segment;
use super::{Table, Worker};

/// Blocks that are evicted together at most, and their bytes: the writes that follow find room.
const BATCH_MAX: usize = 16;
/// See `BATCH_MAX`.
const BATCH_MAX_BYTES: u64 = 64 << 10;
/// Times that the hand is moved for a batch; from this one on it does not spare what is in use.
const ROUNDS_MAX: u32 = 32;
/// See `ROUNDS_MAX`.
const STRICT_ROUND: u32 = 16;
/// With so many blocks on their way back, it is not more blocks that are missing.
const WAITING_MAX: u64 = 64;

impl Worker {
    /// Makes room for a write that was refused. Called without stripes. False if nothing could be evicted for it.
    pub(super) fn make_room(&mut self, refusal: Refusal, hash: KeyHash) -> bool {
        if !self.table.evicts() {
            return false;
        }
        match refusal {
            Refusal::RegionFull { block_bytes, .. } => self.evict_class(Span::of_bytes(block_bytes as usize)),
            Refusal::NoRun { run_bytes, .. } => self.evict_runs(run_bytes / PAGE_BYTES),
            Refusal::IndexFull { .. } | Refusal::HomeFull { .. } => self.evict_near(hash),
            _ => false,
        }
    }

    /// Evicts some keys as a write of a block of so many bytes would that found no room. False if there are none.
    #[cfg(feature = "adversary")]
    pub fn evict(&mut self, block_bytes: u64) -> bool {
        let span = Span::of_bytes(block_bytes as usize);
        if span.is_large() {
            self.evict_runs(block_bytes.div_ceil(PAGE_BYTES))
        } else {
            self.evict_class(span)
        }
    }

    /// Evicts some blocks of a class.
    fn evict_class(&mut self, span: Span) -> bool {
        if self.table.slab.waiting() >= WAITING_MAX {
            return false;
        }
        let max = ((BATCH_MAX_BYTES / span.bytes()) as usize).clamp(1, BATCH_MAX);
        let now_s = self.table.now_s();
        for round in 0..ROUNDS_MAX {
            let Some(places) = self.table.slab.choose(span, max, round >= STRICT_ROUND, now_s) else {
                return false;
            };
            if self.evict_all(places.into_iter().map(|place| (place, span)), now_s) {
                return true;
            }
        }
        false
    }

    /// Evicts large blocks that are neighbours and make a run of so many pages. False if there are none; then the write waits, and
    /// one is made of other segments.
    fn evict_runs(&mut self, pages: u64) -> bool {
        if self.table.slab.waiting_runs() > 0 {
            // What has gone already may make the run.
            self.reclaim();
            return self.table.slab.waiting_runs() == 0;
        }
        let now_s = self.table.now_s();
        for round in 0..ROUNDS_MAX {
            match self.table.slab.choose_runs(pages, round >= STRICT_ROUND, now_s) {
                ChosenRuns::Runs(runs) => {
                    let blocks = runs.iter().map(|run| (run.place(), run.span()));
                    if self.evict_all(blocks, now_s) || runs.is_empty() {
                        return true;
                    }
                }
                ChosenRuns::Later => {}
                ChosenRuns::None => return false,
            }
        }
        false
    }

    /// Evicts these, as far as they are still there. False if none is.
    fn evict_all(&mut self, blocks: impl Iterator<Item = (Place, Span)>, now_s: u64) -> bool {
        let ages = blocks.filter_map(|(place, span)| self.evict_block(place, span));
        let ages: Vec<u64> = ages.collect();
        if ages.is_empty() {
            return false;
        }
        let mean_s = ages.iter().sum::<u64>() / ages.len() as u64;
        self.table.space.note_hungry(age_class(mean_s), now_s);
        self.reclaim();
        true
    }

    /// Evicts the large blocks that have pages of a segment; none if some that have gone already are not back. False if neither has
    /// gone any nor is one on its way back.
    pub(super) fn evict_pages_of(&mut self, segment: u64) -> bool {
        self.reclaim();
        if self.table.slab.waiting_runs() > 0 {
            return true;
        }
        let runs: Vec<Run> = self.table.slab.pages.lock().taken_in(segment).collect();
        let gone = runs.into_iter().filter_map(|run| self.evict_block(run.place(), run.span())).count();
        self.reclaim();
        gone > 0
    }

    /// Evicts the key among those whose slots the home of `hash` can have that was not used for the longest time.
    fn evict_near(&mut self, hash: KeyHash) -> bool {
        let table = Arc::clone(&self.table);
        let now_s = table.now_s();
        let home = table.index.home(hash);
        // Without the stripes lines may change meanwhile; whatever is found is judged again.
        let slots = table.lines(home).flat_map(|line| table.slots(line)).map(|at| at.slot);
        let used = |slot: Slot| {
            let known = table.recency()?.get(slot.span(), slot.place(), now_s)?;
            Some((!known.is_touched, known.age_s))
        };
        let known = slots.filter(|slot| !slot.is_empty()).filter_map(|slot| Some((used(slot)?, slot)));
        let oldest = known.max_by_key(|(used, _)| *used);
        oldest.is_some_and(|(_, slot)| self.evict_block(slot.place(), slot.span()).is_some())
    }

    /// Evicts the key whose block of class `span` is at `place`; none if no key has it. Returns how long it was not used,
    /// in seconds.
    pub(super) fn evict_block(&mut self, place: Place, span: Span) -> Option<u64> {
        let table = Arc::clone(&self.table);
        let slot = {
            let HeldKey { _held, home, at, .. } = table.hold_key_at(place, span)?;
            self.remove(at, home, Counter::Evictions, None).1
        };
        let known = table.recency()?.get(slot.span(), place, table.now_s());
        let age_s = known.map_or(0, |known| known.age_s);
        self.counters
            .add_word(superblock::EVICTED_AGES + age_class(age_s).min(EVICTED_AGES as u32 - 1) as usize, 1);
        self.retire(slot);
        Some(age_s)
    }

    /// Notes the places where a client found values. Whatever they are, blocks are touched at most.
    pub(crate) fn note_hits(&self, places: &[u8]) {
        let table = &self.table;
        let Some(recency) = table.recency() else { return };
        let now_s = table.now_s();
        let places = places.as_chunks::<8>().0.iter().map(|bytes| Place(u64::from_le_bytes(*bytes)));
        let mut touched = 0;
        for place in places {
            if let Some(span) = table.class_at(place) {
                recency.touch(span, place, now_s);
                touched += 1;
            }
        }
        self.counters.add(Counter::HitsReported, touched);
    }
}

impl Table {
    /// Whether the server evicts.
    pub(super) fn evicts(&self) -> bool {
        self.recency().is_some()
    }

    /// Where it is noted when blocks were used; none if the server does not evict.
    pub(super) fn recency(&self) -> Option<&Recency> {
        self.slab.recency.as_ref()
    }

    /// The table's clock in seconds.
    pub(super) fn now_s(&self) -> u64 {
        self.monotonic_ns() / 1_000_000_000
    }

    /// A key has a new block.
    pub(super) fn note_new(&self, slot: Slot) {
        if let Some(recency) = self.recency() {
            recency.begin(slot.span(), slot.place(), self.now_s());
        }
    }

    /// A key that was there has a new block.
    pub(super) fn note_renewed(&self, slot: Slot) {
        if let Some(recency) = self.recency() {
            let now_s = self.now_s();
            recency.begin(slot.span(), slot.place(), now_s);
            recency.touch(slot.span(), slot.place(), now_s);
        }
    }

    /// A key is used.
    pub(super) fn note_use(&self, slot: Slot) {
        if let Some(recency) = self.recency() {
            recency.touch(slot.span(), slot.place(), self.now_s());
        }
    }

    /// A key has another block of its class, and nobody has used it.
    pub(super) fn note_moved(&self, from: Slot, to: Place) {
        if let Some(recency) = self.recency() {
            recency.carry(from.span(), from.place(), to);
        }
    }

    /// The span by which [`Recency`] knows the block that starts at a place that a client names; none if none can start there.
    fn class_at(&self, place: Place) -> Option<Span> {
        if place.segment() >= self.all_segments() {
            return None;
        }
        let entry = self.region.load(superblock::SEGMENT_TABLE + place.segment() as usize);
        let entry = SegmentEntry::decode(entry)?;
        if entry.kind == SegmentKind::Large {
            return Run::at(place, 0).map(|_| Span::MAX);
        }
        let entry = Some(entry).filter(|entry| entry.kind == SegmentKind::Blocks)?;
        let (span, offset) = (Span(entry.class), place.0 % SEGMENT_GRANULES);
        let is_start = offset % span.granules() == 0 && offset / span.granules() < blocks_per_segment(span);
        is_start.then_some(span)
    }
}
