//! A ring of byte messages in shared memory, from one producer to one consumer that do not trust each other.
//!
//! ```text
//! control lines (32 words)                        ring (a power of two of words)
//!   word  0  progress   written by the consumer     |..free..| H p p p | H p | 0 |..free..|
//!   word 16  asleep     written by the consumer               ^ tail          ^ head, always zero
//!
//! record   H            sequence:32 | present:1 = 1 | zero:7 | length:24 (bytes of payload)
//!          p ...        the payload in whole words, wrapping around at the end of the ring
//! ```
//!
//! Positions count words since the ring was made and never wrap; the place of position `p` is `p` modulo the capacity.
//!
//! - The consumer polls the word at its `tail`. Zero means that nothing is there. The producer stores a record in this
//!   order: zero to the place of the *next* header, the payload, the header (release). So whoever sees a header also
//!   sees a zero or a real header behind its record, never what a payload left there a lap ago: no message can forge
//!   a record, whatever bytes it holds.
//! - `head`, `tail` and the sequence number live in private memory. From the shared side the producer believes only
//!   the progress word, and only if it did not go back and did not overtake; the consumer believes only a header whose
//!   every bit is as it must be. What it pops was copied to private memory before anybody parses it.
//! - The progress word has its own pair of cache lines. The consumer stores it after each record, the producer loads it
//!   only when the ring looks full, so in a ping-pong that line never moves.
//! - Going to sleep is Dekker's pattern. Consumer: store `asleep`, fence, look at the ring once more. Producer:
//!   publish, fence, look at `asleep`. One of the two sees the other.

mod consumer;
mod producer;

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

pub use consumer::Consumer;
pub use producer::{Producer, PushError};

use crate::region::{WORD_BYTES, Words};

/// Most payload bytes of one message, whatever the capacity. Larger values go through the staging area.
pub const MESSAGE_MAX_BYTES: usize = 16 * 1024 + 512;

/// Words of control lines that belong to one ring.
pub const CONTROL_WORDS: usize = 32;

/// Capacity of one direction unless told otherwise: three of the largest messages and room to spare.
pub const DEFAULT_CAPACITY_BYTES: usize = 64 * 1024;

const PROGRESS_WORD: usize = 0;
const ASLEEP_WORD: usize = 16;

const PRESENT: u64 = 1 << 31;
const LENGTH_BITS: u32 = 24;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;
const HEADER_WORDS: usize = 1;

/// The fewest words of a ring that can do anything: a record of one payload word, and the next header.
const CAPACITY_MIN_WORDS: usize = 4;

// Two cache lines apart, because processors fetch lines in pairs.
const _: () = assert!((ASLEEP_WORD - PROGRESS_WORD) * WORD_BYTES == 128);
const _: () = assert!(CONTROL_WORDS * WORD_BYTES == 256);
const _: () = assert!(MESSAGE_MAX_BYTES as u64 <= LENGTH_MASK);
const _: () = assert!(LENGTH_MASK < PRESENT && PRESENT < 1 << 32);
const _: () = assert!(3 * (MESSAGE_MAX_BYTES + 2 * WORD_BYTES) < DEFAULT_CAPACITY_BYTES);

/// What a peer may not do to a ring. The connection must be given up: there is no way back into step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// A header has bits set that a producer never sets, or lacks the one that it always sets.
    #[error(
        "ring: {found:#018x} is not a record header; the peer is broken or hostile, close the connection"
    )]
    BadHeader {
        /// The word found.
        found: u64,
    },
    /// A header does not carry the next sequence number.
    #[error(
        "ring: expected record {expected}, found {found}; the peer is broken or hostile, close the connection"
    )]
    BadSequence {
        /// The sequence number due.
        expected: u32,
        /// The one found.
        found: u32,
    },
    /// A header announces more than a message may hold.
    #[error(
        "ring: a message of {found_bytes} bytes is above the limit of {limit_bytes}; close the connection"
    )]
    BadLength {
        /// Most bytes of a message in this ring.
        limit_bytes: usize,
        /// Bytes announced.
        found_bytes: usize,
    },
    /// The consumer claims progress that it cannot have made.
    #[error(
        "ring: progress {found} is outside {low}..={high} words; the peer is broken or hostile, close the connection"
    )]
    BadProgress {
        /// The progress known before.
        low: u64,
        /// What was produced so far.
        high: u64,
        /// The progress claimed.
        found: u64,
    },
}

/// The shared words of one ring: the same for both sides.
#[derive(Clone)]
struct Shared {
    control: Words,
    ring: Words,
    /// Most payload bytes of a message in this ring.
    message_max_bytes: usize,
}

impl Shared {
    /// # Panics
    /// Panics if the views have a wrong size: whoever lays out the memory checks sizes before.
    fn new(control: Words, ring: Words) -> Shared {
        let capacity_words = ring.len_words();
        assert!(control.len_words() == CONTROL_WORDS, "a ring has {CONTROL_WORDS} control words");
        assert!(capacity_words.is_power_of_two() && capacity_words >= CAPACITY_MIN_WORDS, "ring capacity");
        Shared { control, ring, message_max_bytes: message_max_bytes(capacity_words) }
    }

    #[inline]
    fn place(&self, position: u64) -> usize {
        position as usize & (self.ring.len_words() - 1)
    }

    /// The words from `position` to the end of the ring, for copies that may wrap around.
    #[inline]
    fn words_to_end(&self, position: u64) -> usize {
        self.ring.len_words() - self.place(position)
    }
}

/// Most payload bytes of a message in a ring of `capacity_words`: what fits beside its header and the next one, and
/// leaves half of the ring to the messages before it.
fn message_max_bytes(capacity_words: usize) -> usize {
    (capacity_words / 2 * WORD_BYTES).min(MESSAGE_MAX_BYTES)
}

#[inline]
fn header(sequence: u32, length_bytes: usize) -> u64 {
    debug_assert!(length_bytes as u64 <= LENGTH_MASK);
    u64::from(sequence) << 32 | PRESENT | length_bytes as u64
}

#[inline]
fn record_words(length_bytes: usize) -> usize {
    HEADER_WORDS + length_bytes.div_ceil(WORD_BYTES)
}
