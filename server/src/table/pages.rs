//! Which pages of large segments are free.
//!
//! Free runs are kept coalesced, also across segments that are neighbours. A run is taken from the shortest free one that is
//! long enough, from its end: large segments come from the region's end downwards, so what is left is then next to the
//! segments that come next.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;

use kv_common::layout::{Run, SEGMENT_PAGES};

/// The pages of all large segments.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Free runs: pages by first page. No two touch.
    free: BTreeMap<u64, u64>,
    /// The same, by length.
    by_pages: BTreeSet<(u64, u64)>,
    /// Runs in use: pages by first page.
    taken: BTreeMap<u64, u64>,
    free_pages: u64,
    /// The search for runs to evict goes on with those that start below this page.
    pub(super) hand: u64,
}

impl Pages {
    /// Takes a run of so many pages; `None` if no free one is long enough.
    pub(super) fn take(&mut self, pages: u64) -> Option<Run> {
        let &(found, first_page) = self.by_pages.range((pages, 0)..).next()?;
        self.remove_free(first_page, found);
        if found > pages {
            self.insert_free(first_page, found - pages);
        }
        let run = Run { first_page: first_page + found - pages, pages };
        self.taken.insert(run.first_page, pages);
        Some(run)
    }

    /// Gives the run back that starts at this page. True if all pages of some segment that it touches are free now.
    ///
    /// Panics if none was taken there.
    pub(super) fn give_back(&mut self, first_page: u64) -> bool {
        let pages = self.taken.remove(&first_page).expect("a run is given back once");
        whole_segment(self.add(Run { first_page, pages })).is_some()
    }

    /// Takes the last segment away whose pages are all free.
    pub(super) fn take_segment(&mut self) -> Option<u64> {
        let segment = self.free().filter_map(whole_segment).last()?;
        let start = segment * SEGMENT_PAGES;
        let (&first_page, &pages) = self.free.range(..=start).next_back().expect("it is in a free run");
        self.remove_free(first_page, pages);
        let end = start + SEGMENT_PAGES;
        for (first_page, pages) in [(first_page, start - first_page), (end, first_page + pages - end)] {
            if pages > 0 {
                self.insert_free(first_page, pages);
            }
        }
        Some(segment)
    }

    /// Adds pages that are free. Returns the free run that they are in now.
    pub(super) fn add(&mut self, run: Run) -> Run {
        let (mut first_page, mut pages) = (run.first_page, run.pages);
        if let Some((&before, &length)) = self.free.range(..first_page).next_back()
            && before + length == first_page
        {
            self.remove_free(before, length);
            (first_page, pages) = (before, pages + length);
        }
        if let Some(&length) = self.free.get(&run.end_page()) {
            self.remove_free(run.end_page(), length);
            pages += length;
        }
        self.insert_free(first_page, pages);
        Run { first_page, pages }
    }

    /// Pages of the longest free run.
    pub(super) fn longest(&self) -> u64 {
        self.by_pages.last().map_or(0, |&(pages, _)| pages)
    }

    /// Free pages that end right before `page`, and such that start there.
    pub(super) fn around(&self, page: u64) -> (u64, u64) {
        let before = self.free.range(..page).next_back();
        let before = before.filter(|&(&first, &pages)| first + pages == page);
        (before.map_or(0, |(_, &pages)| pages), self.free.get(&page).copied().unwrap_or(0))
    }

    /// How many pages are free.
    pub(super) fn free_pages(&self) -> u64 {
        self.free_pages
    }

    /// How many pages there are.
    pub(super) fn all_pages(&self) -> u64 {
        self.taken.values().sum::<u64>() + self.free_pages
    }

    /// The runs in use, by their first page.
    pub(super) fn taken(&self) -> impl Iterator<Item = Run> {
        self.taken.iter().map(|(&first_page, &pages)| Run { first_page, pages })
    }

    /// The free runs, by their first page.
    pub(super) fn free(&self) -> impl Iterator<Item = Run> {
        self.free.iter().map(|(&first_page, &pages)| Run { first_page, pages })
    }

    /// All runs and whether each is in use, from the hand on downwards, as they are taken, and then those above it.
    pub(super) fn round(&self) -> impl Iterator<Item = (Run, bool)> {
        self.downwards(0..self.hand).chain(self.downwards(self.hand..u64::MAX))
    }

    /// The runs in use that have pages of a segment.
    pub(super) fn taken_in(&self, segment: u64) -> impl Iterator<Item = Run> {
        let (start, end) = (segment * SEGMENT_PAGES, (segment + 1) * SEGMENT_PAGES);
        let from_the_last =
            self.taken.range(..end).rev().map(|(&first_page, &pages)| Run { first_page, pages });
        from_the_last.take_while(move |run| run.end_page() > start)
    }

    /// The runs that start at these pages, the last first.
    fn downwards(&self, starts: Range<u64>) -> impl Iterator<Item = (Run, bool)> {
        let mut taken = self.taken.range(starts.clone()).rev().peekable();
        let mut free = self.free.range(starts).rev().peekable();
        iter::from_fn(move || {
            let is_taken = match (taken.peek(), free.peek()) {
                (Some((taken, _)), Some((free, _))) => taken > free,
                (first, _) => first.is_some(),
            };
            let (&first_page, &pages) = if is_taken { taken.next() } else { free.next() }?;
            Some((Run { first_page, pages }, is_taken))
        })
    }

    fn insert_free(&mut self, first_page: u64, pages: u64) {
        self.free.insert(first_page, pages);
        self.by_pages.insert((pages, first_page));
        self.free_pages += pages;
    }

    fn remove_free(&mut self, first_page: u64, pages: u64) {
        self.free.remove(&first_page);
        self.by_pages.remove(&(pages, first_page));
        self.free_pages -= pages;
    }
}

/// The last segment all of whose pages are in a run.
fn whole_segment(run: Run) -> Option<u64> {
    let end = run.end_page() / SEGMENT_PAGES;
    (end > run.first_page.div_ceil(SEGMENT_PAGES)).then(|| end - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_shortest_run_that_fits_is_taken_from_its_end() {
        let mut pages = Pages::default();
        for (first_page, length) in [(0, 10), (20, 6), (30, 8)] {
            pages.add(Run { first_page, pages: length });
        }
        assert_eq!(pages.take(6), Some(Run { first_page: 20, pages: 6 }));
        assert_eq!(pages.take(6), Some(Run { first_page: 32, pages: 6 }));
        assert_eq!(pages.take(11), None);
        assert_eq!((pages.longest(), pages.free_pages()), (10, 12));
        assert_eq!((pages.around(10), pages.around(30), pages.around(5)), ((10, 0), (0, 2), (0, 0)));
        pages.give_back(32);
        assert_eq!(pages.take(8), Some(Run { first_page: 30, pages: 8 }), "coalesced");
    }

    #[test]
    fn segments_go_whose_pages_are_all_free() {
        let mut pages = Pages::default();
        pages.add(Run { first_page: 32, pages: 3 * 32 });
        assert_eq!(pages.take(40), Some(Run { first_page: 88, pages: 40 }));
        assert_eq!(pages.take_segment(), Some(1));
        assert_eq!(pages.take_segment(), None);
        assert_eq!(pages.free().collect::<Vec<_>>(), [Run { first_page: 64, pages: 24 }]);
        assert!(pages.give_back(88));
        assert_eq!(
            (pages.take_segment(), pages.take_segment(), pages.take_segment()),
            (Some(3), Some(2), None)
        );
        assert_eq!((pages.free_pages(), pages.longest()), (0, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u64),
        Take(u64),
        GiveBack(usize),
        TakeSegment,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            1 => (0u64..8).prop_map(Step::Add),
            4 => (1u64..70).prop_map(Step::Take),
            4 => any::<usize>().prop_map(Step::GiveBack),
            1 => Just(Step::TakeSegment),
        ]
    }

    /// Lengths of the stretches of `true`, with their starts.
    fn stretches(map: &[bool]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for page in (0..map.len()).filter(|&page| map[page]).map(|page| page as u64) {
            match runs.last_mut().filter(|run| run.end_page() == page) {
                Some(run) => run.pages += 1,
                None => runs.push(Run { first_page: page, pages: 1 }),
            }
        }
        runs
    }

    proptest! {
        /// Against a map with a bit per page.
        #[test]
        fn runs_do_what_a_bitmap_does(steps in proptest::collection::vec(step(), 1..200)) {
            const SEGMENT: u64 = 32;
            let (mut pages, mut is_free, mut added) = (Pages::default(), vec![false; 8 * 32], [false; 8]);
            let mut taken: Vec<Run> = Vec::new();
            for step in steps {
                match step {
                    Step::Add(segment) if !added[segment as usize] => {
                        added[segment as usize] = true;
                        let run = Run { first_page: segment * SEGMENT, pages: SEGMENT };
                        pages.add(run);
                        is_free[run.first_page as usize..run.end_page() as usize].fill(true);
                    }
                    Step::Add(_) => {}
                    Step::Take(wanted) => {
                        let best = stretches(&is_free).iter().map(|run| run.pages).filter(|&n| n >= wanted).min();
                        let run = pages.take(wanted);
                        prop_assert_eq!(run.is_some(), best.is_some());
                        if let Some(run) = run {
                            let range = run.first_page as usize..run.end_page() as usize;
                            prop_assert!(run.pages == wanted && is_free[range.clone()].iter().all(|&free| free));
                            let of = stretches(&is_free).into_iter().find(|of| of.end_page() == run.end_page());
                            prop_assert_eq!(of.map(|of| of.pages), best, "the shortest, from its end");
                            is_free[range].fill(false);
                            taken.push(run);
                        }
                    }
                    Step::GiveBack(which) if !taken.is_empty() => {
                        let run = taken.swap_remove(which % taken.len());
                        let is_whole = pages.give_back(run.first_page);
                        is_free[run.first_page as usize..run.end_page() as usize].fill(true);
                        let of = stretches(&is_free).into_iter().find(|of| of.end_page() >= run.end_page());
                        let of = of.expect("it was given back");
                        prop_assert_eq!(is_whole, of.end_page() / 32 > of.first_page.div_ceil(32));
                    }
                    Step::GiveBack(_) => {}
                    Step::TakeSegment => {
                        let is_whole = |segment: &usize| is_free[segment * 32..(segment + 1) * 32].iter().all(|&free| free);
                        let expected = (0..8).rev().find(is_whole);
                        prop_assert_eq!(pages.take_segment(), expected.map(|segment| segment as u64));
                        if let Some(segment) = expected {
                            added[segment] = false;
                            is_free[segment * 32..(segment + 1) * 32].fill(false);
                        }
                    }
                }
                let expected = stretches(&is_free);
                prop_assert_eq!(pages.free().collect::<Vec<_>>(), expected.clone());
                prop_assert_eq!(pages.longest(), expected.iter().map(|run| run.pages).max().unwrap_or(0));
                prop_assert_eq!(pages.free_pages(), expected.iter().map(|run| run.pages).sum::<u64>());
                taken.sort_unstable();
                prop_assert_eq!(pages.taken().collect::<Vec<_>>(), taken.clone());
                let mut all: Vec<_> = taken.iter().map(|&run| (run, true)).collect();
                all.extend(expected.iter().map(|&run| (run, false)));
                all.sort_unstable();
                pages.hand = (pages.hand + 77) % 256;
                let above = all.len() - all.partition_point(|(run, _)| run.first_page < pages.hand);
                all.reverse();
                all.rotate_left(above);
                prop_assert_eq!(pages.round().collect::<Vec<_>>(), all);
                for segment in 0..8 {
                    let is_in = |run: &Run| run.first_page < (segment + 1) * 32 && run.end_page() > segment * 32;
                    let expected: Vec<Run> = taken.iter().rev().copied().filter(is_in).collect();
                    prop_assert_eq!(pages.taken_in(segment).collect::<Vec<_>>(), expected);
                }
            }
        }
    }
}
