//! What a client has posted and what has come of it.
//!
//! READs and SENDs share one send queue, which completes in order; so a completion settles everything that was posted
//! before it, and unsignalled SENDs need no completion of their own.
#![allow(unsafe_code, reason = "says when the device no longer writes to memory of the user")]

use std::collections::VecDeque;
use std::sync::Arc;

use super::exchange::{REPLY_MAX_BYTES, REQUEST_MAX_BYTES, encode_credit};
use super::read_ring::{ReadRing, RingMemoryError, Span};
use crate::region::{Words, bytes_of_mut};
use crate::transport::user_memory::Lent;
use crate::transport::{Broken, Event, ReadBuffer, SendError, UserMemory};
use crate::verbs::{
    Completed, Completion, Local, MemoryRegion, PostError, ProtectionDomain, QueuePair, Rc, ReadyToSend,
    ReceiveBatch, RegisterError, RemoteMemory, SendBatch, SendOnly, anonymous_words,
};

/// Set in the id of a receive; the rest is its buffer. Other ids are sequence numbers of the send queue.
const RECEIVE: u64 = 1 << 63;
/// Requests that are posted with one doorbell.
const BATCH_MAX: usize = 32;
/// Of so many SENDs one is signalled.
const SENDS_PER_SIGNAL: u32 = 8;

/// Words of a buffer for a request, and for a reply: whole cache lines.
const REQUEST_WORDS: usize = REQUEST_MAX_BYTES.next_multiple_of(64) / 8;
const REPLY_WORDS: usize = REPLY_MAX_BYTES.next_multiple_of(64) / 8;

/// How much a connection has of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// READs in flight.
    pub(super) reads: usize,
    /// Requests in flight.
    pub(super) requests: usize,
    /// Receives for replies.
    pub(super) replies: usize,
}

impl Sizes {
    /// Requests of the send queue: READs, requests, and as many credit messages as can be among unsignalled SENDs.
    pub(super) fn sends(self) -> usize {
        self.reads + self.requests + 2 * SENDS_PER_SIGNAL as usize
    }

    /// Completions that can be outstanding at once, if all fail.
    pub(super) fn completions(self) -> usize {
        self.sends() + self.replies
    }
}

/// A READ that was asked for.
pub(super) struct Read {
    pub(super) token: u64,
    pub(super) at_word: usize,
    pub(super) buffer: ReadBuffer,
}

/// Where a READ ends.
enum Sink {
    /// In the ring; its words are then copied to this buffer.
    Ring(Vec<u64>, Span),
    /// In memory of the user, so many words.
    User(Lent, usize),
}

enum Posted {
    Read {
        token: u64,
        sink: Sink,
    },
    /// Its words are wanted by nobody.
    RawRead(Span),
    /// The buffer that it is sent from; none if it went inline.
    Send(Option<u16>),
}

/// The registered memory of a connection.
pub(super) struct Memory {
    reads: ReadRing,
    requests: MemoryRegion<SendOnly>,
    replies: MemoryRegion<Local>,
    request_words: Words,
    reply_words: Words,
}

impl Memory {
    pub(super) fn new(domain: &Arc<ProtectionDomain>, sizes: Sizes) -> Result<Memory, RingMemoryError> {
        let request_words = anonymous_words(sizes.requests * REQUEST_WORDS * 8, false)?;
        let reply_words = anonymous_words(sizes.replies * REPLY_WORDS * 8, false)?;
        let register = |error: RegisterError| RingMemoryError::Register(error);
        Ok(Memory {
            reads: ReadRing::new(domain)?,
            requests: MemoryRegion::register(domain, &request_words).map_err(register)?,
            replies: MemoryRegion::register(domain, &reply_words).map_err(register)?,
            request_words,
            reply_words,
        })
    }

    /// Adds the receive with this number to a batch.
    pub(super) fn push_receive(&self, index: usize, batch: &mut ReceiveBatch) {
        let range = self.replies.range((index * REPLY_WORDS * 8) as u64, REPLY_MAX_BYTES as u64);
        let pushed = batch.push(RECEIVE | index as u64, range.expect("there are as many as `Sizes` says"));
        pushed.expect("the batch has room for all receives");
    }
}

/// A connected queue pair and everything that is posted to it.
pub(super) struct Work {
    /// First, so that it is gone before the memory that it uses.
    pair: Option<QueuePair<Rc, ReadyToSend>>,
    sizes: Sizes,
    memory: Memory,
    region: RemoteMemory,
    batch: SendBatch<Rc>,
    receives: ReceiveBatch,
    /// What is in the send queue, and behind it what is in the batch, oldest first.
    posted: VecDeque<Posted>,
    /// The sequence number of the oldest.
    first_seq: u64,
    reads_posted: usize,
    sends_since_signal: u32,
    free_requests: Vec<u16>,
    /// READs that wait for their turn.
    waiting: VecDeque<Read>,
    /// READs that the device gave back undone, after the end: token and buffer.
    failed: Vec<(u64, ReadBuffer)>,
    /// Replies taken since the beginning, and what the server knows of them.
    taken: u64,
    taken_told: u64,
    scratch: Vec<u64>,
    pub(super) events: VecDeque<Event>,
}

fn rdma(error: impl std::fmt::Display) -> Broken {
    Broken::Rdma { what: error.to_string() }
}

impl Work {
    /// `pair` has all its receives posted.
    pub(super) fn new(
        pair: QueuePair<Rc, ReadyToSend>,
        memory: Memory,
        sizes: Sizes,
        region: RemoteMemory,
    ) -> Work {
        Work {
            pair: Some(pair),
            sizes,
            memory,
            region,
            batch: SendBatch::with_capacity(BATCH_MAX),
            receives: ReceiveBatch::with_capacity(sizes.replies),
            posted: VecDeque::with_capacity(sizes.sends()),
            first_seq: 0,
            reads_posted: 0,
            sends_since_signal: 0,
            free_requests: (0..sizes.requests as u16).collect(),
            waiting: VecDeque::new(),
            failed: Vec::new(),
            taken: 0,
            taken_told: 0,
            scratch: Vec::new(),
            events: VecDeque::new(),
        }
    }

    fn next_seq(&self) -> u64 {
        self.first_seq + self.posted.len() as u64
    }

    /// Makes room in the batch for one more request.
    fn make_room(&mut self) -> Result<(), Broken> {
        if self.batch.len() == self.batch.capacity() { self.flush() } else { Ok(()) }
    }

    /// Posts what is in the batches.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        let Some(pair) = &mut self.pair else { return Ok(()) };
        if !self.receives.is_empty() {
            pair.post_receive(&mut self.receives).map_err(rdma)?;
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        pair.post_send(&mut self.batch).map_err(|error: PostError| rdma(error))
    }

    /// Takes a READ; it is posted with the others at the next flush, as soon as the negotiated number allows.
    pub(super) fn read(&mut self, read: Read) -> Result<(), Broken> {
        self.waiting.push_back(read);
        self.start_reads()
    }

    /// Moves READs that wait to the batch, as far as there is room.
    #[inline]
    fn start_reads(&mut self) -> Result<(), Broken> {
        while let Some(read) = self.waiting.front()
            && self.reads_posted < self.sizes.reads
        {
            let span = match &read.buffer {
                ReadBuffer::User { .. } => None,
                ReadBuffer::Private(words) => match self.memory.reads.lend_or_grow(words.len()) {
                    Ok(Some(span)) => Some(span),
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(rdma(error)),
                },
            };
            self.make_room()?;
            let read = self.waiting.pop_front().expect("it is the front");
            self.push_read(read, span)?;
        }
        Ok(())
    }

    /// Adds a READ to the batch. One of private words has a span of the ring.
    fn push_read(&mut self, read: Read, span: Option<Span>) -> Result<(), Broken> {
        let Read { token, at_word, buffer } = read;
        let len_bytes = buffer.len() as u64 * 8;
        let remote = self.region.range(at_word as u64 * 8, len_bytes).map_err(rdma)?;
        let (range, sink) = match (buffer, span) {
            (ReadBuffer::User { memory, len_words }, None) => {
                let lent = memory.lend();
                let range = lent.range(len_bytes);
                let range = range.ok_or_else(|| rdma("a READ into memory that is not registered"))?;
                (range, Sink::User(lent, len_words))
            }
            (ReadBuffer::Private(words), Some(span)) => {
                (self.memory.reads.range(span), Sink::Ring(words, span))
            }
            _ => unreachable!("private words have a span of the ring, and no others"),
        };
        let seq = self.next_seq();
        self.batch.read(seq, range.map_err(rdma)?, remote).map_err(rdma)?.signalled();
        self.posted.push_back(Posted::Read { token, sink });
        self.reads_posted += 1;
        // Its completion settles the SENDs before it.
        self.sends_since_signal = 0;
        Ok(())
    }

    /// Posts a READ whose words nobody wants, at once; its sequence number. None if other READs are under way, or the ring
    /// is too small for it.
    pub(super) fn raw_read(&mut self, at_word: usize, len_words: usize) -> Result<Option<u64>, Broken> {
        let is_idle = self.reads_posted == 0 && self.waiting.is_empty() && self.batch.is_empty();
        if !is_idle || !self.memory.reads.can_hold(len_words) {
            return Ok(None);
        }
        let remote = self.region.range(at_word as u64 * 8, len_words as u64 * 8).map_err(rdma)?;
        let Some(span) = self.memory.reads.lend(len_words) else { return Ok(None) };
        let sink = self.memory.reads.range(span).map_err(rdma)?;
        let seq = self.next_seq();
        self.batch.read(seq, sink, remote).map_err(rdma)?.signalled();
        self.posted.push_back(Posted::RawRead(span));
        self.reads_posted += 1;
        self.sends_since_signal = 0;
        self.flush()?;
        Ok(Some(seq))
    }

    /// True if the request with this number, and all before it, are done.
    pub(super) fn is_settled(&self, seq: u64) -> bool {
        self.first_seq > seq
    }

    /// Takes a request.
    pub(super) fn send(&mut self, parts: &[&[u8]]) -> Result<(), SendError> {
        let inline_max = self.pair.as_ref().map_or(0, |pair| pair.capacity().inline_bytes) as usize;
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        let is_inline = len_bytes <= inline_max;
        let sends = self.posted.len() - self.reads_posted;
        let has_room = sends < self.sizes.sends() - self.sizes.reads - SENDS_PER_SIGNAL as usize;
        if !has_room || (!is_inline && self.free_requests.is_empty()) {
            return Err(SendError::Full);
        }
        self.make_room().map_err(SendError::Broken)?;
        self.fill_scratch(parts, len_bytes);
        let slot = if is_inline { None } else { self.free_requests.pop() };
        self.push_send(slot, len_bytes).map_err(SendError::Broken)
    }

    fn fill_scratch(&mut self, parts: &[&[u8]], len_bytes: usize) {
        self.scratch.clear();
        self.scratch.resize(len_bytes.div_ceil(8), 0);
        let mut rest = &mut bytes_of_mut(&mut self.scratch)[..len_bytes];
        for part in parts {
            let (here, behind) = rest.split_at_mut(part.len());
            here.copy_from_slice(part);
            rest = behind;
        }
    }

    /// Adds a SEND of the scratch to the batch, from a buffer if it has one.
    fn push_send(&mut self, slot: Option<u16>, len_bytes: usize) -> Result<(), Broken> {
        let seq = self.next_seq();
        let request = match slot {
            None => self.batch.send_inline(seq, &bytes_of_mut(&mut self.scratch)[..len_bytes]),
            Some(slot) => {
                let at_word = slot as usize * REQUEST_WORDS;
                self.memory.request_words.copy_in(at_word, &self.scratch);
                let range = self.memory.requests.range(at_word as u64 * 8, len_bytes as u64).map_err(rdma)?;
                self.batch.send(seq, range)
            }
        };
        let request = request.map_err(rdma)?;
        self.sends_since_signal += 1;
        if self.sends_since_signal >= SENDS_PER_SIGNAL {
            request.signalled();
            self.sends_since_signal = 0;
        }
        self.posted.push_back(Posted::Send(slot));
        Ok(())
    }

    /// Tells the server how many replies were taken, when half of the receives are new.
    fn tell_credit(&mut self) -> Result<(), Broken> {
        if self.taken - self.taken_told < self.sizes.replies as u64 / 2 {
            return Ok(());
        }
        let has_inline = self.pair.as_ref().is_some_and(|pair| pair.capacity().inline_bytes >= 8);
        let slot = if has_inline { None } else { self.free_requests.pop() };
        if !has_inline && slot.is_none() {
            // Each buffer is in use; the completion that frees one comes back here.
            return Ok(());
        }
        // The receives that it speaks of are posted first.
        self.flush()?;
        let message = encode_credit(self.taken);
        self.fill_scratch(&[&message], message.len());
        self.push_send(slot, message.len())?;
        self.taken_told = self.taken;
        Ok(())
    }

    /// What has to be done after completions were taken.
    pub(super) fn follow_up(&mut self) -> Result<(), Broken> {
        self.start_reads()?;
        self.tell_credit()?;
        self.flush()
    }

    /// Takes one completion.
    #[inline]
    pub(super) fn on_completion(&mut self, completion: Completion<'_>) -> Result<(), Broken> {
        let result = completion.result();
        let id = completion.id();
        if id & RECEIVE != 0 {
            let Completed::Receive { len_bytes, .. } = result.map_err(rdma)? else {
                return Err(Broken::Protocol { what: "it wrote where it may only send".into() });
            };
            return self.on_reply((id & !RECEIVE) as usize, len_bytes as usize);
        }
        result.map_err(rdma)?;
        self.settle(id, true);
        Ok(())
    }

    fn on_reply(&mut self, index: usize, len_bytes: usize) -> Result<(), Broken> {
        let len_words = len_bytes.div_ceil(8);
        let mut words = std::mem::take(&mut self.scratch);
        words.resize(len_words, 0);
        self.memory.reply_words.copy_out(index * REPLY_WORDS, &mut words);
        self.events.push_back(Event::Message(bytes_of_mut(&mut words)[..len_bytes].to_vec()));
        self.scratch = words;
        self.memory.push_receive(index, &mut self.receives);
        self.taken += 1;
        Ok(())
    }

    /// Everything up to `seq` is done. READs count if `is_valid`; else they fail at the end.
    #[inline]
    fn settle(&mut self, seq: u64, is_valid: bool) {
        while self.first_seq <= seq {
            let Some(posted) = self.posted.pop_front() else { return };
            self.first_seq += 1;
            match posted {
                Posted::Read { token, sink } => {
                    self.reads_posted -= 1;
                    if is_valid {
                        let buffer = self.take(sink);
                        self.events.push_back(Event::Read { token, buffer, result: Ok(()) });
                    } else {
                        let buffer = self.revoke(sink);
                        self.failed.push((token, buffer));
                    }
                }
                Posted::RawRead(span) => {
                    self.reads_posted -= 1;
                    self.memory.reads.give_back(span, None);
                }
                Posted::Send(slot) => self.free_requests.extend(slot),
            }
        }
    }

    /// Takes the words of a READ that has completed well.
    #[inline]
    fn take(&mut self, sink: Sink) -> ReadBuffer {
        match sink {
            Sink::Ring(mut words, span) => {
                self.memory.reads.give_back(span, Some(&mut words));
                ReadBuffer::Private(words)
            }
            Sink::User(lent, len_words) => {
                // SAFETY: the one request with a range of this memory was the READ that has just completed: a queue pair
                // completes its requests in order, and the completion at hand is this READ's or a later one's. The range
                // went into the batch once and is kept nowhere else.
                let memory = unsafe { lent.take_back() };
                ReadBuffer::User { memory, len_words }
            }
        }
    }

    /// Takes the buffer of a READ that will not be done. The device forgets memory of the user first.
    fn revoke(&mut self, sink: Sink) -> ReadBuffer {
        match sink {
            Sink::Ring(words, span) => {
                self.memory.reads.give_back(span, None);
                ReadBuffer::Private(words)
            }
            Sink::User(lent, len_words) => match lent.revoke() {
                Ok(memory) => ReadBuffer::User { memory, len_words },
                // Logged; the user gets other memory.
                Err(_) => ReadBuffer::Private(Vec::new()),
            },
        }
    }

    /// The end: the queue pair goes to the error state, `poll` is called with what takes completions until everything that
    /// the device had is back or it says that time is up, and every READ fails.
    pub(super) fn fail(&mut self, broken: &Broken, mut poll: impl FnMut(&mut dyn FnMut(u64)) -> bool) {
        if let Some(pair) = self.pair.take() {
            // What is in the batch never reached the device.
            let at_device = self.posted.len() - self.batch.len();
            let last_seq = (self.first_seq + at_device as u64).checked_sub(1);
            let pair = pair.into_error();
            while let Some(last) = last_seq
                && self.first_seq <= last
                && pair.is_ok()
            {
                let may_go_on = poll(&mut |id| {
                    if id & RECEIVE == 0 {
                        self.settle(id.min(last), false);
                    }
                });
                if !may_go_on {
                    break;
                }
            }
            // Destroyed now: whatever did not come back never will, and the device has forgotten it.
        }
        self.batch.clear();
        for posted in std::mem::take(&mut self.posted) {
            if let Posted::Read { token, sink } = posted {
                let buffer = self.revoke(sink);
                self.failed.push((token, buffer));
            }
        }
        let waiting = self.waiting.drain(..).map(|read| (read.token, read.buffer));
        for (token, buffer) in self.failed.drain(..).chain(waiting) {
            self.events.push_back(Event::Read { token, buffer, result: Err(broken.clone()) });
        }
    }

    /// The user's memory of a READ whose completion waits to be taken.
    pub(super) fn take_user(&mut self, of: u64) -> Option<Box<UserMemory>> {
        self.events.iter_mut().find_map(|event| match event {
            Event::Read { token, buffer, .. } if *token == of => buffer.take_user(),
            _ => None,
        })
    }

    /// Number of the queue pair, while there is one.
    pub(super) fn pair_number(&self) -> Option<u32> {
        self.pair.as_ref().map(QueuePair::number)
    }

    pub(super) fn reads_max(&self) -> usize {
        self.sizes.reads
    }
}
