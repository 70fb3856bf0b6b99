//! A worker's completion queue and shared receives, and what came for whom.
//!
//! Whoever looks for something of one client takes the completions of all, and leaves those of others with them; a client
//! whose worker does not look at it any more is put on the list of those to wake.
//!
//! Nothing here can overrun: a queue pair is admitted only if receives for all its messages and completions for everything
//! that it can have posted fit, whatever fails.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kv_common::limits::{RDMA_REPLIES_IN_FLIGHT_MAX, RDMA_REQUESTS_IN_FLIGHT_MAX};
use kv_common::transport::verbs::exchange::CREDITS_IN_FLIGHT_MAX;
use kv_common::verbs::{
    Completed, Completion, CompletionChannel, CompletionError, CompletionQueue, Completions, LocalRange,
    ProtectionDomain, SendOnly, SharedReceiveQueue,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tracing::error;

use super::RdmaError;
use super::buffers::{Buffers, ReplyBuffers};

/// Receives for one client: its requests, and its messages about credit.
pub(super) const RECEIVES_PER_PAIR: usize = RDMA_REQUESTS_IN_FLIGHT_MAX + CREDITS_IN_FLIGHT_MAX;
/// Requests of a queue pair's send queue: replies on their way, those not signalled, and a READ of a staged value.
pub(super) const SENDS_PER_PAIR: usize = 2 * RDMA_REPLIES_IN_FLIGHT_MAX;
/// Completions that one look takes.
const COMPLETIONS_PER_POLL: usize = 64;
/// Set in the id of a receive; the rest is its buffer. Other ids are sequence numbers of a queue pair.
pub(super) const RECEIVE: u64 = 1 << 63;

/// A worker's queues.
pub(crate) struct Queues {
    domain: Arc<ProtectionDomain>,
    pub(super) completions: Arc<CompletionQueue>,
    pub(super) receives: Arc<SharedReceiveQueue>,
    channel: Arc<CompletionChannel>,
    pairs_max: usize,
    state: Mutex<State>,
    has_woken: AtomicBool,
}

struct State {
    room: Completions,
    came: Came,
    /// An event comes with the next completion, or is there.
    is_armed: bool,
}

/// All but the room for completions, so that these can be looked at while this changes.
struct Came {
    /// By number. The device gives the numbers, so nobody chooses ones that collide.
    pairs: FxHashMap<u32, Pair>,
    buffers: Buffers,
    replies: ReplyBuffers,
    /// Tokens of clients that have something and are not looked at.
    woken: Vec<u64>,
}

/// What came for one queue pair.
#[derive(Default)]
struct Pair {
    /// Buffers with requests, and their lengths.
    requests: VecDeque<(usize, usize)>,
    /// What is in its send queue, oldest first.
    sent: VecDeque<Sent>,
    first_seq: u64,
    /// Replies that the client has taken since the beginning.
    taken: u64,
    /// A staged value has been fetched, and nobody has asked for it yet.
    has_fetched: bool,
    fault: Option<Fault>,
    /// The token to wake it by, while its worker does not look at it.
    asleep: Option<u64>,
    /// Its session is over.
    is_closing: bool,
}

/// What a queue pair has posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// A reply, from this buffer if not inline.
    Reply(Option<u16>),
    /// A READ of a staged value, or of the last piece of one.
    Fetch,
    /// A READ of another piece.
    Piece,
}

/// Why a client's RDMA connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    #[error(transparent)]
    Completion(#[from] CompletionError),
    #[error("it sent more than {RDMA_REQUESTS_IN_FLIGHT_MAX} requests without waiting for replies")]
    Overrun,
    #[error("it says that it took {taken} replies, of which {sent} were sent")]
    Credit { taken: u64, sent: u64 },
    #[error("it speaks on the control connection, unasked")]
    Control,
    #[error("the device takes no more requests for it")]
    Device,
}

impl Queues {
    /// Queues for as many of `clients_max` clients as the device allows.
    pub(super) fn create(
        domain: &Arc<ProtectionDomain>,
        worker: usize,
        clients_max: usize,
    ) -> Result<Queues, RdmaError> {
        let context = domain.context();
        let limits = context.attributes()?;
        if limits.shared_receive_requests_max == 0 || limits.shared_receive_queues_max == 0 {
            return Err(RdmaError::NoSharedReceives { device: context.device().name.clone() });
        }
        let pairs_max = clients_max
            .min(limits.completions_max as usize / (RECEIVES_PER_PAIR + SENDS_PER_PAIR))
            .min(limits.shared_receive_requests_max as usize / RECEIVES_PER_PAIR);
        if pairs_max == 0 || (limits.requests_per_queue_max as usize) < SENDS_PER_PAIR {
            let device = context.device().name.clone();
            return Err(RdmaError::TooSmall { device, limits: format!("{limits:?}") });
        }
        let channel = CompletionChannel::create(context)?;
        let entries = pairs_max * (RECEIVES_PER_PAIR + SENDS_PER_PAIR);
        let id = worker as u64;
        let completions =
            CompletionQueue::create(context, entries as u32, id, Some(&channel), worker as u32)?;
        let receives = SharedReceiveQueue::create(domain, (pairs_max * RECEIVES_PER_PAIR) as u32, id)?;
        let (buffers, replies) = (Buffers::new(), ReplyBuffers::register(domain)?);
        let came = Came { pairs: FxHashMap::default(), buffers, replies, woken: Vec::new() };
        let room = Completions::with_capacity(COMPLETIONS_PER_POLL);
        Ok(Queues {
            domain: Arc::clone(domain),
            completions,
            receives,
            channel,
            pairs_max,
            state: Mutex::new(State { room, came, is_armed: false }),
            has_woken: AtomicBool::new(false),
        })
    }

    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }

    pub(super) fn pairs_max(&self) -> usize {
        self.pairs_max
    }

    /// True if one more queue pair can be had; makes its receives if there are too few.
    pub(super) fn make_room(&self) -> Result<bool, RdmaError> {
        let came = &mut self.state.lock().came;
        if came.pairs.len() >= self.pairs_max {
            return Ok(false);
        }
        // One that is closing has at most one receive, that of a message that was on its way.
        let closing = came.pairs.values().filter(|pair| pair.is_closing).count();
        let needed = (came.pairs.len() - closing + 1) * RECEIVES_PER_PAIR + closing;
        if needed > came.buffers.len() {
            came.buffers.grow(&self.domain, &self.receives)?;
        }
        Ok(true)
    }

    /// From now on what comes for this queue pair is kept for it.
    pub(super) fn register(&self, number: u32) {
        self.state.lock().came.pairs.insert(number, Pair::default());
    }

    /// The queue pair is in the error state: what came for it is of no use any more.
    pub(super) fn note_closing(&self, number: u32) {
        let came = &mut self.state.lock().came;
        let Some(pair) = came.pairs.get_mut(&number) else { return };
        pair.is_closing = true;
        for (buffer, _) in std::mem::take(&mut pair.requests) {
            came.buffers.give_back(buffer, &self.receives);
        }
        came.buffers.post(&self.receives);
    }

    /// The queue pair is destroyed: what it had is free.
    pub(super) fn forget(&self, number: u32) {
        self.collect();
        let came = &mut self.state.lock().came;
        let Some(pair) = came.pairs.remove(&number) else { return };
        for sent in pair.sent {
            came.replies.give_back(sent);
        }
        for (buffer, _) in pair.requests {
            came.buffers.give_back(buffer, &self.receives);
        }
        came.buffers.post(&self.receives);
    }

    /// Takes completions, of whomever.
    pub(super) fn collect(&self) {
        self.poll(&mut self.state.lock());
    }

    #[inline]
    fn poll(&self, state: &mut State) {
        let State { room, came, .. } = state;
        match self.completions.poll(room) {
            Ok(completions) => completions.for_each(|completion| came.take(completion, &self.receives)),
            Err(error) => error!(%error, "a worker's completion queue is broken"),
        }
        if !came.woken.is_empty() {
            self.has_woken.store(true, Ordering::Release);
        }
    }

    /// Looks at what came for a queue pair; takes completions first if `look` finds nothing.
    #[inline]
    fn with<T>(&self, number: u32, mut look: impl FnMut(&mut Came, u32) -> Option<T>) -> Option<T> {
        let state = &mut *self.state.lock();
        look(&mut state.came, number).or_else(|| {
            self.poll(state);
            look(&mut state.came, number)
        })
    }

    /// The next request of a queue pair, copied to `message`.
    #[inline]
    pub(crate) fn next(&self, number: u32, message: &mut Vec<u8>) -> Result<bool, Fault> {
        let receives = &self.receives;
        let next = self.with(number, |came, number| {
            let pair = came.pair(number);
            if let Some((buffer, len_bytes)) = pair.requests.pop_front() {
                came.buffers.copy_out(buffer, len_bytes, message);
                came.buffers.give_back(buffer, receives);
                return Some(Ok(true));
            }
            pair.fault.map(Err)
        });
        next.unwrap_or(Ok(false))
    }

    /// True, once, when the staged value that a queue pair was to fetch is there.
    pub(crate) fn has_fetched(&self, number: u32) -> Result<bool, Fault> {
        let fetched = self.with(number, |came, number| {
            let pair = came.pair(number);
            let has_fetched = std::mem::take(&mut pair.has_fetched);
            has_fetched.then_some(Ok(true)).or(pair.fault.map(Err))
        });
        fetched.unwrap_or(Ok(false))
    }

    /// Replies that a client has taken and requests in its send queue; takes completions first if `is_enough` says no.
    #[inline]
    pub(crate) fn progress(
        &self,
        number: u32,
        is_enough: impl Fn(u64, usize) -> bool,
    ) -> Result<(u64, usize), Fault> {
        let state = &mut *self.state.lock();
        let look = |came: &mut Came| {
            let pair = came.pair(number);
            (pair.taken, pair.sent.len(), pair.fault)
        };
        let (mut taken, mut sent, mut fault) = look(&mut state.came);
        if fault.is_none() && !is_enough(taken, sent) {
            self.poll(state);
            (taken, sent, fault) = look(&mut state.came);
        }
        fault.map_or(Ok((taken, sent)), Err)
    }

    /// A buffer for a reply, filled with `words`, of which `len_bytes` count.
    pub(crate) fn lend(&self, words: &[u64], len_bytes: usize) -> Option<(u16, LocalRange<SendOnly>)> {
        self.state.lock().came.replies.lend(words, len_bytes)
    }

    /// Notes what a queue pair is about to post and gives its sequence number.
    #[inline]
    pub(crate) fn note_sent(&self, number: u32, sent: Sent) -> u64 {
        let state = &mut *self.state.lock();
        let pair = state.came.pair(number);
        pair.sent.push_back(sent);
        pair.first_seq + pair.sent.len() as u64 - 1
    }

    /// Posts the receives of requests that were taken: to be called before they are answered.
    #[inline]
    pub(crate) fn post_receives(&self) {
        self.state.lock().came.buffers.post(&self.receives);
    }

    /// Nobody looks at this queue pair any more: `token` is on the list of those to wake when something comes. False if
    /// something has come.
    pub(crate) fn fall_asleep(&self, number: u32, token: u64) -> bool {
        let state = &mut *self.state.lock();
        if state.came.pair(number).has_something() {
            return false;
        }
        self.arm(state);
        self.poll(state);
        let pair = state.came.pair(number);
        let is_asleep = !pair.has_something();
        pair.asleep = is_asleep.then_some(token);
        is_asleep
    }

    /// Takes that back.
    pub(crate) fn wake_up(&self, number: u32) {
        self.state.lock().came.pair(number).asleep = None;
    }

    fn arm(&self, state: &mut State) {
        if !state.is_armed {
            match self.completions.arm(false) {
                Ok(()) => state.is_armed = true,
                Err(error) => error!(%error, "a worker's completion queue gives no events"),
            }
        }
    }

    /// Takes the channel's events, and what they are about.
    pub(crate) fn take_events(&self) {
        let state = &mut *self.state.lock();
        while matches!(self.channel.next_event(), Ok(Some(_))) {
            state.is_armed = false;
        }
        self.poll(state);
        if state.came.pairs.values().any(|pair| pair.asleep.is_some()) {
            self.arm(state);
            self.poll(state);
        }
    }

    /// Clients that have something and were asleep.
    #[inline]
    pub(crate) fn take_woken(&self) -> Vec<u64> {
        if !self.has_woken.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.has_woken.store(false, Ordering::Release);
        std::mem::take(&mut self.state.lock().came.woken)
    }
}

impl Came {
    fn pair(&mut self, number: u32) -> &mut Pair {
        self.pairs.get_mut(&number).expect("a link's queue pair is registered as long as the link lives")
    }

    #[inline]
    fn take(&mut self, completion: Completion<'_>, receives: &SharedReceiveQueue) {
        let (id, result) = (completion.id(), completion.result());
        let pair = self.pairs.get_mut(&completion.queue_pair());
        if id & RECEIVE != 0 {
            let buffer = (id & !RECEIVE) as usize;
            let is_kept = match (pair, result) {
                (Some(pair), Ok(Completed::Receive { len_bytes, .. })) => {
                    pair.receive(buffer, len_bytes as usize, &self.buffers)
                }
                (Some(pair), Err(error)) => pair.fail(error.into()),
                (_, _) => false,
            };
            if !is_kept {
                self.buffers.give_back(buffer, receives);
            }
        } else if let Some(pair) = pair {
            pair.settle(id, result.is_ok(), &mut self.replies);
            if let Err(error) = result {
                pair.fail(error.into());
            }
        }
        let woken = self.pairs.get_mut(&completion.queue_pair());
        if let Some(pair) = woken.filter(|pair| pair.asleep.is_some() && pair.has_something()) {
            self.woken.extend(pair.asleep.take());
        }
    }
}

impl Pair {
    fn has_something(&self) -> bool {
        !self.requests.is_empty() || self.fault.is_some() || self.has_fetched
    }

    /// A message came. True if its buffer is kept.
    fn receive(&mut self, buffer: usize, len_bytes: usize, buffers: &Buffers) -> bool {
        if let Some(taken) = buffers.credit(buffer, len_bytes) {
            self.taken = self.taken.max(taken);
            return false;
        }
        if self.is_closing {
            return false;
        }
        if self.requests.len() >= RDMA_REQUESTS_IN_FLIGHT_MAX {
            return self.fail(Fault::Overrun);
        }
        self.requests.push_back((buffer, len_bytes));
        true
    }

    /// Notes the first fault. False: nothing is kept.
    fn fail(&mut self, fault: Fault) -> bool {
        self.fault.get_or_insert(fault);
        false
    }

    /// Everything up to `seq` is done, or has failed.
    fn settle(&mut self, seq: u64, is_done: bool, replies: &mut ReplyBuffers) {
        while self.first_seq <= seq {
            let Some(sent) = self.sent.pop_front() else { return };
            self.first_seq += 1;
            self.has_fetched |= is_done && sent == Sent::Fetch;
            replies.give_back(sent);
        }
    }
}
