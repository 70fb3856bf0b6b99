//! Blocks by size class.
//!
//! The classes are the codes of [`Span`]. A class takes whole segments out of the pool and cuts them into blocks that
//! start at multiples of its size from the segment's start. Each segment has its own list of free blocks: one without a
//! block in use can be given to another use (see `space`), and one that is nearly so can be emptied.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kv_common::layout::{
    Place, SEGMENT_GRANULES, SegmentEntry, SegmentKind, Slot, Span, span_max, superblock,
};
use kv_common::region::Words;
use parking_lot::Mutex;

use super::hand::Hand;
use super::recency::Recency;
use super::space::Space;

/// Of so many segments a server that evicts keeps one free, at least one: for the index, and for classes without any.
const RESERVE_SHARE: u64 = 256;

/// Which blocks are free, and which segments.
pub(super) struct Slab {
    region: Words,
    /// By span.
    pub(super) classes: Box<[Mutex<Class>]>,
    /// By segment: where it is in the list of its class. Under that class's lock.
    positions: Box<[AtomicU32]>,
    /// Free segments, ascending. The index takes the lowest, blocks the highest: then lines have dense numbers, and a
    /// client's cache, a direct-mapped array, can mirror the index.
    pool: Mutex<VecDeque<u64>>,
    /// Segments in the pool.
    free_segments: AtomicU64,
    /// Blocks that were retired and wait for the epochs.
    waiting: AtomicU64,
    space: Arc<Space>,
    /// When blocks were used, if the server evicts.
    pub(super) recency: Option<Recency>,
    /// Free segments that classes with others leave to those without.
    reserve: u64,
}

/// The blocks of one size.
#[derive(Default)]
pub(super) struct Class {
    pub(super) segments: Vec<Cut>,
    /// Segments that give blocks, the one that gives the next at the end.
    open: Vec<u64>,
    /// Where the search for blocks to evict goes on.
    pub(super) hand: Hand,
}

/// A segment that is cut into blocks. Blocks are named by their number in it.
pub(super) struct Cut {
    pub(super) segment: u64,
    /// Free blocks; the last one freed is taken first, since it may still be in a cache.
    free: Vec<u16>,
    /// Blocks from this one on were never used.
    pub(super) uncut: u32,
    /// Blocks in use, drafts and those on their way back included.
    pub(super) used: u32,
    /// It gives no blocks, since it is to be emptied.
    pub(super) is_closed: bool,
}

/// What a class holds, for the check.
pub(super) struct ClassReport {
    pub(super) span: Span,
    pub(super) segments: u64,
    /// Blocks never used.
    pub(super) uncut_blocks: u64,
    pub(super) free: Vec<Place>,
}

/// A segment without a block in use, and with none that will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Emptied {
    pub(super) segment: u64,
    /// Its words behind these were never stored to since it was free.
    pub(super) used_words: usize,
}

/// A segment that could be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) span: Span,
    pub(super) segment: u64,
    /// Blocks in use.
    pub(super) used: u64,
}

/// Blocks that a segment of class `span` is cut into.
pub(super) fn blocks_per_segment(span: Span) -> u64 {
    SEGMENT_GRANULES / span.granules()
}

const _: () = assert!(
    SEGMENT_GRANULES / 2 <= 1 << 16,
    "blocks of two granules, which no header fits into less than, have numbers of 16 bits"
);

impl Slab {
    /// A slab whose pool is `free_segments`; of a server that evicts if blocks have a `recency`.
    pub(super) fn new(
        region: &Words,
        free_segments: Range<u64>,
        space: &Arc<Space>,
        recency: Option<Recency>,
    ) -> Slab {
        let reserve = if recency.is_some() { (free_segments.end / RESERVE_SHARE).max(1) } else { 0 };
        Slab {
            region: region.clone(),
            classes: (0..=span_max().0).map(|_| Mutex::default()).collect(),
            positions: (0..free_segments.end).map(|_| AtomicU32::new(0)).collect(),
            free_segments: AtomicU64::new(free_segments.end - free_segments.start),
            pool: Mutex::new(free_segments.collect()),
            waiting: AtomicU64::new(0),
            space: Arc::clone(space),
            recency,
            reserve,
        }
    }

    /// A block of class `span`, which nobody can reach; `None` if there is none and no segment is left to cut, or only those
    /// in reserve, and the class has some.
    pub(super) fn take(&self, span: Span) -> Option<Place> {
        let mut class = self.classes[span.0 as usize].lock();
        if class.open.is_empty() {
            if self.is_scarce() && !class.segments.is_empty() {
                return None;
            }
            let segment = self.take_segment(SegmentEntry { kind: SegmentKind::Blocks, class: span.0 })?;
            self.positions[segment as usize].store(class.segments.len() as u32, Ordering::Relaxed);
            class.segments.push(Cut { segment, free: Vec::new(), uncut: 0, used: 0, is_closed: false });
            class.open.push(segment);
        }
        self.take_open(&mut class, span)
    }

    /// The same out of the segments that the class has.
    pub(super) fn take_within(&self, span: Span) -> Option<Place> {
        self.take_open(&mut self.classes[span.0 as usize].lock(), span)
    }

    fn take_open(&self, class: &mut Class, span: Span) -> Option<Place> {
        let segment = *class.open.last()?;
        let cut = &mut class.segments[self.position(segment)];
        let number = cut.free.pop().map_or_else(
            || {
                cut.uncut += 1;
                u64::from(cut.uncut - 1)
            },
            u64::from,
        );
        cut.used += 1;
        if !cut.has_room(span) {
            class.open.pop();
        }
        Some(Place(segment * SEGMENT_GRANULES + number * span.granules()))
    }

    /// Gives a block back that nobody can reach, or only readers that judge what they read. True if its segment has no
    /// block in use now.
    pub(super) fn give_back(&self, span: Span, place: Place) -> bool {
        let segment = place.segment();
        let mut class = self.classes[span.0 as usize].lock();
        let class = &mut *class;
        let cut = &mut class.segments[self.position(segment)];
        if !cut.is_closed && !cut.has_room(span) {
            class.open.push(segment);
        }
        cut.free.push((place.0 % SEGMENT_GRANULES / span.granules()) as u16);
        cut.used -= 1;
        cut.used == 0
    }

    fn position(&self, segment: u64) -> usize {
        self.positions[segment as usize].load(Ordering::Relaxed) as usize
    }

    /// Notes a block that will come back through [`Slab::give_back_waiting`].
    pub(super) fn note_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a block back that was noted as waiting. As [`Slab::give_back`].
    pub(super) fn give_back_waiting(&self, slot: Slot) -> bool {
        let is_empty = self.give_back(slot.span(), slot.place());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        is_empty
    }

    /// Blocks that wait for the epochs.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// True while the pool is empty, or holds the reserve alone: what is freed is what there is.
    pub(super) fn is_scarce(&self) -> bool {
        self.free_segments() <= self.reserve
    }

    /// Free segments that are to be there in any case.
    pub(super) fn reserve(&self) -> u64 {
        self.reserve
    }

    pub(super) fn free_segments(&self) -> u64 {
        self.free_segments.load(Ordering::Relaxed)
    }

    /// The classes that have segments.
    pub(super) fn report(&self) -> Vec<ClassReport> {
        let classes = self.classes.iter().enumerate().map(|(code, class)| {
            let (class, span) = (class.lock(), Span(code as u8));
            let place = |cut: &Cut, number: u16| {
                Place(cut.segment * SEGMENT_GRANULES + u64::from(number) * span.granules())
            };
            ClassReport {
                span,
                segments: class.segments.len() as u64,
                uncut_blocks: class.segments.iter().map(|cut| cut.uncut_blocks(span)).sum(),
                free: class
                    .segments
                    .iter()
                    .flat_map(|cut| cut.free.iter().map(move |&number| place(cut, number)))
                    .collect(),
            }
        });
        classes.filter(|class| class.segments > 0).collect()
    }

    /// Takes a segment out of the pool. The segment table says so before anything of it is used.
    #[cold]
    pub(super) fn take_segment(&self, entry: SegmentEntry) -> Option<u64> {
        let mut pool = self.pool.lock();
        let segment = if entry.kind == SegmentKind::Index { pool.pop_front() } else { pool.pop_back() }?;
        self.free_segments.store(pool.len() as u64, Ordering::Relaxed);
        drop(pool);
        self.store_entry(segment, entry);
        self.space.note_taken(self.free_segments(), self.positions.len() as u64);
        let (kind, block_bytes) = (entry.kind, Span(entry.class).bytes());
        tracing::debug!(segment, ?kind, block_bytes, "segment taken");
        Some(segment)
    }

    /// Puts a segment into the pool, which is all zero and which no reader can be led to. Called once LEASE is over since the
    /// place epoch was raised after it was emptied.
    pub(super) fn give_segment_back(&self, segment: u64) {
        let mut pool = self.pool.lock();
        let at = pool.partition_point(|&other| other < segment);
        pool.insert(at, segment);
        self.free_segments.store(pool.len() as u64, Ordering::Relaxed);
    }

    /// Takes segments without a block in use out of their classes, at most so many. They are nobody's then, and their words
    /// are still what they were.
    pub(super) fn take_empty(&self, max: usize) -> Vec<Emptied> {
        let mut taken = Vec::new();
        for (code, class) in self.classes.iter().enumerate() {
            let (mut class, span) = (class.lock(), Span(code as u8));
            while taken.len() < max {
                let Some(position) = class.segments.iter().position(|cut| cut.used == 0) else { break };
                let cut = class.segments.swap_remove(position);
                if let Some(moved) = class.segments.get(position) {
                    self.positions[moved.segment as usize].store(position as u32, Ordering::Relaxed);
                }
                class.open.retain(|&segment| segment != cut.segment);
                self.store_entry(cut.segment, SegmentEntry { kind: SegmentKind::Free, class: 0 });
                taken.push(Emptied { segment: cut.segment, used_words: cut.uncut as usize * span.words() });
            }
        }
        taken
    }

    /// The segment whose blocks in use are the smallest share of it, if its class has room for them elsewhere.
    pub(super) fn emptiest(&self) -> Option<Candidate> {
        let mut best: Option<Candidate> = None;
        for (code, class) in self.classes.iter().enumerate() {
            let (class, span) = (class.lock(), Span(code as u8));
            let open = class.segments.iter().filter(|cut| !cut.is_closed);
            let Some(cut) = open.clone().min_by_key(|cut| cut.used) else { continue };
            let blocks = blocks_per_segment(span);
            let room: u64 = open.map(|cut| blocks - u64::from(cut.used)).sum();
            let used = u64::from(cut.used);
            let candidate = Candidate { span, segment: cut.segment, used };
            if used > room - (blocks - used) {
                continue;
            }
            if best.is_none_or(|best| candidate.used_granules() < best.used_granules()) {
                best = Some(candidate);
            }
        }
        best
    }

    /// Any segment of blocks.
    #[cfg(feature = "adversary")]
    pub(super) fn any(&self, draw: usize) -> Option<Candidate> {
        let mut all = Vec::new();
        for (code, class) in self.classes.iter().enumerate() {
            let candidate = |cut: &Cut| Candidate {
                span: Span(code as u8),
                segment: cut.segment,
                used: u64::from(cut.used),
            };
            all.extend(class.lock().segments.iter().map(candidate));
        }
        (!all.is_empty()).then(|| all[draw % all.len()])
    }

    /// Lets a segment give no more blocks.
    pub(super) fn close(&self, candidate: Candidate) {
        let mut class = self.classes[candidate.span.0 as usize].lock();
        class.open.retain(|&segment| segment != candidate.segment);
        let position = self.position(candidate.segment);
        class.segments[position].is_closed = true;
    }

    /// Lets it give blocks again.
    pub(super) fn reopen(&self, candidate: Candidate) {
        let mut class = self.classes[candidate.span.0 as usize].lock();
        let cut = &mut class.segments[self.position(candidate.segment)];
        cut.is_closed = false;
        if cut.has_room(candidate.span) {
            class.open.insert(0, candidate.segment);
        }
    }

    /// Blocks in use of a closed segment.
    pub(super) fn used_of(&self, candidate: Candidate) -> u64 {
        let class = self.classes[candidate.span.0 as usize].lock();
        u64::from(class.segments[self.position(candidate.segment)].used)
    }

    fn store_entry(&self, segment: u64, entry: SegmentEntry) {
        self.region.store_release(superblock::SEGMENT_TABLE + segment as usize, entry.encode());
    }
}

impl Candidate {
    pub(super) fn used_granules(self) -> u64 {
        self.used * self.span.granules()
    }

    /// The places of its blocks.
    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        let first = self.segment * SEGMENT_GRANULES;
        (0..blocks_per_segment(self.span)).map(move |number| Place(first + number * self.span.granules()))
    }
}

impl Cut {
    fn uncut_blocks(&self, span: Span) -> u64 {
        blocks_per_segment(span) - u64::from(self.uncut)
    }

    fn has_room(&self, span: Span) -> bool {
        !self.free.is_empty() || self.uncut_blocks(span) > 0
    }
}
