//! CLOCK: which block of a class goes when the class needs one.
//!
//! A hand walks over the blocks of the class, segment by segment, and round again. A block that was used since the hand
//! passed it gets another round; one that was not is chosen. New blocks are not touched until they are used again.

use kv_common::layout::{Place, SEGMENT_GRANULES, Span};

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

/// A class that could lose a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aged {
    pub(super) candidate: Candidate,
    /// How long ago the blocks that would go next were used; see [`age_class`].
    pub(super) age_class: u32,
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

    /// The segment that is cheapest to lose: under the hand of the class whose next blocks were not used for the longest
    /// time; among such of about the same age, of the class that has the most.
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
            Some((Aged { candidate, age_class }, class.segments.len()))
        });
        aged.max_by_key(|(aged, segments)| (aged.age_class, *segments)).map(|(aged, _)| aged)
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
