//! Blocks by size class.
//!
//! The classes are the codes of [`Span`]. A class takes whole segments out of the pool and cuts them into blocks that
//! start at multiples of its size from the segment's start; a class above 1 MiB gets one block out of a segment.
//! Segments keep their class for now: a class that was emptied keeps its blocks for later keys of the same size.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kv_common::layout::{
    Place, SEGMENT_GRANULES, SegmentEntry, SegmentKind, Slot, Span, span_max, superblock,
};
use kv_common::region::Words;
use parking_lot::Mutex;

/// Which blocks are free, and which segments.
pub(super) struct Slab {
    region: Words,
    /// By span.
    classes: Box<[Mutex<Class>]>,
    /// Free segments, ascending. The index takes the lowest, blocks the highest: then lines have dense numbers, and a
    /// client's cache, a direct-mapped array, can mirror the index.
    pool: Mutex<VecDeque<u64>>,
    /// Blocks that were retired and wait for the epochs.
    waiting: AtomicU64,
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
            classes: (0..=span_max().0).map(|_| Mutex::default()).collect(),
            pool: Mutex::new(free_segments.collect()),
            waiting: AtomicU64::new(0),
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
            let segment = self.take_segment(SegmentEntry { kind: SegmentKind::Blocks, class: span.0 })?;
            class.segments += 1;
            class.uncut_start = segment * SEGMENT_GRANULES;
            class.uncut_end = class.uncut_start + blocks_per_segment(span) * span.granules();
        }
        let place = Place(class.uncut_start);
        class.uncut_start += span.granules();
        Some(place)
    }

    /// Gives a block back that nobody can reach, or only readers that judge what they read.
    pub(super) fn give_back(&self, span: Span, place: Place) {
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

    /// Blocks that wait for the epochs.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// True once the pool is empty. Segments do not come back to it.
    pub(super) fn is_scarce(&self) -> bool {
        self.is_scarce.load(Ordering::Relaxed)
    }

    pub(super) fn free_segments(&self) -> u64 {
        self.pool.lock().len() as u64
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
    pub(super) fn take_segment(&self, entry: SegmentEntry) -> Option<u64> {
        let mut pool = self.pool.lock();
        let segment = if entry.kind == SegmentKind::Index { pool.pop_front() } else { pool.pop_back() }?;
        self.is_scarce.store(pool.is_empty(), Ordering::Relaxed);
        drop(pool);
        self.region.store_release(superblock::SEGMENT_TABLE + segment as usize, entry.encode());
        let (kind, block_bytes) = (entry.kind, Span(entry.class).bytes());
        tracing::debug!(segment, ?kind, block_bytes, "segment taken");
        Some(segment)
    }
}
