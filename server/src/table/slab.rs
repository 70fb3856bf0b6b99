//! Blocks by size class, and runs of pages for those too large for a class.
//!
//! The classes are the codes of [`Span`] up to [`Span::SMALL_MAX`]. A class takes whole segments out of the pool and cuts them
//! into blocks that start at multiples of its size from the segment's start. Each segment has its own list of free blocks: one
//! without a block in use can be given to another use (see `space`), and one that is nearly so can be emptied. Runs lie in
//! segments of their own kind and may cross from one to the next; a segment all of whose pages are free can be given to
//! another use, too.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use kv_common::layout::{
    PAGE_BYTES, Place, Run, SEGMENT_GRANULES, SEGMENT_PAGES, SEGMENT_WORDS, SegmentEntry, SegmentKind, Slot,
    Span, superblock,
};
use kv_common::region::Words;
use kv_common::wire::Refusal;
use parking_lot::Mutex;

use super::hand::Hand;
use super::pages::Pages;
use super::pool::Pool;
use super::recency::Recency;
use super::space::Space;

/// Of so many segments a server that evicts keeps one free, at least one: for the index, and for classes without any.
const RESERVE_SHARE: u64 = 256;

/// The entry of a segment that holds nothing.
const FREE: SegmentEntry = SegmentEntry { kind: SegmentKind::Free, class: 0 };

/// Which blocks are free, and which segments.
pub(super) struct Slab {
    region: Words,
    /// By span.
    pub(super) classes: Box<[Mutex<Class>]>,
    /// By segment: where it is in the list of its class. Under that class's lock.
    positions: Box<[AtomicU32]>,
    pub(super) pages: Mutex<Pages>,
    /// Locked last.
    pool: Mutex<Pool>,
    /// Segments in the pool.
    free_segments: AtomicU64,
    /// Blocks that were retired and wait for the epochs.
    waiting: AtomicU64,
    /// Those of them that are large.
    waiting_runs: AtomicU64,
    /// Runs of values that are coming.
    drafts: AtomicI64,
    space: Arc<Space>,
    /// When blocks were used, if the server evicts.
    pub(super) recency: Option<Recency>,
    /// Free segments that classes with others, and large blocks, leave to those without.
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

/// What the pages of large segments are, for the check.
pub(super) struct PagesReport {
    /// The runs in use, by their first page, and the free ones.
    pub(super) taken: Vec<Run>,
    pub(super) free: Vec<Run>,
    pub(super) free_pages: u64,
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
            classes: (0..=Span::SMALL_MAX.0).map(|_| Mutex::default()).collect(),
            positions: (0..free_segments.end).map(|_| AtomicU32::new(0)).collect(),
            pages: Mutex::default(),
            free_segments: AtomicU64::new(free_segments.end - free_segments.start),
            pool: Mutex::new(Pool::new(free_segments)),
            waiting: AtomicU64::new(0),
            waiting_runs: AtomicU64::new(0),
            drafts: AtomicI64::new(0),
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

    /// A run of pages for a large block, which nobody can reach.
    ///
    /// # Errors
    /// [`Refusal::NoRun`].
    pub(super) fn take_run(&self, pages: u64) -> Result<Run, Refusal> {
        let mut runs = self.pages.lock();
        if let Some(run) = runs.take(pages) {
            return Ok(run);
        }
        let mut pool = self.pool.lock();
        let Some(segments) = pool.take_for(pages, self.reserve, &runs) else {
            let largest_bytes = pool.longest(self.reserve, &runs) * PAGE_BYTES;
            return Err(Refusal::NoRun { run_bytes: pages * PAGE_BYTES, largest_bytes });
        };
        self.free_segments.store(pool.len(), Ordering::Relaxed);
        drop(pool);
        let added = Run {
            first_page: segments.start * SEGMENT_PAGES,
            pages: (segments.end - segments.start) * SEGMENT_PAGES,
        };
        tracing::debug!(?segments, "segments for large blocks");
        let entry = SegmentEntry { kind: SegmentKind::Large, class: 0 };
        segments.for_each(|segment| self.store_entry(segment, entry));
        self.space.note_taken(self.free_segments(), self.all_segments());
        runs.add(added);
        Ok(runs.take(pages).expect("so many segments make a run that is long enough"))
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

    /// Gives a block back that nobody can reach, or only readers that judge what they read. Wakes who makes segments free if
    /// that emptied one while they are scarce.
    pub(super) fn give_back(&self, span: Span, place: Place) {
        if self.put_back(span, place) {
            self.space.note_empty_segment(self.is_scarce());
        }
    }

    /// True if its segment has no block in use now, or, for a large block, a segment all of whose pages are free.
    fn put_back(&self, span: Span, place: Place) -> bool {
        if span.is_large() {
            let run = Run::at(place, 0).expect("a large block starts with a page");
            return self.pages.lock().give_back(run.first_page);
        }
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
    pub(super) fn note_waiting(&self, slot: Slot) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.waiting_runs.fetch_add(u64::from(slot.span().is_large()), Ordering::Relaxed);
    }

    /// Gives a block back that was noted as waiting. As [`Slab::give_back`].
    pub(super) fn give_back_waiting(&self, slot: Slot) {
        self.give_back(slot.span(), slot.place());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.waiting_runs.fetch_sub(u64::from(slot.span().is_large()), Ordering::Relaxed);
    }

    /// Notes that so many runs more, or less, are being filled part by part.
    pub(super) fn note_draft(&self, more: i64) {
        self.drafts.fetch_add(more, Ordering::Relaxed);
    }

    /// Runs that are being filled part by part.
    pub(super) fn drafts(&self) -> u64 {
        self.drafts.load(Ordering::Relaxed) as u64
    }

    /// Blocks that wait for the epochs.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Large blocks that wait for the epochs.
    pub(super) fn waiting_runs(&self) -> u64 {
        self.waiting_runs.load(Ordering::Relaxed)
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

    /// The pages of large segments.
    pub(super) fn report_pages(&self) -> PagesReport {
        let pages = self.pages.lock();
        PagesReport {
            taken: pages.taken().collect(),
            free: pages.free().collect(),
            free_pages: pages.free_pages(),
        }
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
        let segment = if entry.kind == SegmentKind::Index { pool.take_first() } else { pool.take_last() }?;
        self.free_segments.store(pool.len(), Ordering::Relaxed);
        drop(pool);
        self.store_entry(segment, entry);
        self.space.note_taken(self.free_segments(), self.all_segments());
        let (kind, block_bytes) = (entry.kind, Span(entry.class).bytes());
        tracing::debug!(segment, ?kind, block_bytes, "segment taken");
        Some(segment)
    }

    /// Takes this segment out of the pool. False if it is not there.
    pub(super) fn take_free(&self, segment: u64) -> bool {
        let mut pool = self.pool.lock();
        let is_taken = pool.take(segment);
        self.free_segments.store(pool.len(), Ordering::Relaxed);
        is_taken
    }

    /// The segments of the pool.
    pub(super) fn free_list(&self) -> Vec<u64> {
        self.pool.lock().iter().collect()
    }

    /// Segments of the region, those of the superblock and the index included.
    pub(super) fn all_segments(&self) -> u64 {
        self.positions.len() as u64
    }

    /// Puts a segment into the pool, which is all zero and which no reader can be led to. Called once LEASE is over since the
    /// place epoch was raised after it was emptied.
    pub(super) fn give_segment_back(&self, segment: u64) {
        let mut pool = self.pool.lock();
        pool.give_back(segment);
        self.free_segments.store(pool.len(), Ordering::Relaxed);
    }

    /// Takes segments without a block in use out of their classes, and such whose pages are all free if `takes_pages`, at most so
    /// many. They are nobody's then, and their words are still what they were.
    pub(super) fn take_empty(&self, max: usize, takes_pages: bool) -> Vec<Emptied> {
        let mut taken = Vec::new();
        for (code, class) in self.classes.iter().enumerate() {
            let (mut class, span) = (class.lock(), Span(code as u8));
            while taken.len() < max {
                let Some(position) = class.segments.iter().position(|cut| cut.used == 0) else { break };
                taken.push(self.remove(&mut class, position, span));
            }
        }
        let mut pages = self.pages.lock();
        while takes_pages
            && taken.len() < max
            && let Some(segment) = pages.take_segment()
        {
            self.store_entry(segment, FREE);
            taken.push(Emptied { segment, used_words: SEGMENT_WORDS });
        }
        taken
    }

    /// Takes this one out of its class. None if a block of it is in use.
    pub(super) fn take_emptied(&self, candidate: Candidate) -> Option<Emptied> {
        let mut class = self.classes[candidate.span.0 as usize].lock();
        let position = self.position(candidate.segment);
        let is_empty = class.segments[position].used == 0;
        is_empty.then(|| self.remove(&mut class, position, candidate.span))
    }

    /// Takes a segment without a block in use out of its class.
    fn remove(&self, class: &mut Class, position: usize, span: Span) -> Emptied {
        let cut = class.segments.swap_remove(position);
        if let Some(moved) = class.segments.get(position) {
            self.positions[moved.segment as usize].store(position as u32, Ordering::Relaxed);
        }
        class.open.retain(|&segment| segment != cut.segment);
        self.store_entry(cut.segment, FREE);
        Emptied { segment: cut.segment, used_words: cut.uncut as usize * span.words() }
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

    pub(super) fn store_entry(&self, segment: u64, entry: SegmentEntry) {
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
