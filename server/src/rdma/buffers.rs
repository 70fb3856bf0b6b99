//! Registered memory of a worker for messages: receives, and replies that do not go inline.

use std::sync::Arc;

use kv_common::region::{Words, bytes_of_mut};
use kv_common::transport::verbs::exchange::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, decode_credit};
use kv_common::verbs::{
    Local, LocalRange, MemoryRegion, ProtectionDomain, ReceiveBatch, SendOnly, SharedReceiveQueue,
    anonymous_words,
};
use tracing::error;

use super::RdmaError;
use super::queues::{RECEIVE, RECEIVES_PER_PAIR, Sent};

/// Buffers of a worker for replies that do not go inline.
const REPLY_BUFFERS: usize = 64;
/// Receives that are posted with one doorbell.
const RECEIVES_PER_POST: usize = 16;

const REQUEST_WORDS: usize = REQUEST_MAX_BYTES.next_multiple_of(64) / 8;
const REPLY_WORDS: usize = REPLY_MAX_BYTES.next_multiple_of(64) / 8;

/// Receive buffers, in chunks for one client each. Any client may get any.
pub(super) struct Buffers {
    chunks: Vec<(MemoryRegion<Local>, Words)>,
    unposted: ReceiveBatch,
    scratch: Vec<u64>,
}

/// Buffers for replies.
pub(super) struct ReplyBuffers {
    memory: MemoryRegion<SendOnly>,
    free: Vec<u16>,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        let unposted = ReceiveBatch::with_capacity(RECEIVES_PER_PAIR + RECEIVES_PER_POST);
        Buffers { chunks: Vec::new(), unposted, scratch: Vec::new() }
    }

    /// Buffers that there are.
    pub(super) fn len(&self) -> usize {
        self.chunks.len() * RECEIVES_PER_PAIR
    }

    /// Adds the receives of one more client.
    pub(super) fn grow(
        &mut self,
        domain: &Arc<ProtectionDomain>,
        receives: &SharedReceiveQueue,
    ) -> Result<(), RdmaError> {
        let words = anonymous_words(RECEIVES_PER_PAIR * REQUEST_WORDS * 8, false)?;
        let memory = MemoryRegion::register(domain, &words)?;
        let first = self.chunks.len() * RECEIVES_PER_PAIR;
        self.chunks.push((memory, words));
        for buffer in first..first + RECEIVES_PER_PAIR {
            self.give_back(buffer, receives);
        }
        self.post(receives);
        Ok(())
    }

    pub(super) fn copy_out(&mut self, buffer: usize, len_bytes: usize, message: &mut Vec<u8>) {
        let (_, words) = &self.chunks[buffer / RECEIVES_PER_PAIR];
        self.scratch.resize(len_bytes.div_ceil(8), 0);
        words.copy_out(buffer % RECEIVES_PER_PAIR * REQUEST_WORDS, &mut self.scratch);
        message.clear();
        message.extend_from_slice(&bytes_of_mut(&mut self.scratch)[..len_bytes]);
    }

    /// What a buffer says about credit, if that is what is in it.
    pub(super) fn credit(&self, buffer: usize, len_bytes: usize) -> Option<u64> {
        let (_, words) = &self.chunks[buffer / RECEIVES_PER_PAIR];
        let word = words.load(buffer % RECEIVES_PER_PAIR * REQUEST_WORDS);
        let mut word = [word];
        bytes_of_mut(&mut word).get(..len_bytes).and_then(decode_credit)
    }

    /// A buffer is free: it will be posted.
    pub(super) fn give_back(&mut self, buffer: usize, receives: &SharedReceiveQueue) {
        let (memory, _) = &self.chunks[buffer / RECEIVES_PER_PAIR];
        let at_byte = buffer % RECEIVES_PER_PAIR * REQUEST_WORDS * 8;
        let range = memory.range(at_byte as u64, REQUEST_MAX_BYTES as u64);
        let pushed = self
            .unposted
            .push(RECEIVE | buffer as u64, range.expect("a chunk has `RECEIVES_PER_PAIR` buffers"));
        pushed.expect("it is posted before it is full");
        if self.unposted.len() >= RECEIVES_PER_POST {
            self.post(receives);
        }
    }

    pub(super) fn post(&mut self, receives: &SharedReceiveQueue) {
        if !self.unposted.is_empty()
            && let Err(error) = receives.post(&mut self.unposted)
        {
            error!(%error, "receives cannot be posted");
        }
    }
}

impl ReplyBuffers {
    pub(super) fn register(domain: &Arc<ProtectionDomain>) -> Result<ReplyBuffers, RdmaError> {
        let words = anonymous_words(REPLY_BUFFERS * REPLY_WORDS * 8, false)?;
        let memory = MemoryRegion::register(domain, &words)?;
        Ok(ReplyBuffers { memory, free: (0..REPLY_BUFFERS as u16).collect() })
    }

    /// A buffer, filled with `words`, of which `len_bytes` count.
    pub(super) fn lend(&mut self, words: &[u64], len_bytes: usize) -> Option<(u16, LocalRange<SendOnly>)> {
        let buffer = self.free.pop()?;
        let at_word = buffer as usize * REPLY_WORDS;
        self.memory.words().copy_in(at_word, words);
        let range = self.memory.range(at_word as u64 * 8, len_bytes as u64);
        Some((buffer, range.expect("a reply has at most `REPLY_MAX_BYTES`")))
    }

    pub(super) fn give_back(&mut self, sent: Sent) {
        if let Sent::Reply(Some(buffer)) = sent {
            self.free.push(buffer);
        }
    }
}
