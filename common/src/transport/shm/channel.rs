//! What lies where in the memory that one client shares with the server.
//!
//! ```text
//!  byte 0       control lines of the request ring       256 bytes
//!       256     control lines of the reply ring         256 bytes
//!       512     nothing
//!       4096    request ring, client to server          ring_bytes, a power of two
//!       ...     reply ring, server to client            ring_bytes
//!       ...     staging area, for large values          staging_bytes, whole pages
//! ```
//!
//! No page has memory before it is touched, so a client that sends small requests costs its control page and as much of
//! the rings as went through them, and the staging area costs nothing before the first large value.
//!
//! Both sides compute the layout from the two sizes, which the server names in its hello.

use crate::region::{WORD_BYTES, Words};
use crate::ring::{CONTROL_WORDS, Consumer, DEFAULT_CAPACITY_BYTES, MESSAGE_MAX_BYTES, Producer};

const PAGE_BYTES: u64 = 4096;
const REQUEST_CONTROL_WORD: usize = 0;
const REPLY_CONTROL_WORD: usize = REQUEST_CONTROL_WORD + CONTROL_WORDS;
const CONTROL_AREA_BYTES: u64 = PAGE_BYTES;

/// The smallest ring: two of the largest messages must fit, so that one can be written while one is read.
pub const RING_MIN_BYTES: u64 = 64 * 1024;
/// The largest ring; more only hides a peer that does not read.
pub const RING_MAX_BYTES: u64 = 16 * 1024 * 1024;
/// The smallest staging area unless told otherwise: the largest value of 1 MiB, its key, and room for headers.
pub const DEFAULT_STAGING_BYTES: u64 = 1024 * 1024 + 64 * 1024;
/// The largest staging area.
pub const STAGING_MAX_BYTES: u64 = 1024 * 1024 * 1024;

const _: () = assert!((REPLY_CONTROL_WORD + CONTROL_WORDS) * WORD_BYTES <= CONTROL_AREA_BYTES as usize);
const _: () = assert!(RING_MIN_BYTES.is_power_of_two() && RING_MAX_BYTES.is_power_of_two());
const _: () = assert!(RING_MIN_BYTES.is_multiple_of(PAGE_BYTES));
const _: () = assert!(RING_MIN_BYTES as usize >= 2 * (MESSAGE_MAX_BYTES + 2 * WORD_BYTES));
const _: () =
    assert!(DEFAULT_CAPACITY_BYTES as u64 >= RING_MIN_BYTES && DEFAULT_CAPACITY_BYTES.is_power_of_two());
const _: () =
    assert!(DEFAULT_STAGING_BYTES.is_multiple_of(PAGE_BYTES) && DEFAULT_STAGING_BYTES > 1024 * 1024);

/// Sizes that make no channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The ring's size.
    #[error(
        "a ring of {found_bytes} bytes cannot be: a power of two from {RING_MIN_BYTES} to {RING_MAX_BYTES} is needed"
    )]
    Ring {
        /// Bytes asked for.
        found_bytes: u64,
    },
    /// The staging area's size.
    #[error(
        "a staging area of {found_bytes} bytes cannot be: a multiple of {PAGE_BYTES} up to {STAGING_MAX_BYTES} is needed"
    )]
    Staging {
        /// Bytes asked for.
        found_bytes: u64,
    },
}

/// The places of a channel's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLayout {
    ring_bytes: u64,
    staging_bytes: u64,
}

/// The server's end of a channel.
pub struct ServerEnd {
    /// What the client asks.
    pub requests: Consumer,
    /// What the server answers.
    pub replies: Producer,
    /// Room for large values; the client can change it at any time.
    pub staging: Words,
}

/// A client's end of a channel.
pub struct ClientEnd {
    /// What the client asks.
    pub requests: Producer,
    /// What the server answers.
    pub replies: Consumer,
    /// Room for large values; the server can change it at any time.
    pub staging: Words,
}

impl ChannelLayout {
    /// The layout of a channel with two rings of `ring_bytes` and a staging area of `staging_bytes` (may be 0).
    ///
    /// # Errors
    /// [`LayoutError`] names the sizes that can be.
    pub fn new(ring_bytes: u64, staging_bytes: u64) -> Result<ChannelLayout, LayoutError> {
        if !ring_bytes.is_power_of_two() || !(RING_MIN_BYTES..=RING_MAX_BYTES).contains(&ring_bytes) {
            return Err(LayoutError::Ring { found_bytes: ring_bytes });
        }
        if !staging_bytes.is_multiple_of(PAGE_BYTES) || staging_bytes > STAGING_MAX_BYTES {
            return Err(LayoutError::Staging { found_bytes: staging_bytes });
        }
        Ok(ChannelLayout { ring_bytes, staging_bytes })
    }

    /// Bytes of the whole.
    pub fn len_bytes(self) -> u64 {
        CONTROL_AREA_BYTES + 2 * self.ring_bytes + self.staging_bytes
    }

    /// Bytes of each ring.
    pub fn ring_bytes(self) -> u64 {
        self.ring_bytes
    }

    /// Bytes of the staging area.
    pub fn staging_bytes(self) -> u64 {
        self.staging_bytes
    }

    /// The server's end of the fresh channel in `memory`.
    ///
    /// # Panics
    /// Panics if `memory` is not [`ChannelLayout::len_bytes`] long.
    pub fn server_end(self, memory: &Words) -> ServerEnd {
        let parts = self.parts(memory);
        ServerEnd {
            requests: Consumer::new(parts.request_control, parts.requests),
            replies: Producer::new(parts.reply_control, parts.replies),
            staging: parts.staging,
        }
    }

    /// The client's end of the fresh channel in `memory`.
    ///
    /// # Panics
    /// Panics if `memory` is not [`ChannelLayout::len_bytes`] long.
    pub fn client_end(self, memory: &Words) -> ClientEnd {
        let parts = self.parts(memory);
        ClientEnd {
            requests: Producer::new(parts.request_control, parts.requests),
            replies: Consumer::new(parts.reply_control, parts.replies),
            staging: parts.staging,
        }
    }

    fn parts(self, memory: &Words) -> Parts {
        assert_eq!(
            memory.len_words(),
            words(self.len_bytes()),
            "the memory has another size than its layout"
        );
        let requests_at = CONTROL_AREA_BYTES;
        let replies_at = requests_at + self.ring_bytes;
        let staging_at = replies_at + self.ring_bytes;
        Parts {
            request_control: memory.sub(REQUEST_CONTROL_WORD, CONTROL_WORDS),
            reply_control: memory.sub(REPLY_CONTROL_WORD, CONTROL_WORDS),
            requests: memory.sub(words(requests_at), words(self.ring_bytes)),
            replies: memory.sub(words(replies_at), words(self.ring_bytes)),
            staging: memory.sub(words(staging_at), words(self.staging_bytes)),
        }
    }
}

impl Default for ChannelLayout {
    fn default() -> ChannelLayout {
        ChannelLayout { ring_bytes: DEFAULT_CAPACITY_BYTES as u64, staging_bytes: DEFAULT_STAGING_BYTES }
    }
}

struct Parts {
    request_control: Words,
    reply_control: Words,
    requests: Words,
    replies: Words,
    staging: Words,
}

/// Whole words in `bytes`, which is at most some GiB.
fn words(bytes: u64) -> usize {
    bytes as usize / WORD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_meet_and_the_parts_are_apart() {
        let layout = ChannelLayout::new(64 * 1024, 8192).unwrap();
        assert_eq!(layout.len_bytes(), 4096 + 2 * 65536 + 8192);
        let memory = Words::zeroed(layout.len_bytes() as usize / 8);
        let (mut server, mut client) = (layout.server_end(&memory), layout.client_end(&memory));
        // Twice around each ring, so that every word of the rings was written to.
        let mut out = Vec::new();
        for i in 0..600_u64 {
            let message = vec![i as u8; 240];
            client.requests.try_push(&[&message]).unwrap();
            server.replies.try_push(&[&message, b"reply"]).unwrap();
            server.requests.try_pop(&mut out).unwrap().unwrap();
            assert_eq!(out, message);
            client.replies.try_pop(&mut out).unwrap().unwrap();
            assert_eq!(out, [&message[..], b"reply"].concat());
        }
        assert_eq!(client.staging.len_words(), 1024);
        assert!((0..1024).all(|at| server.staging.load(at) == 0), "the rings end before the staging area");
        client.staging.store(1023, 9);
        assert_eq!(server.staging.load(1023), 9);
        assert_eq!(memory.load(memory.len_words() - 1), 9);
        assert!(server.requests.prepare_sleep() && client.requests.needs_wake());
        assert!(!server.replies.needs_wake(), "each direction has its own flag");
    }

    #[test]
    fn sizes_that_cannot_be_are_errors() {
        for ring_bytes in [0, 1, 4096, 65535, 65537, 3 << 16, 32 << 20, 1 << 63, u64::MAX] {
            let error = ChannelLayout::new(ring_bytes, 0).unwrap_err();
            assert_eq!(error, LayoutError::Ring { found_bytes: ring_bytes });
        }
        for staging_bytes in [1, 4095, (1 << 30) + 4096, u64::MAX] {
            let error = ChannelLayout::new(65536, staging_bytes).unwrap_err();
            assert_eq!(error, LayoutError::Staging { found_bytes: staging_bytes });
        }
        let ChannelLayout { ring_bytes, staging_bytes } = ChannelLayout::default();
        assert_eq!(ChannelLayout::new(ring_bytes, staging_bytes), Ok(ChannelLayout::default()));
    }
}
