//! The side that pops.

use crate::region::{WORD_BYTES, Words, append_bytes};
use crate::sync::{Ordering, fence};

use super::{
    ASLEEP_WORD, HEADER_WORDS, LENGTH_MASK, PRESENT, PROGRESS_WORD, RingError, Shared, header, record_words,
};

/// The one consumer of a ring.
///
/// After an error every further pop fails with the same one, and the ring counts as not empty.
pub struct Consumer {
    shared: Shared,
    /// Position of the next header.
    tail: u64,
    pub(super) sequence: u32,
    broken: Option<RingError>,
    /// The payload in whole words, after it was loaded.
    scratch: Box<[u64]>,
}

impl Consumer {
    /// The consumer of a fresh ring: `control` and `ring` are zero.
    ///
    /// # Panics
    /// Panics if `control` is not [`super::CONTROL_WORDS`] long or `ring` not a power of two of at least four words.
    pub fn new(control: Words, ring: Words) -> Consumer {
        let shared = Shared::new(control, ring);
        let scratch = vec![0; shared.message_max_bytes.div_ceil(WORD_BYTES)].into_boxed_slice();
        Consumer { shared, tail: 0, sequence: 0, broken: None, scratch }
    }

    /// Most payload bytes of one message in this ring.
    pub fn message_max_bytes(&self) -> usize {
        self.shared.message_max_bytes
    }

    /// Takes the next message: replaces the contents of `out` by its payload and returns its length in bytes. `None` if
    /// there is none now; then `out` is as it was.
    ///
    /// Never blocks, and does a bounded amount of work: at most one message is looked at.
    ///
    /// # Errors
    /// [`RingError`] if the producer broke the ring's rules; it stays broken.
    #[inline]
    pub fn try_pop(&mut self, out: &mut Vec<u8>) -> Result<Option<usize>, RingError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let found = self.shared.ring.load_acquire(self.shared.place(self.tail));
        if found == 0 {
            return Ok(None);
        }
        let length_bytes = match self.parse(found) {
            Ok(length_bytes) => length_bytes,
            Err(error) => {
                self.broken = Some(error);
                return Err(error);
            }
        };
        self.copy_out(length_bytes, out);
        self.tail += record_words(length_bytes) as u64;
        self.sequence = self.sequence.wrapping_add(1);
        // Release: the loads above are done before the producer may store there again.
        self.shared.control.store_release(PROGRESS_WORD, self.tail);
        Ok(Some(length_bytes))
    }

    /// True if there is nothing to pop now, not even an error.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.broken.is_none() && self.shared.ring.load(self.shared.place(self.tail)) == 0
    }

    /// Announces that the consumer is about to sleep. True if it may: the producer's next message then finds
    /// [`super::Producer::needs_wake`] true. False if a message has arrived meanwhile; then nothing is announced.
    ///
    /// After true, call [`Consumer::woke`] when awake again, whatever the reason.
    pub fn prepare_sleep(&mut self) -> bool {
        self.announce_sleep();
        // Pairs with the fence in `Producer::needs_wake`.
        fence(Ordering::SeqCst);
        let may_sleep = self.is_empty();
        if !may_sleep {
            self.woke();
        }
        may_sleep
    }

    /// Takes back what [`Consumer::prepare_sleep`] announced.
    pub fn woke(&mut self) {
        self.shared.control.store(ASLEEP_WORD, 0);
    }

    fn announce_sleep(&mut self) {
        self.shared.control.store(ASLEEP_WORD, 1);
    }

    /// The length of the record that starts with the header `found`.
    #[inline]
    fn parse(&self, found: u64) -> Result<usize, RingError> {
        let sequence = (found >> 32) as u32;
        let found_bytes = (found & LENGTH_MASK) as usize;
        if found & PRESENT == 0 || found != header(sequence, found_bytes) {
            return Err(RingError::BadHeader { found });
        }
        if sequence != self.sequence {
            return Err(RingError::BadSequence { expected: self.sequence, found: sequence });
        }
        let limit_bytes = self.shared.message_max_bytes;
        if found_bytes > limit_bytes {
            return Err(RingError::BadLength { limit_bytes, found_bytes });
        }
        Ok(found_bytes)
    }

    /// Replaces `out` by the payload of the record at `tail`.
    #[inline]
    fn copy_out(&mut self, length_bytes: usize, out: &mut Vec<u8>) {
        let payload_words = record_words(length_bytes) - HEADER_WORDS;
        let start = self.tail + HEADER_WORDS as u64;
        let first = self.shared.words_to_end(start).min(payload_words);
        let (before_end, around) = self.scratch[..payload_words].split_at_mut(first);
        self.shared.ring.copy_out(self.shared.place(start), before_end);
        self.shared.ring.copy_out(0, around);
        out.clear();
        append_bytes(&self.scratch[..payload_words], length_bytes, out);
    }
}
