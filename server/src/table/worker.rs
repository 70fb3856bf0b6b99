//! What one worker thread owns, and how blocks come back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam_epoch::LocalHandle;
use kv_common::layout::{Counter, Slot};

use super::Table;
use super::counters::Counters;
use super::upload::Upload;

/// Rounds of giving blocks back. Each takes several bags of retired blocks, so this many empty any backlog that a few
/// workers can build up between two sleeps.
const RECLAIM_ROUNDS_MAX: usize = 256;
/// Rounds without a block coming back, after which the rest is somebody else's to give: the epoch has advanced as often
/// as a retired block needs, unless another worker is pinned.
const RECLAIM_STALLED_MAX: usize = 4;

/// One thread's access to a table: requests go in, replies come out. Stays on its thread.
pub struct Worker {
    pub(super) table: Arc<Table>,
    pub(super) epoch: LocalHandle,
    pub(super) counters: Counters,
    /// Private memory for a block that is being made or read.
    pub(super) block: Vec<u64>,
    /// Private memory for a value out of the staging area.
    pub(crate) staged: Vec<u64>,
    /// Private memory for a value that is made of the one before.
    pub(super) changed: Vec<u8>,
    /// Bytes of the whole value that was touched last, of which `changed` has the beginning.
    pub(super) touched_bytes: usize,
    /// Large values that are coming, by session.
    pub(super) uploads: HashMap<u64, Upload>,
    index: Option<usize>,
}

impl Worker {
    /// Worker `index` of `table`.
    ///
    /// Panics if the table was made with fewer workers, or if the worker exists already: its counters have one writer.
    pub fn new(table: &Arc<Table>, index: usize) -> Worker {
        assert!(index < table.workers, "worker {index} of a table with {} workers", table.workers);
        let taken = table.workers_taken.fetch_or(1 << index, Ordering::Relaxed);
        assert!(taken & 1 << index == 0, "worker {index} exists already");
        Worker::with_counters(table, Counters::new(&table.region, index), Some(index))
    }

    /// One with another counter page, if it has no `index`.
    pub(super) fn with_counters(table: &Arc<Table>, counters: Counters, index: Option<usize>) -> Worker {
        Worker {
            table: Arc::clone(table),
            epoch: table.epochs.register(),
            counters,
            block: Vec::new(),
            staged: Vec::new(),
            changed: Vec::new(),
            touched_bytes: 0,
            uploads: HashMap::new(),
            index,
        }
    }

    /// Counts one event in this worker's counter page.
    pub fn count(&self, counter: Counter) {
        self.counters.add(counter, 1);
    }

    /// Gives retired blocks back as far as other workers let it. Called before the worker sleeps: otherwise its last
    /// blocks would come back only when it has work again.
    pub fn idle(&mut self) {
        self.reclaim();
    }

    /// The same, for a write that found no block.
    pub(super) fn reclaim(&self) {
        let mut stalled = 0;
        for _ in 0..RECLAIM_ROUNDS_MAX {
            let before = self.table.slab.waiting();
            if before == 0 || stalled == RECLAIM_STALLED_MAX {
                return;
            }
            self.epoch.pin().flush();
            stalled = if self.table.slab.waiting() < before { 0 } else { stalled + 1 };
        }
    }

    /// Gives the block of a slot that was overwritten back once no worker can look at it.
    pub(super) fn retire(&self, slot: Slot) {
        if let Some(recency) = self.table.recency() {
            recency.end(slot.span(), slot.place());
        }
        self.table.slab.note_waiting(slot);
        let slab = Arc::clone(&self.table.slab);
        let pinned = self.epoch.pin();
        pinned.defer(move || slab.give_back_waiting(slot));
        if self.table.slab.is_scarce() || slot.span().is_large() {
            // Kept in this thread's bag, the block would be out of other workers' reach until the bag is full. A bag of large
            // ones could be most of the region.
            pinned.flush();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.abandon_all();
        self.reclaim();
        if let Some(index) = self.index {
            self.table.workers_taken.fetch_and(!(1 << index), Ordering::Release);
        }
    }
}

/// The first `words` words of a scratch buffer, which grows if it has to and is never cleared.
pub(super) fn grown(scratch: &mut Vec<u64>, words: usize) -> &mut [u64] {
    if scratch.len() < words {
        scratch.resize(words, 0);
    }
    &mut scratch[..words]
}
