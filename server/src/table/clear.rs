//! Room for a large value in segments that classes have: a server that evicts makes neighbouring ones free for it.
//!
//! Those are chosen, and closed, that lose the fewest bytes, in a stretch that is as long as the value wants. They are emptied by
//! eviction one after the other and wait for LEASE together like any (see `space`). Then they are given to large blocks at
//! once: in the pool the writers of small values would take them one by one.

use std::ops::Range;

use kv_common::layout::{Run, SEGMENT_GRANULES, SEGMENT_PAGES, SegmentEntry, SegmentKind, Span};

use super::slab::{Candidate, Emptied, Slab};
use super::space::{Emptying, SpaceKeeper};

/// Pages that were given to large blocks are left to them for so long. Whoever waits for them looks every 64 ms, or sooner.
const KEPT_NS: u64 = 200_000_000;

/// Neighbouring segments that are made free for a large block.
#[derive(Debug)]
pub(super) struct Clearing {
    /// The number of who wants it.
    want: u64,
    /// Closed ones that are to be emptied.
    left: Vec<Candidate>,
    /// Those that are empty, or were free.
    pub(super) cleared: Vec<Emptied>,
}

/// Why segments cannot be made free for a large block.
enum NotCleared {
    /// There are not so many neighbours.
    NoStretch,
    /// One of them was taken for something else meanwhile.
    Taken,
}

impl Slab {
    /// Closes the segments that are cheapest to lose of those that make a run of so many pages, for this want.
    fn begin_clearing(&self, want: u64, pages: u64) -> Result<Clearing, NotCleared> {
        let (candidates, costs) = self.costs();
        let stretch = cheapest_stretch(&costs, pages.div_ceil(SEGMENT_PAGES) as usize);
        let mut clearing = Clearing { want, left: Vec::new(), cleared: Vec::new() };
        for segment in stretch.ok_or(NotCleared::NoStretch)? {
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
                    return Err(NotCleared::Taken);
                }
            }
        }
        Ok(clearing)
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
    fn give_up(&self, clearing: Clearing) -> Vec<Emptied> {
        clearing.left.into_iter().for_each(|candidate| self.reopen(candidate));
        clearing.cleared
    }

    /// Gives segments that are all zero, and that no reader can be led to, to large blocks.
    fn add_large(&self, segments: impl Iterator<Item = u64>) {
        let mut pages = self.pages.lock();
        for segment in segments {
            self.store_entry(segment, SegmentEntry { kind: SegmentKind::Large, class: 0 });
            pages.add(Run { first_page: segment * SEGMENT_PAGES, pages: SEGMENT_PAGES });
        }
    }
}

impl SpaceKeeper {
    /// Begins to empty the next segment for a large value that waits. False if there is nothing to do but to wait for
    /// LEASE, or nothing at all.
    pub(super) fn clear_next(&mut self, now_ns: u64) -> bool {
        if let Some(clearing) = &mut self.clearing {
            let next = clearing.left.pop();
            self.emptying = next.map(Emptying::by_eviction);
            if self.emptying.is_none() {
                self.begin_quarantine();
            }
            return true;
        }
        if self.quarantine.is_some() {
            return false;
        }
        let table = self.table();
        let Some((want, pages)) = table.space.due_want(now_ns) else { return false };
        if table.slab.pages.lock().longest() >= pages {
            table.space.forget_want(want);
            return true;
        }
        match table.slab.begin_clearing(want, pages) {
            Ok(clearing) => {
                tracing::debug!(pages, segments = ?clearing, "segments are made free for a large value");
                self.note_quarantined(clearing.cleared.len() as u64);
                self.clearing = Some(clearing);
            }
            // A stretch may be free again in a moment.
            Err(NotCleared::NoStretch) if !self.empty.is_empty() => return false,
            Err(NotCleared::NoStretch) if table.slab.drafts() > 0 || table.slab.waiting_runs() > 0 => {
                table.space.put_off(want, now_ns);
            }
            Err(NotCleared::NoStretch) => table.space.note_hopeless(want),
            Err(NotCleared::Taken) => {}
        }
        true
    }

    /// A segment could not be emptied. If it was to be part of a run, whoever waits for that still does.
    pub(super) fn give_up_clearing(&mut self) {
        if let Some(clearing) = self.clearing.take() {
            let cleared = self.table().slab.give_up(clearing);
            self.empty.extend(cleared);
        }
    }

    /// Segments that are empty and will be large blocks'.
    pub(super) fn for_runs(&self) -> u64 {
        let waiting = self.quarantine.as_ref().and_then(|quarantine| quarantine.clearing.as_ref());
        self.clearing.iter().chain(waiting).map(|clearing| clearing.cleared.len() as u64).sum()
    }

    /// False while who waited for pages may not have taken them.
    pub(super) fn may_take_pages(&self) -> bool {
        self.table().monotonic_ns() >= self.pages_kept_until_ns
    }

    /// The segments are all zero, and no reader can be led to them: they are large blocks' from now on.
    pub(super) fn end_clearing(&mut self, clearing: &Clearing) {
        let table = self.table();
        table.slab.add_large(clearing.cleared.iter().map(|emptied| emptied.segment));
        table.space.forget_want(clearing.want);
        self.pages_kept_until_ns = table.monotonic_ns() + KEPT_NS;
    }
}

/// So many neighbours with the smallest sum of costs; the last ones among such, where large segments are.
fn cheapest_stretch(costs: &[Option<u64>], segments: usize) -> Option<Range<usize>> {
    let (mut sum, mut length, mut best) = (0, 0, None);
    for (segment, cost) in costs.iter().enumerate() {
        let Some(cost) = cost else {
            (sum, length) = (0, 0);
            continue;
        };
        (sum, length) = (sum + cost, length + 1);
        if length > segments {
            (sum, length) = (sum - costs[segment - segments].unwrap_or(0), segments);
        }
        if length == segments && best.is_none_or(|(least, _)| sum <= least) {
            best = Some((sum, segment + 1));
        }
    }
    best.map(|(_, end)| end - segments..end)
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
