//! READs in flight: which of their words is fetched when.

use std::ops::Range;

use super::Weather;
use super::rng::Rng;
use crate::region::Words;
use crate::transport::ReadBuffer;

/// Stores to some words that someone waits for: a READ that is served right after one of them shows what the writer's
/// order of stores is worth.
pub(super) struct Ambush {
    /// Only stores to this word count.
    only: Option<usize>,
    stores: u64,
}

impl Ambush {
    /// Draws what to wait for, and until which step at most: some stores, often to the first word, which tells whether a
    /// block is live.
    pub(super) fn draw(rng: &mut Rng, step: u64) -> (Ambush, u64) {
        let only = rng.one_in(2).then_some(0);
        let stores = 1 + rng.below(if only.is_some() { 3 } else { 30 });
        (Ambush { only, stores }, Ambush::draw_end(rng, step))
    }

    /// The next store to one word.
    fn of_word(word: usize, rng: &mut Rng, step: u64) -> (Ambush, u64) {
        (Ambush { only: Some(word), stores: 1 }, Ambush::draw_end(rng, step))
    }

    fn draw_end(rng: &mut Rng, step: u64) -> u64 {
        let steps = rng.pick(&[500, 5000, 20_000]);
        step + rng.below(steps)
    }

    /// A store to the word `offset` comes next. True if it is the last one that was waited for.
    pub(super) fn note_store(&mut self, offset: usize) -> bool {
        if self.stores == 0 || self.only.is_some_and(|only| only != offset) {
            return false;
        }
        self.stores -= 1;
        self.stores == 0
    }

    /// True if it waits no more.
    pub(super) fn is_over(&self) -> bool {
        self.stores == 0
    }
}

/// In which order the words of a READ are fetched.
enum Order {
    Ascending,
    Descending,
    /// From somewhere in the middle, around.
    From(usize),
    /// Any: the position by rank.
    Any(Vec<u32>),
}

impl Order {
    fn position(&self, rank: usize, len: usize) -> usize {
        match self {
            Order::Ascending => rank,
            Order::Descending => len - 1 - rank,
            Order::From(first) => (first + rank) % len,
            Order::Any(positions) => positions[rank] as usize,
        }
    }
}

/// A READ in flight. All times are steps of the fabric.
pub(super) struct Read {
    pub(super) token: u64,
    pub(super) at_word: usize,
    pub(super) buffer: ReadBuffer,
    order: Order,
    /// Ranks of words that are still to be fetched: all, then perhaps some again.
    ranks: Range<usize>,
    /// Words per fetch, and steps from one to the next.
    burst: usize,
    gap_steps: u64,
    /// The longest gap stands before this rank.
    long_gap: (usize, u64),
    /// Times that the network may still lose a part of the answer.
    retransmissions: u32,
    ambush: Option<Ambush>,
    /// Stores that it waits for in the longest gap, and until which step at most.
    gap_ambush: Option<(Ambush, u64)>,
    pub(super) due_step: u64,
    /// A word of it was stored between post and completion.
    pub(super) is_raced: bool,
    pub(super) was_retransmitted: bool,
}

impl Read {
    /// Draws the course of a READ that is posted at `step`.
    pub(super) fn new(
        rng: &mut Rng,
        weather: &Weather,
        is_quick: bool,
        token: u64,
        at_word: usize,
        buffer: ReadBuffer,
        step: u64,
    ) -> Read {
        let len = buffer.len();
        let order = if is_quick { Order::Ascending } else { draw_order(rng, len) };
        let is_whole = is_quick || rng.one_in(5);
        let burst = if is_whole { len } else { (1 + rng.below(4) as usize).max(len / 128) };
        let gap_steps = if rng.one_in(2) { 1 } else { 1 + rng.below(8) };
        let long_steps =
            if is_quick { 0 } else { rng.pick(&[0, 0, 20, 200, 200, weather.read_gap_steps_max]) };
        let long_gap = (1 + rng.below(len as u64) as usize, rng.below(long_steps + 1));
        let late_steps = if is_quick {
            0
        } else {
            rng.pick(&[0, 0, 2, 30, weather.read_late_steps_max, weather.read_late_steps_max])
        };
        let due_step = step + rng.below(late_steps + 1);
        let retransmissions = if !is_quick && rng.one_in(8) { 1 + rng.below(2) as u32 } else { 0 };
        Read {
            token,
            at_word,
            ranks: 0..len,
            buffer,
            order,
            burst,
            gap_steps,
            long_gap,
            retransmissions,
            ambush: None,
            gap_ambush: None,
            due_step,
            is_raced: false,
            was_retransmitted: false,
        }
    }

    /// It waits for stores to its words before anything of it is fetched.
    pub(super) fn wait_for_stores(&mut self, rng: &mut Rng, step: u64) {
        let (ambush, until_step) = Ambush::draw(rng, step);
        (self.ambush, self.due_step) = (Some(ambush), until_step);
    }

    /// It waits for stores to its words between two of them: for some to any, or when it has all words but one that is not
    /// zero now, for the next one to that.
    pub(super) fn wait_in_gap(&mut self, region: &Words, rng: &mut Rng, step: u64) {
        let len = self.buffer.len();
        let not_zero: Vec<usize> = (0..len).filter(|i| region.load(self.at_word + i) != 0).collect();
        if not_zero.is_empty() || rng.one_in(4) {
            self.gap_ambush = Some(Ambush::draw(rng, step));
            return;
        }
        let last = rng.pick(&not_zero);
        (self.order, self.burst, self.long_gap) = (Order::From((last + 1) % len), len, (len - 1, 0));
        self.gap_ambush = Some(Ambush::of_word(last, rng, step));
    }

    /// A store to `word` comes next, in step `step`. True if the READ has waited for that, and goes on right after it.
    #[inline]
    pub(super) fn note_store(&mut self, word: usize, step: u64) -> bool {
        let offset = word.wrapping_sub(self.at_word);
        if offset >= self.buffer.len() {
            return false;
        }
        self.is_raced = true;
        let is_due = self.ambush.as_mut().is_some_and(|ambush| ambush.note_store(offset));
        if is_due {
            self.due_step = step + 1;
        }
        is_due
    }

    /// It waits no more for stores.
    pub(super) fn end_ambush(&mut self, step: u64) {
        if self.ambush.take().is_some_and(|ambush| !ambush.is_over()) {
            self.due_step = step;
        }
    }

    /// Fetches what is due at `step`. True once everything was fetched.
    pub(super) fn advance(&mut self, region: &Words, rng: &mut Rng, step: u64) -> bool {
        let mut end = self.ranks.end.min(self.ranks.start + self.burst);
        if (self.ranks.start + 1..end).contains(&self.long_gap.0) {
            end = self.long_gap.0;
        }
        for rank in self.ranks.start..end {
            let i = self.order.position(rank, self.buffer.len());
            self.buffer[i] = region.load(self.at_word + i);
        }
        self.due_step = step + self.gap_steps + if end == self.long_gap.0 { self.long_gap.1 } else { 0 };
        self.ranks.start = end;
        if end == self.long_gap.0
            && let Some((ambush, until_step)) = self.gap_ambush.take()
        {
            (self.ambush, self.due_step) = (Some(ambush), until_step.max(self.due_step));
        }
        if !self.ranks.is_empty() {
            return false;
        }
        if self.retransmissions == 0 {
            return true;
        }
        // The answer was lost in part: the server's device fetches that part again, from memory as it is now.
        self.retransmissions -= 1;
        self.was_retransmitted = true;
        let start = rng.below(self.buffer.len() as u64) as usize;
        self.ranks = start..start + 1 + rng.below((self.buffer.len() - start) as u64) as usize;
        self.due_step += rng.below(100);
        false
    }
}

/// The positions of `len` words in the order in which loads fetch them.
pub(super) fn draw_positions(rng: &mut Rng, len: usize) -> impl Iterator<Item = usize> + use<> {
    let order = draw_order(rng, len);
    (0..len).map(move |rank| order.position(rank, len))
}

fn draw_order(rng: &mut Rng, len: usize) -> Order {
    match rng.below(8) {
        0 | 1 => Order::Ascending,
        2 => Order::Descending,
        3 => Order::From(rng.below(len as u64) as usize),
        4 => Order::Any(shuffled_lines(rng, len)),
        _ => {
            let mut positions: Vec<u32> = (0..len as u32).collect();
            rng.shuffle(&mut positions);
            Order::Any(positions)
        }
    }
}

/// Lines in any order, the words of each ascending.
fn shuffled_lines(rng: &mut Rng, len: usize) -> Vec<u32> {
    let mut lines: Vec<u32> = (0..len.div_ceil(8) as u32).collect();
    rng.shuffle(&mut lines);
    lines.iter().flat_map(|line| line * 8..(line * 8 + 8).min(len as u32)).collect()
}
