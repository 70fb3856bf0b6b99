//! When blocks were used last, as far as the server knows: by writes, by GETs that it answered, and by the hits that
//! clients report. Only there if the server evicts.
//!
//! ```text
//! word, 16 bits   | time:15 | touched:1 |       0: no key has this block
//! ```
//!
//! `time` is that of the last use, in seconds; it comes round after some nine hours, so ages beyond that are taken for
//! shorter ones. `touched`: used again since the hand passed (see `hand`).
//!
//! Words are loaded and stored relaxed, and nothing depends on them but which key goes first.

use std::sync::atomic::{AtomicU16, Ordering};

use kv_common::layout::{PAGE_GRANULES, Place, SEGMENT_GRANULES, Span};
use zerocopy::FromZeros;

const TOUCHED: u16 = 1 << 15;
/// Seconds after which times come round. Zero is no time.
const TIMES: u64 = (TOUCHED - 1) as u64;
/// Words of a segment: as many as it can have blocks.
const SEGMENT_WORDS: u64 = SEGMENT_GRANULES / 2;

/// A word per block.
pub(super) struct Recency {
    /// Those of a segment by the number of the block, or of the page that a large one starts with. Of what was never stored to, the system has no pages.
    words: Box<[AtomicU16]>,
}

/// What is known of a block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) is_touched: bool,
    pub(super) age_s: u64,
}

impl Recency {
    /// For a region of so many segments. None if there is no memory for it.
    pub(super) fn new(segments: u64) -> Option<Recency> {
        let words = <[AtomicU16]>::new_box_zeroed_with_elems((segments * SEGMENT_WORDS) as usize).ok()?;
        Some(Recency { words })
    }

    /// The block has a new key.
    pub(super) fn begin(&self, span: Span, place: Place, now_s: u64) {
        self.word(span, place).store(time(now_s), Ordering::Relaxed);
    }

    /// The block is used, if a key has it.
    pub(super) fn touch(&self, span: Span, place: Place, now_s: u64) {
        let word = self.word(span, place);
        if word.load(Ordering::Relaxed) != 0 {
            word.store(time(now_s) | TOUCHED, Ordering::Relaxed);
        }
    }

    /// No key has the block any more.
    pub(super) fn end(&self, span: Span, place: Place) {
        self.word(span, place).store(0, Ordering::Relaxed);
    }

    /// A key has moved to another block.
    pub(super) fn carry(&self, span: Span, from: Place, to: Place) {
        self.word(span, to).store(self.word(span, from).load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The hand passes the block: it counts as untouched until it is used again.
    pub(super) fn pass(&self, span: Span, place: Place) {
        let word = self.word(span, place);
        word.store(word.load(Ordering::Relaxed) & !TOUCHED, Ordering::Relaxed);
    }

    /// What is known of a block; none if no key has it.
    pub(super) fn get(&self, span: Span, place: Place, now_s: u64) -> Option<Use> {
        let word = self.word(span, place).load(Ordering::Relaxed);
        let then = u64::from(word & !TOUCHED).checked_sub(1)?;
        Some(Use { is_touched: word & TOUCHED != 0, age_s: (now_s % TIMES + TIMES - then) % TIMES })
    }

    fn word(&self, span: Span, place: Place) -> &AtomicU16 {
        let step = if span.is_large() { PAGE_GRANULES } else { span.granules() };
        let number = place.0 % SEGMENT_GRANULES / step;
        &self.words[(place.segment() * SEGMENT_WORDS + number) as usize]
    }
}

fn time(now_s: u64) -> u16 {
    (now_s % TIMES + 1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_an_age_while_a_key_has_it() {
        let recency = Recency::new(3).unwrap();
        let (span, place) = (Span(5), Place(2 * SEGMENT_GRANULES + 5 * 7));
        let known = |is_touched, age_s| Some(Use { is_touched, age_s });
        assert_eq!(recency.get(span, place, 100), None);
        recency.touch(span, place, 100);
        assert_eq!(recency.get(span, place, 100), None, "no key has it");
        recency.begin(span, place, 100);
        assert_eq!(recency.get(span, place, 130), known(false, 30));
        recency.touch(span, place, 140);
        assert_eq!(recency.get(span, place, 140), known(true, 0));
        recency.pass(span, place);
        assert_eq!(recency.get(span, place, 150), known(false, 10));
        let other = Place(SEGMENT_GRANULES);
        recency.carry(span, place, other);
        recency.end(span, place);
        assert_eq!((recency.get(span, place, 150), recency.get(span, other, 150)), (None, known(false, 10)));
    }

    #[test]
    fn large_blocks_have_the_word_of_their_first_page() {
        let recency = Recency::new(2).unwrap();
        let places = [SEGMENT_GRANULES, 2 * SEGMENT_GRANULES - PAGE_GRANULES].map(Place);
        recency.begin(Span::MAX, places[0], 7);
        recency.begin(Span(Span::SMALL_MAX.0 + 1), places[1], 8);
        let ages_s = places.map(|place| recency.get(Span::MAX, place, 10).map(|known| known.age_s));
        assert_eq!(ages_s, [Some(3), Some(2)], "whatever their spans");
    }

    #[test]
    fn times_come_round() {
        let (recency, span, place) = (Recency::new(1).unwrap(), Span(2), Place(SEGMENT_GRANULES - 2));
        for now_s in [0, 32_766, 32_767, 65_533, 1 << 40] {
            recency.begin(span, place, now_s);
            for age_s in [0, 1, 9000, 32_766] {
                assert_eq!(recency.get(span, place, now_s + age_s).unwrap().age_s, age_s, "{now_s}");
            }
        }
    }
}
