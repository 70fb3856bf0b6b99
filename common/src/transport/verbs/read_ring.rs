//! Where READs end: registered memory that is given out and taken back in order.
//!
//! A queue pair completes its READs in the order in which they were posted, so the memory is a ring. It starts small,
//! and is replaced by a larger one when a READ does not fit: registering takes long, and few clients read large values.

use std::io;
use std::sync::Arc;

use crate::verbs::{
    LocalRange, MemoryRegion, OutOfRange, ProtectionDomain, ReadSink, RegisterError, anonymous_words,
};

/// Bytes of the first ring.
const START_BYTES: u64 = 256 << 10;
/// A span starts on a cache line, so that no two READs write to one.
const LINE_WORDS: u64 = 8;

/// Why there is no ring of a size.
#[derive(Debug, thiserror::Error)]
pub enum RingMemoryError {
    /// No memory.
    #[error("no memory for READs: {0}")]
    Memory(#[from] io::Error),
    /// It cannot be registered.
    #[error("memory for READs: {0}")]
    Register(#[from] RegisterError),
}

/// The memory, and what of it is lent.
pub(super) struct ReadRing {
    memory: MemoryRegion<ReadSink>,
    len_words: u64,
    /// Words lent and taken back since the beginning, skipped ones included.
    lent: u64,
    returned: u64,
}

/// A part of a ring that is lent for one READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    at_word: u64,
    len_words: u64,
    /// What `returned` becomes when it is given back.
    end: u64,
}

impl ReadRing {
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> Result<ReadRing, RingMemoryError> {
        ReadRing::with_bytes(domain, START_BYTES)
    }

    fn with_bytes(domain: &Arc<ProtectionDomain>, len_bytes: u64) -> Result<ReadRing, RingMemoryError> {
        let words = anonymous_words(len_bytes as usize, false)?;
        let memory = MemoryRegion::register(domain, &words)?;
        Ok(ReadRing { memory, len_words: len_bytes / 8, lent: 0, returned: 0 })
    }

    /// True if nothing is lent.
    fn is_idle(&self) -> bool {
        self.lent == self.returned
    }

    /// True if a READ of this length fits once enough was given back. Two fit then.
    pub(super) fn can_hold(&self, len_words: usize) -> bool {
        len_words as u64 <= self.len_words / 2
    }

    /// Replaces the ring, which must be idle, by one that can hold READs of this length.
    fn grow_for(&mut self, len_words: usize) -> Result<(), RingMemoryError> {
        assert!(self.is_idle(), "a READ may still be writing to the ring");
        let len_bytes = (len_words as u64 * 16).next_power_of_two();
        *self = ReadRing::with_bytes(self.memory.domain(), len_bytes.max(START_BYTES))?;
        Ok(())
    }

    /// Lends room for a READ of `len_words`; none if too little was given back yet.
    pub(super) fn lend(&mut self, len_words: usize) -> Option<Span> {
        let (span, lent) = place(self.len_words, self.lent, self.returned, len_words as u64)?;
        self.lent = lent;
        Some(span)
    }

    /// The same, in a larger ring if this one is too small for such READs and idle.
    #[inline]
    pub(super) fn lend_or_grow(&mut self, len_words: usize) -> Result<Option<Span>, RingMemoryError> {
        if !self.can_hold(len_words) {
            if !self.is_idle() {
                return Ok(None);
            }
            self.grow_for(len_words)?;
        }
        Ok(self.lend(len_words))
    }

    pub(super) fn range(&self, span: Span) -> Result<LocalRange<ReadSink>, OutOfRange> {
        self.memory.range(span.at_word * 8, span.len_words * 8)
    }

    /// Takes the oldest span back, and copies what is in it to `out` if that is given.
    #[inline]
    pub(super) fn give_back(&mut self, span: Span, out: Option<&mut [u64]>) {
        if let Some(out) = out {
            self.memory.words().copy_out(span.at_word as usize, out);
        }
        self.returned = span.end;
    }
}

/// The next span of a ring of `capacity` words and what `lent` is after it. A span never wraps around.
fn place(capacity: u64, lent: u64, returned: u64, len_words: u64) -> Option<(Span, u64)> {
    let takes = len_words.next_multiple_of(LINE_WORDS);
    let at_word = lent % capacity;
    let skipped = if at_word + takes > capacity { capacity - at_word } else { 0 };
    let end = lent + skipped + takes;
    let at_word = (at_word + skipped) % capacity;
    (end - returned <= capacity).then_some((Span { at_word, len_words, end }, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_lines_that_never_overlap_and_never_wrap() {
        const CAPACITY: u64 = 64;
        let (mut lent, mut returned) = (0, 0);
        let mut out: std::collections::VecDeque<Span> = std::collections::VecDeque::new();
        for len in [8, 1, 16, 9, 24, 32, 5, 8, 31, 17, 1, 1, 1, 32, 32].into_iter().cycle().take(300) {
            let span = loop {
                match place(CAPACITY, lent, returned, len) {
                    Some((span, after)) => {
                        lent = after;
                        break span;
                    }
                    None => returned = out.pop_front().expect("half of the ring always fits an idle one").end,
                }
            };
            assert!(span.at_word % LINE_WORDS == 0 && span.at_word + span.len_words <= CAPACITY);
            for other in &out {
                let apart = span.at_word + span.len_words <= other.at_word
                    || other.at_word + other.len_words <= span.at_word;
                assert!(apart, "{span:?} overlaps {other:?}");
            }
            out.push_back(span);
        }
    }
}
