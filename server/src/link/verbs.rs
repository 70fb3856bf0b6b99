//! A client by RDMA: its queue pair, the staged values that are fetched from it, and the replies that wait for credit.
//!
//! READs are not seen here: the device serves them. A reply is sent only if the client has a receive for it and the send
//! queue has room; else it waits, and no further request is taken.

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::layout::PAGE_PAYLOAD_BYTES;
use kv_common::region::{WORD_BYTES, Words, bytes_of_mut};
use kv_common::transport::shm::spin::Spin;
use kv_common::verbs::{
    LocalRange, MemoryRegion, Rc, ReadSink, ReadTarget, RemoteMemory, RemoteRange, SendBatch,
};
use kv_common::wire::{Reply, Request, Value};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tracing::warn;

use super::{End, Next};
use crate::rdma::{ClientPair, Connected, Fault, Queues, Sent};
use crate::table::{AbandonedRun, Landing};

/// Replies that are posted with one doorbell, at most.
const BATCH_MAX: usize = 32;

/// Looks before sleeping, at least and at most. Each takes a lock and a look at the completion queue.
const LOOKS_MIN: u32 = 256;
const LOOKS_MAX: u32 = 4096;
/// Looks in vain, one after the other, after which each lets others run first: a software device does its work in threads
/// of the kernel, which get no processor while all of them look.
const LOOKS_BEFORE_YIELD: u32 = 64;
/// How long the worker looks in vain at most, however many looks that is: where a look takes long it would look for ever.
const LOOK_TIME_MAX: Duration = Duration::from_millis(1);

/// A client's queue pair and control connection.
pub(crate) struct VerbsLink {
    pair: ClientPair,
    number: u32,
    queues: Arc<Queues>,
    control: TcpStream,
    batch: SendBatch<Rc>,
    /// Replies that wait for credit or room, oldest first.
    waiting: VecDeque<Vec<u8>>,
    replies_sent: u64,
    replies_max: u64,
    sends_max: usize,
    inline_max_bytes: usize,
    /// What is known of the client's progress without asking the queues.
    taken: u64,
    sends_left: usize,
    mirror: Mirror,
    /// A request whose staged value is being fetched.
    fetching: Option<Vec<u8>>,
    /// The device may store to the run of this session's upload: from before its READs are posted until all of them are back.
    is_landing: bool,
    token: u64,
    looks_in_vain: u32,
    /// When the first of them was that yielded.
    idle_since: Instant,
    scratch: Vec<u64>,
}

/// The server's copy of the client's staging area; registered once a value is staged.
struct Mirror {
    words: Words,
    memory: Option<MemoryRegion<ReadSink>>,
    client: RemoteMemory,
}

impl VerbsLink {
    /// The link of a client that has just been connected, with a staging area of `staging_bytes`.
    ///
    /// # Errors
    /// If there is no memory.
    pub(crate) fn new(connected: Connected, control: TcpStream, staging_bytes: u64) -> io::Result<VerbsLink> {
        let replies_max = connected.replies_max();
        let Connected { pair, client, .. } = connected;
        let (number, capacity, queues) = (pair.number(), pair.capacity(), Arc::clone(pair.queues()));
        let sends_max = capacity.sends as usize;
        let words = Words::private(staging_bytes as usize / WORD_BYTES)?;
        Ok(VerbsLink {
            pair,
            number,
            queues,
            control,
            batch: SendBatch::with_capacity(BATCH_MAX),
            waiting: VecDeque::new(),
            replies_sent: 0,
            replies_max,
            sends_max,
            inline_max_bytes: capacity.inline_bytes as usize,
            taken: 0,
            sends_left: sends_max,
            mirror: Mirror { words, memory: None, client: client.memory },
            fetching: None,
            is_landing: false,
            token: 0,
            looks_in_vain: 0,
            idle_since: Instant::now(),
            scratch: Vec::new(),
        })
    }

    pub(super) fn spin() -> Spin {
        Spin::new(LOOKS_MIN, LOOKS_MAX)
    }

    /// The worker that serves it knows it by this number.
    pub(super) fn admitted(&mut self, token: u64) {
        self.token = token;
    }

    pub(super) fn next(
        &mut self,
        message: &mut Vec<u8>,
        landing: impl FnOnce(&Request<'_>) -> Option<Landing>,
    ) -> Result<Next, End> {
        let next = self.look(message, landing)?;
        if next != Next::Nothing {
            self.looks_in_vain = 0;
        } else if self.looks_in_vain < LOOKS_BEFORE_YIELD {
            self.looks_in_vain += 1;
            if self.looks_in_vain == LOOKS_BEFORE_YIELD {
                self.idle_since = Instant::now();
            }
        } else {
            std::thread::yield_now();
        }
        Ok(next)
    }

    /// True if looking on is not worth its time.
    pub(super) fn is_idle_long(&self) -> bool {
        self.looks_in_vain >= LOOKS_BEFORE_YIELD && self.idle_since.elapsed() > LOOK_TIME_MAX
    }

    pub(super) fn is_fetching(&self) -> bool {
        self.fetching.is_some()
    }

    fn look(
        &mut self,
        message: &mut Vec<u8>,
        landing: impl FnOnce(&Request<'_>) -> Option<Landing>,
    ) -> Result<Next, End> {
        if self.fetching.is_some() {
            if !self.queues.has_fetched(self.number)? {
                return Ok(Next::Nothing);
            }
            self.is_landing = false;
            let fetched = self.fetching.take().expect("just seen");
            message.clone_from(&fetched);
            return Ok(Next::Request);
        }
        if !self.queues.next(self.number, message)? {
            return Ok(Next::Nothing);
        }
        if !self.start_fetch(message, landing)? {
            return Ok(Next::Request);
        }
        self.fetching = Some(message.clone());
        Ok(Next::Served)
    }

    /// Begins to fetch the staged value of a request. False if it has none, or none that is inside the client's area: then
    /// the table says so.
    fn start_fetch(
        &mut self,
        message: &[u8],
        landing: impl FnOnce(&Request<'_>) -> Option<Landing>,
    ) -> Result<bool, End> {
        let Ok(request) = Request::decode(message) else { return Ok(false) };
        let Value::Staged { offset_bytes, len_bytes, .. } = request.value else { return Ok(false) };
        let len_bytes = u64::from(len_bytes);
        let Ok(remote) = self.mirror.client.range(offset_bytes, len_bytes) else { return Ok(false) };
        let is_inside = offset_bytes + len_bytes <= (self.mirror.words.len_words() * WORD_BYTES) as u64;
        if len_bytes == 0 || !is_inside {
            return Ok(false);
        }
        let can_land = self.can_land(len_bytes as usize / PAGE_PAYLOAD_BYTES + 2)?;
        let landing = if can_land { landing(&request) } else { None };
        match landing {
            Some(landing) => self.fetch_to(landing, offset_bytes)?,
            None => {
                let sink = self.mirror_range(offset_bytes, len_bytes)?;
                self.fetch(sink, remote, Sent::Fetch)?;
            }
        }
        self.post()?;
        Ok(true)
    }

    /// Whether a device may store to the region for this client, and so many READs can be posted together.
    fn can_land(&mut self, reads: usize) -> Result<bool, End> {
        // A READ's answer is a WRITE on iWARP, and nobody writes to the region.
        if self.pair.domain().context().is_iwarp() || reads > BATCH_MAX {
            return Ok(false);
        }
        if self.sends_left <= reads {
            self.ask_progress()?;
        }
        Ok(self.sends_left > reads)
    }

    /// Fetches what is at `offset_bytes` of the client's area to these ranges of the region.
    fn fetch_to(&mut self, landing: Landing, offset_bytes: u64) -> Result<(), End> {
        // If posting fails in the middle, the first ones may be under way.
        self.is_landing = true;
        let (mut at_bytes, last) = (offset_bytes, landing.len() - 1);
        for (i, range) in landing.into_iter().enumerate() {
            let len_bytes = range.end - range.start;
            let sink = self.pair.region().range(range.start, len_bytes).map_err(broken)?;
            let remote = self.mirror.client.range(at_bytes, len_bytes).map_err(broken)?;
            self.fetch(sink, remote, if i == last { Sent::Fetch } else { Sent::Piece })?;
            at_bytes += len_bytes;
        }
        Ok(())
    }

    /// Adds a READ to the batch.
    fn fetch<A: ReadTarget>(
        &mut self,
        sink: LocalRange<A>,
        remote: RemoteRange,
        sent: Sent,
    ) -> Result<(), End> {
        if self.batch.len() == self.batch.capacity() || self.sends_left == 0 {
            self.post()?;
        }
        let seq = self.queues.note_sent(self.number, sent);
        self.batch.read(seq, sink, remote).map_err(broken)?;
        self.sends_left = self.sends_left.saturating_sub(1);
        Ok(())
    }

    /// A range of the mirror, which is registered when it is needed first.
    fn mirror_range(&mut self, offset_bytes: u64, len_bytes: u64) -> Result<LocalRange<ReadSink>, End> {
        let memory = match &mut self.mirror.memory {
            Some(memory) => memory,
            none => {
                let memory = MemoryRegion::register(self.pair.domain(), &self.mirror.words);
                none.insert(memory.map_err(broken)?)
            }
        };
        memory.range(offset_bytes, len_bytes).map_err(broken)
    }

    /// Ends it. While its device may still store to the run that it was filling, the run goes to nobody else.
    pub(super) fn end(mut self: Box<Self>, run: Option<AbandonedRun>) {
        if let Some(run) = run.filter(|_| self.is_landing) {
            self.pair.keep_until_closed(run);
        }
    }

    pub(super) fn staging(&self) -> &Words {
        &self.mirror.words
    }

    pub(super) fn push(&mut self, reply: &Reply<'_>) {
        let header = reply.header();
        if !self.waiting.is_empty() || !self.send(&[&header, reply.chunk]) {
            self.waiting.push_back([&header, reply.chunk].concat());
        }
    }

    pub(super) fn flush(&mut self) -> Result<bool, End> {
        let before = self.waiting.len();
        if before == 0 {
            return Ok(false);
        }
        self.ask_progress()?;
        while let Some(message) = self.waiting.pop_front() {
            if !self.send(&[&message]) {
                self.waiting.push_front(message);
                break;
            }
        }
        self.post()?;
        Ok(self.waiting.len() < before)
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if the client's device has acknowledged every reply.
    pub(super) fn has_delivered(&self) -> bool {
        let progress = self.queues.progress(self.number, |_, in_queue| in_queue == 0);
        // Whatever has failed will not be delivered any more.
        self.waiting.is_empty() && progress.map_or(true, |(_, in_queue)| in_queue == 0)
    }

    pub(super) fn end_turn(&mut self) -> Result<(), End> {
        self.post()
    }

    /// Adds a reply to the batch. False if that has no room, or the client no receive for it.
    fn send(&mut self, parts: &[&[u8]]) -> bool {
        let has_credit = self.replies_sent - self.taken < self.replies_max;
        // One is kept for fetching a staged value.
        if !has_credit || self.sends_left <= 1 || self.batch.len() == self.batch.capacity() {
            return false;
        }
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.scratch.clear();
        self.scratch.resize(len_bytes.div_ceil(8), 0);
        let mut at = 0;
        for part in parts {
            bytes_of_mut(&mut self.scratch)[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let lent = match len_bytes <= self.inline_max_bytes {
            true => None,
            false => match self.queues.lend(&self.scratch, len_bytes) {
                Some(lent) => Some(lent),
                None => return false,
            },
        };
        let seq = self.queues.note_sent(self.number, Sent::Reply(lent.map(|(buffer, _)| buffer)));
        let request = match lent {
            Some((_, range)) => self.batch.send(seq, range),
            None => self.batch.send_inline(seq, &bytes_of_mut(&mut self.scratch)[..len_bytes]),
        };
        request.expect("the batch has room");
        self.replies_sent += 1;
        self.sends_left -= 1;
        true
    }

    /// Asks what the client has taken and the device has done, if little is left of what was known.
    fn ask_progress(&mut self) -> Result<(), End> {
        let (sent, replies_max, sends_max) = (self.replies_sent, self.replies_max, self.sends_max);
        let (taken, in_queue) = self.queues.progress(self.number, |taken, in_queue| {
            sent.saturating_sub(taken) < replies_max && in_queue < sends_max - 1
        })?;
        if taken > sent {
            return Err(Fault::Credit { taken, sent }.into());
        }
        self.taken = taken;
        self.sends_left = sends_max.saturating_sub(in_queue);
        Ok(())
    }

    /// Posts the receives of the requests that were taken, and then what answers them.
    fn post(&mut self) -> Result<(), End> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.queues.post_receives();
        self.batch.signal_last();
        self.pair.post_send(&mut self.batch).map_err(|error| {
            warn!(%error, "cannot post replies");
            Fault::Device
        })?;
        if self.sends_left < self.sends_max / 2 || self.replies_sent - self.taken > self.replies_max / 2 {
            self.ask_progress()?;
        }
        Ok(())
    }

    /// The control connection has something: only its end is expected.
    pub(super) fn woken(&mut self) -> Result<(), End> {
        match recv(&self.control, &mut [0; 64], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(End::Gone),
            Ok(_) => Err(Fault::Control.into()),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(End::Gone),
        }
    }

    pub(super) fn fall_asleep(&mut self) -> bool {
        self.queues.post_receives();
        self.queues.fall_asleep(self.number, self.token)
    }

    pub(super) fn wake_up(&mut self) {
        self.looks_in_vain = 0;
        self.queues.wake_up(self.number);
    }
}

fn broken(error: impl std::fmt::Display) -> End {
    warn!(%error, "cannot fetch a staged value");
    Fault::Device.into()
}

impl AsFd for VerbsLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Rdma(fault)
    }
}
