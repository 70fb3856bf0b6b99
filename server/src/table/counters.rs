//! A worker's counter page in the superblock.

use kv_common::layout::{Counter, superblock};
use kv_common::region::Words;

/// A page and its only writer, a worker for instance: a load and a store instead of a locked addition. Sums over all pages are
/// what counts; a single page's `Keys` wraps when the worker deletes what another inserted.
pub(super) struct Counters {
    region: Words,
    page_word: usize,
}

impl Counters {
    pub(super) fn new(region: &Words, worker: usize) -> Counters {
        let page_word = superblock::COUNTERS + worker * superblock::COUNTER_WORDS;
        Counters { region: region.clone(), page_word }
    }

    /// The page of whoever splits; there is one at a time.
    pub(super) fn of_growth(region: &Words) -> Counters {
        Counters { region: region.clone(), page_word: superblock::GROWTH_COUNTERS }
    }

    /// The page of whoever makes segments free.
    pub(super) fn of_space(region: &Words) -> Counters {
        Counters { region: region.clone(), page_word: superblock::SPACE_COUNTERS }
    }

    /// Adds `by`, wrapping.
    pub(super) fn add(&self, counter: Counter, by: u64) {
        self.add_word(counter as usize, by);
    }

    /// The same to any word of the page.
    pub(super) fn add_word(&self, word: usize, by: u64) {
        let word = self.page_word + word;
        self.region.store(word, self.region.load(word).wrapping_add(by));
    }

    /// Subtracts `by`, wrapping.
    pub(super) fn sub(&self, counter: Counter, by: u64) {
        self.add(counter, by.wrapping_neg());
    }
}
