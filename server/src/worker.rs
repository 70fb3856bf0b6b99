//! A worker thread: it owns some clients and is the only one that serves them.
//!
//! A client is *hot* while it asks for something: the worker looks for requests of it in a loop. When it has asked for nothing
//! for as long as its spin budget says, it becomes *quiet*: its link says so, and its descriptor becomes ready with its
//! next request. A client that does not read its replies, or whose request waits for room, is *stalled*: it is looked at after
//! pauses that grow, or when its descriptor is ready. With no hot client the worker sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::layout::{Counter, superblock};
use kv_common::limits::REQUESTS_IN_FLIGHT_MAX;
use kv_common::sync::spin_loop;
use tracing::{debug, warn};

use crate::link::End;
use crate::poller::Poller;
use crate::rate::RateLimit;
use crate::session::{Mode, Session, Turn};
use crate::shared::Shared;
use crate::table::{self, Table};

/// Turns after which bells and new clients are looked for although there are hot clients.
const TURNS_PER_LOOK: u32 = 64;
/// The same in requests, for turns with many.
const REQUESTS_PER_LOOK: usize = 256;
/// The pause before a stalled client is looked at again, at first and at most.
const STALL_PAUSE_MIN: Duration = Duration::from_millis(1);
const STALL_PAUSE_MAX: Duration = Duration::from_millis(64);
/// How long a server that stops goes on refusing, so that requests on their way are answered.
const DRAIN_LINGER: Duration = Duration::from_millis(100);
/// How long a server that stops waits for clients to read their replies.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How often a worker that drains looks whether it is done.
const DRAIN_TICK: Duration = Duration::from_millis(5);

/// The token of the mailbox's waker; those of clients are smaller.
const WAKER: u64 = u64::MAX;
/// The token of the completion channel.
#[cfg(feature = "verbs")]
const COMPLETIONS: u64 = u64::MAX - 1;
/// Bits of a token that name the client's index; the others are its session number, against tokens of its predecessor.
const INDEX_BITS: u32 = 16;
const _: () = assert!(kv_common::limits::CLIENTS_MAX <= 1 << INDEX_BITS);

/// One worker.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    table: Arc<Table>,
    writer: table::Worker,
    poller: Poller,
    clients: Vec<Option<Client>>,
    hot: Vec<usize>,
    stalled: Vec<usize>,
    turns_since_look: u32,
    requests_since_look: usize,
    drain_since: Option<Instant>,
    complaints: RateLimit,
    message: Vec<u8>,
    tokens: Vec<u64>,
    #[cfg(feature = "verbs")]
    rdma: Option<Arc<crate::rdma::Queues>>,
}

struct Client {
    session: Session,
    state: State,
    /// Requests that are still served when the server stops: those that were on their way, at most.
    backlog: usize,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Looked at in each turn; asleep after so many looks in vain.
    Hot { looks: u32 },
    /// Its descriptor becomes ready when it wants something.
    Quiet,
    /// Looked at again at that time.
    Stalled { until: Instant, pause: Duration },
}

impl Worker {
    pub(crate) fn new(shared: &Arc<Shared>, table: &Arc<Table>, index: usize) -> std::io::Result<Worker> {
        let poller = Poller::new()?;
        poller.add(&shared.mailboxes[index].waker, WAKER)?;
        Ok(Worker {
            shared: Arc::clone(shared),
            index,
            table: Arc::clone(table),
            writer: table::Worker::new(table, index),
            poller,
            clients: Vec::new(),
            hot: Vec::new(),
            stalled: Vec::new(),
            turns_since_look: 0,
            requests_since_look: 0,
            drain_since: None,
            complaints: RateLimit::default(),
            message: Vec::new(),
            tokens: Vec::new(),
            #[cfg(feature = "verbs")]
            rdma: None,
        })
    }

    /// Serves clients by RDMA, too, from these queues.
    #[cfg(feature = "verbs")]
    pub(crate) fn with_rdma(mut self, queues: &Arc<crate::rdma::Queues>) -> std::io::Result<Worker> {
        self.poller.add(queues.channel().fd(), COMPLETIONS)?;
        self.rdma = Some(Arc::clone(queues));
        Ok(self)
    }

    /// Serves until the server is told to stop and has drained.
    pub(crate) fn run(mut self) {
        while !self.has_drained() {
            self.turn();
        }
        for index in 0..self.clients.len() {
            if self.clients[index].is_some() {
                self.end(index, End::Gone);
            }
        }
    }

    fn turn(&mut self) {
        let served = self.serve_hot();
        self.retry_stalled();
        #[cfg(feature = "verbs")]
        self.wake_called();
        self.writer.sweep_expired();
        if self.hot.is_empty() {
            self.sleep();
        } else if self.is_look_due(served) {
            self.look(Some(Duration::ZERO));
        } else if served == 0 {
            spin_loop();
        }
    }

    /// A few requests of each hot client. Returns how many.
    fn serve_hot(&mut self) -> usize {
        let (mut at, mut requests) = (0, 0);
        while at < self.hot.len() {
            let index = self.hot[at];
            requests += self.serve(index);
            if self.client(index).is_some_and(|client| matches!(client.state, State::Hot { .. })) {
                at += 1;
            } else {
                self.hot.swap_remove(at);
            }
        }
        requests
    }

    /// Serves one client and decides what becomes of it. Returns the number of requests.
    fn serve(&mut self, index: usize) -> usize {
        let client = self.clients[index].as_mut().expect("a hot or stalled client is there");
        let is_refusing = self.drain_since.is_some() && client.backlog == 0;
        let mode = if is_refusing { Mode::Refuse } else { Mode::Serve };
        let turn = client.session.turn(&mut self.writer, &mut self.message, mode);
        if self.drain_since.is_some() {
            client.note_drained(turn);
        }
        match turn {
            Turn::Served(requests) => {
                client.paid_off();
                return requests;
            }
            Turn::Stalled { has_progress: true } => client.paid_off(),
            Turn::Nothing => client.rest(),
            Turn::Stalled { has_progress: false } => {
                if client.stall() {
                    self.stalled.push(index);
                }
            }
            Turn::Ended(end) => self.end(index, end),
        }
        0
    }

    /// Looks again at clients that are stalled, when it is time.
    fn retry_stalled(&mut self) {
        if self.stalled.is_empty() {
            return;
        }
        let now = Instant::now();
        let is_due = |client: &Client| matches!(client.state, State::Stalled { until, .. } if until <= now);
        for index in std::mem::take(&mut self.stalled) {
            if !self.client(index).is_some_and(is_due) {
                self.stalled.extend(self.client(index).is_some_and(Client::is_stalled).then_some(index));
                continue;
            }
            self.serve(index);
            if self.client(index).is_some_and(|client| matches!(client.state, State::Hot { .. })) {
                self.hot.push(index);
            }
        }
    }

    fn is_look_due(&mut self, served: usize) -> bool {
        self.turns_since_look += 1;
        self.requests_since_look += served;
        self.turns_since_look >= TURNS_PER_LOOK || self.requests_since_look >= REQUESTS_PER_LOOK
    }

    fn sleep(&mut self) {
        self.writer.idle();
        let until = |client: &Client| match client.state {
            State::Stalled { until, .. } => Some(until),
            _ => None,
        };
        let retry = self.stalled.iter().filter_map(|&index| until(self.client(index)?)).min();
        let retry = retry.map(|until| until.saturating_duration_since(Instant::now()));
        let tick = self.drain_since.map(|_| DRAIN_TICK);
        let sweep = self.table.sweep_due_in_ns().map(Duration::from_nanos);
        self.look(retry.into_iter().chain(tick).chain(sweep).min());
    }

    /// Waits for bells, ends of clients and new ones, at most for `timeout`.
    fn look(&mut self, timeout: Option<Duration>) {
        (self.turns_since_look, self.requests_since_look) = (0, 0);
        let mut tokens = std::mem::take(&mut self.tokens);
        self.poller.wait(timeout, &mut tokens).expect("waiting for descriptors of our own does not fail");
        for token in tokens.drain(..) {
            match token {
                WAKER => self.read_mailbox(),
                #[cfg(feature = "verbs")]
                COMPLETIONS => self.rdma.as_ref().expect("its channel is watched").take_events(),
                token => self.woken(token),
            }
        }
        self.tokens = tokens;
    }

    fn read_mailbox(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mailbox = &shared.mailboxes[self.index];
        mailbox.waker.clear();
        for session in mailbox.take_new() {
            self.admit(session);
        }
        if shared.is_stopping() && self.drain_since.is_none() {
            self.start_drain();
        }
    }

    /// Wakes clients by RDMA for whom something came while another one was looked at.
    #[cfg(feature = "verbs")]
    fn wake_called(&mut self) {
        let Some(rdma) = &self.rdma else { return };
        for token in rdma.take_woken() {
            if let Some(index) = self.index_of(token) {
                self.called(index);
            }
        }
    }

    fn admit(&mut self, mut session: Session) {
        let index = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        let token = session.number << INDEX_BITS | index as u64;
        self.count(Counter::Sessions, 1);
        session.admitted(token);
        let watched = self.poller.add_for(&session, token, session.watch());
        let looks = session.spin.budget();
        let state = State::Hot { looks };
        self.clients[index] = Some(Client { session, state, backlog: REQUESTS_IN_FLIGHT_MAX });
        match watched {
            Ok(()) => self.hot.push(index),
            Err(error) => {
                warn!(%error, "cannot watch a client; closing it");
                self.end(index, End::Gone);
            }
        }
    }

    /// The index of the client with this token. A client that ended in this very look may still have a token in it.
    fn index_of(&self, token: u64) -> Option<usize> {
        let index = (token & ((1 << INDEX_BITS) - 1)) as usize;
        let client = self.clients.get(index)?.as_ref()?;
        (client.session.number == token >> INDEX_BITS).then_some(index)
    }

    fn woken(&mut self, token: u64) {
        let Some(index) = self.index_of(token) else { return };
        let client = self.clients[index].as_mut().expect("just found");
        if let Err(end) = client.session.woken() {
            self.hot.retain(|&hot| hot != index);
            return self.end(index, end);
        }
        self.called(index);
    }

    /// A client wants something.
    fn called(&mut self, index: usize) {
        let client = self.clients[index].as_mut().expect("it was just found");
        match client.state {
            State::Hot { .. } => {}
            State::Quiet => {
                client.wake_up();
                self.hot.push(index);
                self.count(Counter::WakeUps, 1);
            }
            State::Stalled { pause, .. } => client.state = State::Stalled { until: Instant::now(), pause },
        }
    }

    fn end(&mut self, index: usize, end: End) {
        let Client { session, .. } = self.clients[index].take().expect("a client ends once");
        self.stalled.retain(|&stalled| stalled != index);
        self.poller.remove(&session);
        self.shared.mailboxes[self.index].note_ended();
        self.count(Counter::Sessions, 1u64.wrapping_neg());
        let (number, peer) = (session.number, session.peer);
        session.end(&mut self.writer);
        match end {
            End::Gone => debug!(session = number, %peer, "client gone"),
            #[cfg(feature = "verbs")]
            End::Rdma(fault @ crate::rdma::Fault::Completion(_)) => {
                if let Some(suppressed) = self.complaints.permits(Instant::now()) {
                    warn!(session = number, %peer, reason = %fault, suppressed, "lost a client");
                }
            }
            broken => {
                if let Some(suppressed) = self.complaints.permits(Instant::now()) {
                    warn!(session = number, %peer, reason = %broken, suppressed, "closed a client that broke the protocol");
                }
            }
        }
    }

    fn start_drain(&mut self) {
        self.drain_since = Some(Instant::now());
        for (index, client) in self.clients.iter_mut().enumerate() {
            if let Some(client) = client.as_mut().filter(|client| matches!(client.state, State::Quiet)) {
                client.wake_up();
                self.hot.push(index);
            }
        }
    }

    /// True if the server stops and everything that was asked before is answered, or time is up.
    fn has_drained(&self) -> bool {
        let Some(since) = self.drain_since else { return false };
        let elapsed = since.elapsed();
        let mut clients = self.clients.iter().flatten();
        let is_done = |client: &Client| client.backlog == 0 && client.session.has_delivered();
        elapsed >= DRAIN_MAX
            || self.clients.iter().all(Option::is_none)
            || (elapsed >= DRAIN_LINGER && clients.all(is_done))
    }

    fn client(&self, index: usize) -> Option<&Client> {
        self.clients[index].as_ref()
    }

    /// Counts in this worker's page of the superblock, whose only writer is this thread.
    fn count(&self, counter: Counter, by: u64) {
        let region = self.table.region();
        let word = superblock::COUNTERS + self.index * superblock::COUNTER_WORDS + counter as usize;
        region.store(word, region.load(word).wrapping_add(by));
    }
}

impl Client {
    /// It asked for something, or took something.
    fn paid_off(&mut self) {
        if !matches!(self.state, State::Hot { looks } if looks == self.session.spin.budget()) {
            self.session.spin.paid_off();
        }
        self.state = State::Hot { looks: self.session.spin.budget() };
    }

    /// It asked for nothing once more.
    fn rest(&mut self) {
        if let State::Hot { looks } = &mut self.state
            && *looks > 1
            && !self.session.is_idle_long()
        {
            *looks -= 1;
            return;
        }
        self.session.spin.in_vain();
        self.state = if self.session.fall_asleep() { State::Quiet } else { self.awake() };
    }

    /// It took nothing once more, or its request waits. True if it is now stalled and was not before.
    fn stall(&mut self) -> bool {
        let pause = match &mut self.state {
            State::Hot { looks } if *looks > 1 => {
                *looks -= 1;
                return false;
            }
            State::Stalled { pause, .. } => (*pause * 2).min(STALL_PAUSE_MAX),
            _ => STALL_PAUSE_MIN,
        };
        self.state = State::Stalled { until: Instant::now() + pause, pause };
        true
    }

    fn wake_up(&mut self) {
        self.session.wake_up();
        self.state = self.awake();
    }

    fn awake(&self) -> State {
        State::Hot { looks: self.session.spin.budget() }
    }

    fn is_stalled(&self) -> bool {
        matches!(self.state, State::Stalled { .. })
    }

    /// Keeps account of what is left of the requests that were there when the server was told to stop.
    fn note_drained(&mut self, turn: Turn) {
        self.backlog = match turn {
            Turn::Served(requests) => self.backlog.saturating_sub(requests),
            Turn::Nothing if self.session.is_fetching() => self.backlog,
            Turn::Nothing => 0,
            Turn::Stalled { .. } | Turn::Ended(_) => self.backlog,
        };
    }
}
