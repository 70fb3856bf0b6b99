//! The side that pushes.

use crate::region::{WORD_BYTES, Words, bytes_of_mut};
use crate::sync::{Ordering, fence};

use super::{ASLEEP_WORD, HEADER_WORDS, PROGRESS_WORD, RingError, Shared, header, record_words};

/// Why a message was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// There is no room now; there will be when the consumer has made progress.
    #[error("ring: full; retry when the peer has read its messages")]
    Full,
    /// The message can never be pushed.
    #[error(
        "ring: a message of {found_bytes} bytes is above the limit of {limit_bytes}; use the staging area"
    )]
    TooLarge {
        /// Most payload bytes of a message in this ring.
        limit_bytes: usize,
        /// Payload bytes of the message.
        found_bytes: usize,
    },
    /// The consumer broke the ring's rules.
    #[error(transparent)]
    Broken(#[from] RingError),
}

/// The one producer of a ring.
///
/// A message is whole or absent for the consumer, and messages arrive in the order in which they were pushed.
pub struct Producer {
    shared: Shared,
    /// Position of the next header. The word there is zero.
    pub(super) head: u64,
    /// The consumer's progress when last looked at.
    pub(super) tail: u64,
    pub(super) sequence: u32,
    /// The payload in whole words, before it is stored.
    scratch: Box<[u64]>,
}

impl Producer {
    /// The producer of a fresh ring: `control` and `ring` are zero.
    ///
    /// # Panics
    /// Panics if `control` is not [`super::CONTROL_WORDS`] long or `ring` not a power of two of at least four words.
    pub fn new(control: Words, ring: Words) -> Producer {
        let shared = Shared::new(control, ring);
        let scratch = vec![0; shared.message_max_bytes.div_ceil(WORD_BYTES)].into_boxed_slice();
        Producer { shared, head: 0, tail: 0, sequence: 0, scratch }
    }

    /// Most payload bytes of one message in this ring.
    pub fn message_max_bytes(&self) -> usize {
        self.shared.message_max_bytes
    }

    /// Pushes the concatenation of `parts` as one message, or nothing.
    ///
    /// Never blocks. Ask [`Producer::needs_wake`] after it, once for any number of messages.
    ///
    /// # Errors
    /// [`PushError`] says whether it is worth another try.
    #[inline]
    pub fn try_push(&mut self, parts: &[&[u8]]) -> Result<(), PushError> {
        let length_bytes = parts.iter().fold(0_usize, |sum, part| sum.saturating_add(part.len()));
        if length_bytes > self.shared.message_max_bytes {
            return Err(PushError::TooLarge {
                limit_bytes: self.shared.message_max_bytes,
                found_bytes: length_bytes,
            });
        }
        let record_words = record_words(length_bytes);
        self.make_room(record_words)?;
        self.gather(parts, record_words - HEADER_WORDS);
        self.publish(record_words, length_bytes);
        Ok(())
    }

    /// Payload bytes that one message pushed now could have at most; zero also if the consumer broke the rules.
    pub fn room_bytes(&mut self) -> usize {
        if self.refresh_tail().is_err() {
            return 0;
        }
        let room_words = self.free_words().saturating_sub(2 * HEADER_WORDS);
        (room_words * WORD_BYTES).min(self.shared.message_max_bytes)
    }

    /// True if the consumer sleeps, or may be about to, and must be woken to see what was pushed before this call.
    #[inline]
    pub fn needs_wake(&self) -> bool {
        // Pairs with the fence in `Consumer::prepare_sleep`: either this load sees the flag, or the consumer's second
        // look sees the record. Release and acquire are not enough, because a store and a later load may change places.
        fence(Ordering::SeqCst);
        self.shared.control.load(ASLEEP_WORD) != 0
    }

    fn free_words(&self) -> usize {
        self.shared.ring.len_words() - (self.head - self.tail) as usize
    }

    /// Makes sure that a record and the header after it fit.
    #[inline]
    fn make_room(&mut self, record_words: usize) -> Result<(), PushError> {
        let needed_words = record_words + HEADER_WORDS;
        if self.free_words() < needed_words {
            self.refresh_tail()?;
            if self.free_words() < needed_words {
                return Err(PushError::Full);
            }
        }
        Ok(())
    }

    #[cold]
    fn refresh_tail(&mut self) -> Result<(), RingError> {
        // Acquire: the consumer's loads of what is overwritten now came before its store of this word.
        let found = self.shared.control.load_acquire(PROGRESS_WORD);
        if found < self.tail || found > self.head {
            return Err(RingError::BadProgress { low: self.tail, high: self.head, found });
        }
        self.tail = found;
        Ok(())
    }

    fn gather(&mut self, parts: &[&[u8]], payload_words: usize) {
        if let Some(last) = self.scratch[..payload_words].last_mut() {
            // The bytes behind the payload are the peer's to see: not those of an older message.
            *last = 0;
        }
        let mut rest = bytes_of_mut(&mut self.scratch[..payload_words]);
        for part in parts {
            let (target, behind) = rest.split_at_mut(part.len());
            target.copy_from_slice(part);
            rest = behind;
        }
    }

    /// Stores the record whose payload is in `scratch`.
    #[inline]
    fn publish(&mut self, record_words: usize, length_bytes: usize) {
        let next = self.head + record_words as u64;
        self.shared.ring.store(self.shared.place(next), 0);
        self.copy_in(record_words - HEADER_WORDS);
        self.shared.ring.store_release(self.shared.place(self.head), header(self.sequence, length_bytes));
        self.head = next;
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Copies the payload to its place, around the end of the ring if need be.
    #[inline]
    fn copy_in(&self, payload_words: usize) {
        let start = self.head + HEADER_WORDS as u64;
        let first = self.shared.words_to_end(start).min(payload_words);
        self.shared.ring.copy_in(self.shared.place(start), &self.scratch[..first]);
        self.shared.ring.copy_in(0, &self.scratch[first..payload_words]);
    }
}
