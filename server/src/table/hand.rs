//! CLOCK: which block of a class goes when the class needs one.
//!
//! A hand walks over the blocks of the class, segment by segment, and round again. A block that was used since the hand
//! passed it gets another round; one that was not is chosen. New blocks are not touched until they are used again.
//!
//! Large blocks have a hand of their own, over all pages, from the last down, which is how they are taken. What goes for a run has to be neighbours: the hand walks on until blocks
//! that were not used, and free pages between them, are as long as the run.

use std::collections::VecDeque;

use kv_common::layout::{Place, Run, SEGMENT_GRANULES, SEGMENT_PAGES, Span};

use super::recency::Recency;
use super::slab::{Candidate, Class, Slab};

/// Blocks that the hand passes at one call, at most: some microseconds.
const STEPS_MAX: u32 = 4096;
/// Blocks behind the hand by which the age of a class is judged, and how many are looked at for them.
const SAMPLE: u64 = 64;
/// See `SAMPLE`.
const SAMPLE_STEPS_MAX: u32 = 1024;

/// Where the hand of a class is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hand {
    /// Position of the segment in the list of the class.
    position: usize,
    /// Number of the block in it.
    number: u32,
}

/// A class that could lose a segment, or large blocks that could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aged {
    pub(super) loser: Loser,
    /// How long ago the blocks that would go next were used; see [`age_class`].
    pub(super) age_class: u32,
}

/// Whose segment it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loser {
    Class(Candidate),
    /// Large blocks': this segment.
    Large(u64),
}

/// What the hand of the large blocks came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChosenRuns {
    /// These make room. None of them: there is some.
    Runs(Vec<Run>),
    /// Not yet: there are more, or such that were used and count as untouched from here on.
    Later,
    /// There are no neighbours that are so long, in use or free.
    None,
}

/// Ages by their order of magnitude: 0 for less than a second, then one per doubling.
pub(super) fn age_class(age_s: u64) -> u32 {
    u64::BITS - age_s.leading_zeros()
}

impl Slab {
    /// Moves the hand of a class on and returns the blocks that it has chosen, at most so many; none of them if all that it
    /// passed were touched. `is_strict`: it takes those, too. `None` if it came to no block that a key has.
    pub(super) fn choose(&self, span: Span, max: usize, is_strict: bool, now_s: u64) -> Option<Vec<Place>> {
        let recency = self.recency.as_ref()?;
        let mut class = self.classes[span.0 as usize].lock();
        let (mut chosen, mut has_found) = (Vec::new(), false);
        for _ in 0..STEPS_MAX {
            if chosen.len() == max {
                break;
            }
            let mut hand = class.hand;
            let passed = class.step(&mut hand, span);
            class.hand = hand;
            let Some(place) = passed else { continue };
            let known = recency.get(span, place, now_s);
            has_found |= known.is_some();
            match known {
                Some(known) if known.is_touched && !is_strict => recency.pass(span, place),
                Some(_) => chosen.push(place),
                None => {}
            }
        }
        has_found.then_some(chosen)
    }

    /// Moves the hand of the large blocks on until it has passed some that can go for a run of so many pages. `is_strict`: it
    /// takes those that were used, too.
    pub(super) fn choose_runs(&self, pages: u64, is_strict: bool, now_s: u64) -> ChosenRuns {
        let Some(recency) = &self.recency else { return ChosenRuns::None };
        let mut all = self.pages.lock();
        let (mut unused, mut all_that_go) = (Neighbours::default(), Neighbours::default());
        let (mut touched, mut steps, mut hand, mut is_possible) = (Vec::new(), 0, all.hand, false);
        // Neighbours can lie on both sides of where the hand stands: it goes round twice.
        for (run, is_in_use) in all.round().chain(all.round()).take(STEPS_MAX as usize) {
            let known = recency.get(Span::MAX, run.place(), now_s).filter(|_| is_in_use);
            // One in use without a key comes, or is on its way back.
            let may_go = known.is_some() || !is_in_use;
            let is_touched = !is_strict && known.is_some_and(|known| known.is_touched);
            touched.extend(is_touched.then_some(run));
            unused.add(run, is_in_use, may_go && !is_touched, pages);
            all_that_go.add(run, is_in_use, may_go, pages);
            is_possible |= all_that_go.pages() >= pages;
            (steps, hand) = (steps + 1, run.first_page);
            if unused.pages() >= pages {
                break;
            }
        }
        if !is_possible && steps < STEPS_MAX {
            // What was used keeps its round.
            return ChosenRuns::None;
        }
        all.hand = hand;
        touched.into_iter().for_each(|run| recency.pass(Span::MAX, run.place()));
        if unused.pages() >= pages { ChosenRuns::Runs(unused.in_use()) } else { ChosenRuns::Later }
    }

    /// The segment that is cheapest to lose: under the hand of the class, or of the large blocks, whose next blocks were not used
    /// for the longest time; among such of about the same age, of those that have the most.
    pub(super) fn cheapest(&self, now_s: u64) -> Option<Aged> {
        let recency = self.recency.as_ref()?;
        let aged = self.classes.iter().enumerate().filter_map(|(code, class)| {
            let (class, span) = (class.lock(), Span(code as u8));
            let at_hand = class.segments.iter().cycle().skip(class.hand.position);
            let cut = at_hand.take(class.segments.len()).find(|cut| !cut.is_closed)?;
            let candidate = Candidate { span, segment: cut.segment, used: u64::from(cut.used) };
            let (mut hand, mut ages_s, mut found) = (class.hand, 0, 0);
            for _ in 0..SAMPLE_STEPS_MAX {
                let known = class.step(&mut hand, span).and_then(|place| recency.get(span, place, now_s));
                ages_s += known.map_or(0, |known| known.age_s);
                found += u64::from(known.is_some());
                if found == SAMPLE {
                    break;
                }
            }
            let age_class = ages_s.checked_div(found).map_or(u32::MAX, age_class);
            Some((Aged { loser: Loser::Class(candidate), age_class }, class.segments.len()))
        });
        let aged = aged.chain(self.aged_runs(recency, now_s));
        aged.max_by_key(|(aged, segments)| (aged.age_class, *segments)).map(|(aged, _)| aged)
    }

    /// What large blocks could lose, and how many segments they have.
    fn aged_runs(&self, recency: &Recency, now_s: u64) -> Option<(Aged, usize)> {
        let all = self.pages.lock();
        let age_s = |run: Run| recency.get(Span::MAX, run.place(), now_s).map(|known| known.age_s);
        let in_use = all.round().take(SAMPLE_STEPS_MAX as usize).filter(|(_, is_in_use)| *is_in_use);
        let next: Vec<_> =
            in_use.filter_map(|(run, _)| Some((run, age_s(run)?))).take(SAMPLE as usize).collect();
        // One that has a run without a key cannot be emptied.
        let mut segments = next.iter().map(|(run, _)| run.first_page / SEGMENT_PAGES);
        let segment = segments.find(|&segment| all.taken_in(segment).all(|run| age_s(run).is_some()))?;
        let age_class = age_class(next.iter().map(|(_, age_s)| age_s).sum::<u64>() / next.len() as u64);
        Some((Aged { loser: Loser::Large(segment), age_class }, (all.all_pages() / SEGMENT_PAGES) as usize))
    }
}

/// Runs that touch each other.
#[derive(Default)]
struct Neighbours(VecDeque<(Run, bool)>);

impl Neighbours {
    /// Adds the next one, and drops those at the other end that a run of so many pages does not need. One that touches none of
    /// these is alone, and none is left if it cannot go.
    fn add(&mut self, run: Run, is_in_use: bool, may_go: bool, wanted: u64) {
        if !may_go {
            return self.0.clear();
        }
        if self.0.back().is_some_and(|(last, _)| last.first_page != run.end_page()) {
            self.0.clear();
        }
        self.0.push_back((run, is_in_use));
        while let Some((first, _)) = self.0.front()
            && self.pages() - first.pages >= wanted
        {
            self.0.pop_front();
        }
    }

    fn pages(&self) -> u64 {
        match (self.0.front(), self.0.back()) {
            (Some((first, _)), Some((last, _))) => first.end_page() - last.first_page,
            _ => 0,
        }
    }

    fn in_use(self) -> Vec<Run> {
        self.0.into_iter().filter(|(_, is_in_use)| *is_in_use).map(|(run, _)| run).collect()
    }
}

impl Class {
    /// Moves a hand over one block; none if it only came to another segment.
    fn step(&self, hand: &mut Hand, span: Span) -> Option<Place> {
        let cut = match self.segments.get(hand.position) {
            Some(cut) => cut,
            None => {
                *hand = Hand::default();
                self.segments.first()?
            }
        };
        // The keeper of the space looks after closed ones.
        if hand.number >= cut.uncut || cut.is_closed {
            *hand = Hand { position: hand.position + 1, number: 0 };
            return None;
        }
        let place = Place(cut.segment * SEGMENT_GRANULES + u64::from(hand.number) * span.granules());
        hand.number += 1;
        Some(place)
    }
}
