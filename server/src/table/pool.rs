//! Free segments.

use std::collections::BTreeSet;
use std::ops::Range;

use kv_common::layout::SEGMENT_PAGES;

use super::pages::Pages;

/// Segments that hold nothing. The index takes the lowest, others the highest, blocks one by one and large blocks contiguous
/// ones: then lines have dense numbers, and a client's cache, a direct-mapped array, can mirror the index.
#[derive(Debug)]
pub(super) struct Pool(BTreeSet<u64>);

impl Pool {
    pub(super) fn new(segments: Range<u64>) -> Pool {
        Pool(segments.collect())
    }

    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Takes the lowest one.
    pub(super) fn take_first(&mut self) -> Option<u64> {
        self.0.pop_first()
    }

    /// Takes the highest one.
    pub(super) fn take_last(&mut self) -> Option<u64> {
        self.0.pop_last()
    }

    /// Takes this one. False if it is not there.
    pub(super) fn take(&mut self, segment: u64) -> bool {
        self.0.remove(&segment)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }

    /// Adds one.
    pub(super) fn give_back(&mut self, segment: u64) {
        self.0.insert(segment);
    }

    /// Takes the fewest segments that make, together with free pages next to them, a run of `wanted` pages. `None` if no run
    /// can become so long, or fewer than `reserve` segments would be left.
    pub(super) fn take_for(&mut self, wanted: u64, reserve: u64, pages: &Pages) -> Option<Range<u64>> {
        let segments_max = self.len().saturating_sub(reserve);
        let stretches = self.stretches().into_iter();
        let takes = stretches
            .filter_map(|stretch| part_for(stretch, wanted, pages))
            .filter(|take| take.end - take.start <= segments_max);
        let best = takes.min_by_key(|take| (take.end - take.start, u64::MAX - take.start))?;
        for segment in best.clone() {
            self.0.remove(&segment);
        }
        Some(best)
    }

    /// Pages of the longest run that there could be with `reserve` segments left, or a few less: free pages on both sides of
    /// segments count only if these are all taken.
    pub(super) fn longest(&self, reserve: u64, pages: &Pages) -> u64 {
        let segments_max = self.len().saturating_sub(reserve);
        let stretches = self.stretches().into_iter();
        let with_pool = stretches.map(|stretch| {
            let (before, behind) = beside(&stretch, pages);
            let segments = stretch.end - stretch.start;
            let before = if segments <= segments_max { before } else { 0 };
            before + segments.min(segments_max) * SEGMENT_PAGES + behind
        });
        with_pool.max().unwrap_or(0).max(pages.longest())
    }

    /// The free segments, in stretches of neighbours.
    fn stretches(&self) -> Vec<Range<u64>> {
        let mut stretches: Vec<Range<u64>> = Vec::new();
        for &segment in &self.0 {
            match stretches.last_mut().filter(|last| last.end == segment) {
                Some(last) => last.end += 1,
                None => stretches.push(segment..segment + 1),
            }
        }
        stretches
    }
}

/// Free pages right before and right behind a stretch of segments.
fn beside(stretch: &Range<u64>, pages: &Pages) -> (u64, u64) {
    (pages.around(stretch.start * SEGMENT_PAGES).0, pages.around(stretch.end * SEGMENT_PAGES).1)
}

/// The segments at the end of a stretch that make a run of `wanted` pages with the free pages behind it, or all of them if
/// that takes those before it, too.
fn part_for(stretch: Range<u64>, wanted: u64, pages: &Pages) -> Option<Range<u64>> {
    let (before, behind) = beside(&stretch, pages);
    let segments = wanted.saturating_sub(behind).div_ceil(SEGMENT_PAGES);
    let available = stretch.end - stretch.start;
    if segments <= available {
        return Some(stretch.end - segments..stretch.end);
    }
    (before + available * SEGMENT_PAGES + behind >= wanted).then_some(stretch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_common::layout::Run;

    #[test]
    fn contiguous_segments_come_from_the_end_and_join_free_pages_next_to_them() {
        let (mut pool, mut pages) = (Pool::new(4..20), Pages::default());
        assert_eq!(pool.take_first(), Some(4));
        assert_eq!(pool.take_for(33, 0, &pages), Some(18..20));
        // 31 pages of these two are free, the lower ones.
        pages.add(Run { first_page: 18 * 32, pages: 31 });
        assert_eq!(pool.longest(0, &pages), 13 * 32 + 31);
        assert_eq!(pool.longest(5, &pages), 8 * 32 + 31);
        assert_eq!(pool.take_for(9 * 32, 5, &pages), None, "it would leave 4");
        assert_eq!(pool.take_for(40, 12, &pages), Some(17..18), "9 pages more");
        pages.add(Run { first_page: 17 * 32, pages: 32 });
        assert_eq!(pool.take_for(13 * 32 + 32, 0, &pages), None);
        assert_eq!((pool.take_first(), pool.take_last(), pool.len()), (Some(5), Some(16), 10));
        pool.give_back(16);
        assert_eq!(pool.take_last(), Some(16));
    }

    #[test]
    fn a_stretch_between_free_pages_joins_both() {
        let (mut pool, mut pages) = (Pool::new(5..7), Pages::default());
        pages.add(Run { first_page: 5 * 32 - 3, pages: 3 });
        pages.add(Run { first_page: 7 * 32, pages: 4 });
        assert_eq!((pool.longest(0, &pages), pool.longest(1, &pages)), (71, 36));
        assert_eq!(pool.take_for(72, 0, &pages), None);
        assert_eq!(pool.take_for(71, 0, &pages), Some(5..7));
        assert_eq!(pool.take_for(1, 0, &pages), None, "it is empty");
    }
}
