//! Blocks by size class, and runs of pages for those too large for a class.
//!
//! The classes are the codes of [`Span`] up to [`Span::SMALL_MAX`]. A class takes whole segments out of the pool and cuts them
//! into blocks that start at multiples of its size from the segment's start. Runs lie in segments of their own kind and may
//! cross from one to the next. Segments keep their kind and class for now: a class that was emptied keeps its blocks for later
//! keys of the same size, and pages are for large blocks of any size.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use kv_common::layout::{
    PAGE_BYTES, Place, Run, SEGMENT_GRANULES, SEGMENT_PAGES, SegmentEntry, SegmentKind, Slot, Span,
    superblock,
};
use kv_common::region::Words;
use kv_common::wire::Refusal;
use parking_lot::Mutex;

use super::pages::Pages;
use super::pool::Pool;

/// Which blocks are free, and which segments.
pub(super) struct Slab {
    region: Words,
    /// By span.
    classes: Box<[Mutex<Class>]>,
    pages: Mutex<Pages>,
    /// Locked last.
    pool: Mutex<Pool>,
    /// Blocks that were retired and wait for the epochs.
    waiting: AtomicU64,
    /// Runs of values that are coming.
    drafts: AtomicI64,
    /// No segment is free: what is freed is what there is.
    is_scarce: AtomicBool,
}

/// The blocks of one size.
#[derive(Default)]
struct Class {
    /// Free blocks; the last one freed is taken first, since it may still be in a cache.
    free: Vec<Place>,
    /// The part of the newest segment that was never used, in granules.
    uncut_start: u64,
    uncut_end: u64,
    segments: u64,
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
    /// Blocks never used, of the newest segment.
    pub(super) uncut_blocks: u64,
    pub(super) free: Vec<Place>,
}

/// Blocks that a segment of class `span` is cut into.
pub(super) fn blocks_per_segment(span: Span) -> u64 {
    SEGMENT_GRANULES / span.granules()
}

impl Slab {
    /// A slab whose pool is `free_segments`.
    pub(super) fn new(region: &Words, free_segments: std::ops::Range<u64>) -> Slab {
        Slab {
            region: region.clone(),
            classes: (0..=Span::SMALL_MAX.0).map(|_| Mutex::default()).collect(),
            pages: Mutex::default(),
            pool: Mutex::new(Pool::new(free_segments)),
            waiting: AtomicU64::new(0),
            drafts: AtomicI64::new(0),
            is_scarce: AtomicBool::new(false),
        }
    }

    /// A block of class `span`, which nobody can reach; `None` if there is none and no segment is left to cut.
    pub(super) fn take(&self, span: Span) -> Option<Place> {
        let mut class = self.classes[span.0 as usize].lock();
        if let Some(place) = class.free.pop() {
            return Some(place);
        }
        if class.uncut_start == class.uncut_end {
            let segment = self.take_segment(span)?;
            class.segments += 1;
            class.uncut_start = segment * SEGMENT_GRANULES;
            class.uncut_end = class.uncut_start + blocks_per_segment(span) * span.granules();
        }
        let place = Place(class.uncut_start);
        class.uncut_start += span.granules();
        Some(place)
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
        let Some(segments) = pool.take_for(pages, &runs) else {
            let largest_bytes = pool.longest(&runs) * PAGE_BYTES;
            return Err(Refusal::NoRun { run_bytes: pages * PAGE_BYTES, largest_bytes });
        };
        self.is_scarce.store(pool.len() == 0, Ordering::Relaxed);
        drop(pool);
        let added = Run {
            first_page: segments.start * SEGMENT_PAGES,
            pages: (segments.end - segments.start) * SEGMENT_PAGES,
        };
        tracing::debug!(?segments, "segments for large blocks");
        segments.for_each(|segment| self.set_entry(segment, SegmentKind::Large, 0));
        runs.add(added);
        Ok(runs.take(pages).expect("so many segments make a run that is long enough"))
    }

    /// Gives a block back that nobody can reach, or only readers that judge what they read.
    pub(super) fn give_back(&self, span: Span, place: Place) {
        if span.is_large() {
            let run = Run::at(place, 0).expect("a large block starts with a page");
            return self.pages.lock().give_back(run.first_page);
        }
        self.classes[span.0 as usize].lock().free.push(place);
    }

    /// Notes a block that will come back through [`Slab::give_back_waiting`].
    pub(super) fn note_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a block back that was noted as waiting.
    pub(super) fn give_back_waiting(&self, slot: Slot) {
        self.give_back(slot.span(), slot.place());
        self.waiting.fetch_sub(1, Ordering::Relaxed);
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

    /// True once the pool is empty. Segments do not come back to it.
    pub(super) fn is_scarce(&self) -> bool {
        self.is_scarce.load(Ordering::Relaxed)
    }

    pub(super) fn free_segments(&self) -> u64 {
        self.pool.lock().len()
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
            ClassReport {
                span,
                segments: class.segments,
                uncut_blocks: (class.uncut_end - class.uncut_start) / span.granules().max(1),
                free: class.free.clone(),
            }
        });
        classes.filter(|class| class.segments > 0).collect()
    }

    /// Takes a segment out of the pool. The segment table says so before anything of it is used.
    #[cold]
    fn take_segment(&self, span: Span) -> Option<u64> {
        let mut pool = self.pool.lock();
        let segment = pool.take()?;
        self.is_scarce.store(pool.len() == 0, Ordering::Relaxed);
        drop(pool);
        self.set_entry(segment, SegmentKind::Blocks, span.0);
        tracing::debug!(segment, block_bytes = span.bytes(), "segment cut into blocks");
        Some(segment)
    }

    fn set_entry(&self, segment: u64, kind: SegmentKind, class: u8) {
        let entry = SegmentEntry { kind, class };
        self.region.store_release(superblock::SEGMENT_TABLE + segment as usize, entry.encode());
    }
}
