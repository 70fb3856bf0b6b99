//! Room for a large value in segments that classes have: a server that evicts makes neighbouring ones free for it.
//!
//! Those are chosen, and closed, that lose the fewest bytes, in a stretch that is as long as the value wants. They are emptied by
//! eviction one after the other and wait for LEASE together like any (see `space`). Then they are given to large blocks at
//! once: in the pool the writers of small values would take them one by one.

use std::ops::Range;
use std::sync::atomic::Ordering;

use kv_common::layout::{Run, SEGMENT_GRANULES, SEGMENT_PAGES, SegmentEntry, SegmentKind, Span};

use super::slab::{Candidate, Emptied, Slab};
use super::space::{Emptying, Space, SpaceKeeper};

/// Neighbouring segments that are made free for a large block.
#[derive(Default)]
pub(super) struct Clearing {
    /// Closed ones that are to be emptied.
    pub(super) left: Vec<Candidate>,
    /// Those that are empty, or were free.
    pub(super) cleared: Vec<Emptied>,
}

impl Space {
    /// A large value finds no neighbours that could go for a run of so many pages.
    pub(super) fn want_run(&self, pages: u64) {
        self.wanted_run.fetch_max(pages, Ordering::Relaxed);
    }

    /// What was wanted since the last call.
    pub(super) fn take_wanted_run(&self) -> Option<u64> {
        Some(self.wanted_run.swap(0, Ordering::Relaxed)).filter(|&pages| pages > 0)
    }
}

impl Slab {
    /// Closes the segments that are cheapest to lose of those that make a run of so many pages. None if no such stretch is free
    /// or classes', or one of its segments was taken for something else meanwhile.
    pub(super) fn begin_clearing(&self, pages: u64) -> Option<Clearing> {
        let (candidates, costs) = self.costs();
        let stretch = cheapest_stretch(&costs, pages.div_ceil(SEGMENT_PAGES) as usize)?;
        let mut clearing = Clearing::default();
        for segment in stretch {
            match candidates[segment] {
                Some(candidate) => {
                    self.close(candidate);
                    clearing.left.push(candidate);
                }
                None if self.take_free(segment as u64) => {
                    clearing.cleared.push(Emptied { segment: segment as u64, used_words: 0 });
                }
                None => {
                    // Those were free.
                    let free = self.give_up(clearing);
                    free.iter().for_each(|emptied| self.give_segment_back(emptied.segment));
                    return None;
                }
            }
        }
        Some(clearing)
    }

    /// By segment: how it can be emptied if a class has it, and the granules that are lost then; no cost if it is something else's.
    fn costs(&self) -> (Vec<Option<Candidate>>, Vec<Option<u64>>) {
        let all = self.all_segments() as usize;
        let (mut candidates, mut costs) = (vec![None; all], vec![None; all]);
        for (code, class) in self.classes.iter().enumerate() {
            for cut in class.lock().segments.iter().filter(|cut| !cut.is_closed) {
                let (span, segment) = (Span(code as u8), cut.segment);
                let candidate = Candidate { span, segment, used: u64::from(cut.used) };
                candidates[segment as usize] = Some(candidate);
                costs[segment as usize] = Some(candidate.used_granules());
            }
        }
        // A free one would be missed as much as one that is full: a few are to be free always.
        self.free_list().into_iter().for_each(|segment| costs[segment as usize] = Some(SEGMENT_GRANULES));
        (candidates, costs)
    }

    /// The segments serve their classes again; those that are empty already are returned.
    pub(super) fn give_up(&self, clearing: Clearing) -> Vec<Emptied> {
        clearing.left.into_iter().for_each(|candidate| self.reopen(candidate));
        clearing.cleared
    }

    /// Gives segments that are all zero, and that no reader can be led to, to large blocks.
    pub(super) fn add_large(&self, segments: impl Iterator<Item = u64>) {
        let mut pages = self.pages.lock();
        for segment in segments {
            self.store_entry(segment, SegmentEntry { kind: SegmentKind::Large, class: 0 });
            pages.add(Run { first_page: segment * SEGMENT_PAGES, pages: SEGMENT_PAGES });
        }
    }
}

impl SpaceKeeper {
    /// Begins to empty the next segment for a large value that found no room, or lets those wait for LEASE that are empty. False
    /// if nothing is to be done for any.
    pub(super) fn clear_next(&mut self) -> bool {
        if self.clearing.is_none() && self.quarantine.is_none() {
            let pages = self.table().space.take_wanted_run();
            self.clearing = pages.and_then(|pages| {
                tracing::debug!(pages, "segments are made free for a large value");
                self.table().slab.begin_clearing(pages)
            });
            let cleared = self.clearing.as_ref().map_or(0, |clearing| clearing.cleared.len());
            self.note_quarantined(cleared as u64);
        }
        let Some(clearing) = &mut self.clearing else { return false };
        if let Some(candidate) = clearing.left.pop() {
            self.emptying = Some(Emptying::cleared(candidate));
            return true;
        }
        if self.quarantine.is_some() {
            return false;
        }
        let cleared = self.clearing.take().map_or(Vec::new(), |clearing| clearing.cleared);
        self.begin_quarantine(cleared, true);
        true
    }

    /// A segment could not be emptied that was to be part of a run.
    pub(super) fn give_up_clearing(&mut self) {
        if let Some(clearing) = self.clearing.take() {
            let cleared = self.table().slab.give_up(clearing);
            self.empty.extend(cleared);
        }
    }
}

/// So many neighbours with the smallest sum of costs; the last ones among such, where large segments are.
fn cheapest_stretch(costs: &[Option<u64>], segments: usize) -> Option<Range<usize>> {
    let sum = |start: &usize| costs[*start..start + segments].iter().copied().sum::<Option<u64>>();
    let starts = 0..(costs.len() + 1).checked_sub(segments)?;
    let sums = starts.filter_map(|start| Some((sum(&start)?, start)));
    let (_, start) = sums.min_by_key(|&(sum, start)| (sum, usize::MAX - start))?;
    Some(start..start + segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stretch_that_loses_least_is_the_cheapest() {
        let costs = [Some(11), Some(1), None, Some(5), Some(6), Some(5), Some(6), None, Some(2)];
        assert_eq!(cheapest_stretch(&costs, 1), Some(1..2));
        assert_eq!(cheapest_stretch(&costs, 2), Some(5..7), "the last of two that cost the same");
        assert_eq!(cheapest_stretch(&costs, 4), Some(3..7));
        assert_eq!(cheapest_stretch(&costs, 5), None);
        assert_eq!(cheapest_stretch(&costs, 10), None);
        assert_eq!(cheapest_stretch(&[], 1), None);
    }
}
