//! Drives operations over one connection: polls, feeds, posts, expires.
//!
//! One struct owns everything. [`Driver::turn`] is the table of contents: take what came, send what waits, end what is
//! late. `reads.rs` has the GET's side, `pages.rs` that of large blocks, `now.rs` GETs that need no operation, `requests.rs`
//! messages, `staging.rs` the memory that they may name, `blocking.rs` READs of other use, `region.rs` many of them, `hits.rs`
//! what a server that evicts is told.

mod blocking;
mod hits;
mod now;
mod pages;
mod reads;
mod region;
mod requests;
mod staging;
mod submit;

use std::collections::VecDeque;

use kv_common::hash::KeyHash;
use kv_common::limits::EVENTS_PER_TURN_MAX;
use kv_common::probe::TableView;
use kv_common::transport::{Broken, Event, Transport};
use slab::Slab;

use crate::GetMode;
use crate::cache::IndexCache;
use crate::clock::ServerClock;
use crate::error::Error;
use crate::op::{Completion, GetState, Kind, Op, Outcome, Ticket};
use crate::stats::Stats;
use crate::transport::{AnyTransport, Lost};

use blocking::Blocking;
pub use blocking::WarmUp;
use hits::Hits;
pub(crate) use now::{GetNow, InRoom, InScratch};
use reads::Refresh;
use region::RegionReads;
use requests::InFlight;
use staging::Staging;

/// Everything of one connection.
pub(crate) struct Driver<T: Transport> {
    pub(crate) transport: T,
    view: TableView,
    pub(crate) cache: IndexCache,
    pub(crate) stats: Stats,
    session: u64,
    requests_in_flight_max: usize,
    timeout_ns: u64,
    get_mode: GetMode,
    /// READs are loads, and GETs are made of them.
    gets_are_loads: bool,
    /// Set once; from then on every call fails with it.
    broken: Option<Broken>,

    ops: Slab<Op>,
    next_ticket: u64,
    completions: VecDeque<Completion>,
    /// Operations whose message waits for credit, room, or the staging area; in order.
    unsent: VecDeque<usize>,
    /// Requests sent and not answered to the end, oldest first.
    in_flight: VecDeque<InFlight>,
    next_seq: u64,
    staging: Staging,

    /// Where READs that are served at once put their words.
    scratch: Vec<u64>,
    /// The value that a GET over loads has put together, until its caller takes it.
    large_value: Vec<u8>,
    spare_buffers: Vec<Vec<u64>>,
    /// For pages of large blocks.
    spare_pages: Vec<Vec<u64>>,
    reads_in_flight: usize,
    reads_queued: VecDeque<usize>,
    refresh: Option<Refresh>,
    /// The place epoch and when its READ was posted; for transports whose READs take time.
    lease: Option<(u64, u64)>,
    clock: ServerClock,
    /// When it has to be looked at again, for those that wait for it.
    look_at_clock_ns: Option<u64>,
    blocking: Blocking,
    region_reads: RegionReads,
    /// Hits that the server is to hear of.
    hits: Hits,
}

impl<T: Transport> Driver<T> {
    /// Reads the superblock and the directory; the connection is up only if they are what a server writes.
    pub(crate) fn new(
        transport: T,
        region_words: usize,
        options: &DriverOptions,
    ) -> Result<Driver<T>, Error> {
        let view = TableView::unread(region_words);
        let clock = ServerClock::after_hello(transport.now_ns(), options.hello_ago_ns);
        let mut driver = Driver {
            transport,
            view,
            cache: IndexCache::new(1, 1).map_err(memory_error)?,
            stats: Stats::default(),
            session: options.session,
            requests_in_flight_max: options.requests_in_flight,
            timeout_ns: options.timeout_ns,
            get_mode: options.get_mode,
            gets_are_loads: false,
            broken: None,
            ops: Slab::new(),
            next_ticket: 1,
            completions: VecDeque::new(),
            unsent: VecDeque::new(),
            in_flight: VecDeque::new(),
            next_seq: 1,
            staging: Staging::default(),
            scratch: Vec::new(),
            large_value: Vec::new(),
            spare_buffers: Vec::new(),
            spare_pages: Vec::new(),
            reads_in_flight: 0,
            reads_queued: VecDeque::new(),
            refresh: None,
            lease: None,
            clock,
            look_at_clock_ns: None,
            blocking: Blocking::Idle,
            region_reads: RegionReads::default(),
            hits: Hits::new(false, 0),
        };
        driver.gets_are_loads = driver.transport.reads_are_loads() && options.get_mode == GetMode::OneSided;
        driver.read_view()?;
        driver.settle_clock()?;
        driver.hits = Hits::new(driver.view.evicts, options.session);
        driver.cache =
            IndexCache::new(options.index_cache_bytes, driver.view.index_lines()).map_err(memory_error)?;
        driver.stats.index_cache_bytes = driver.cache.bytes();
        let epoch = driver.read_words_blocking(kv_common::layout::superblock::PLACE_EPOCH, 1)?[0];
        driver.cache.restart(epoch);
        Ok(driver)
    }

    /// Why the connection is no more.
    #[inline]
    pub(crate) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    /// Goes on counting where `old`, a connection before this one, stopped.
    pub(crate) fn continue_from(&mut self, old: &Driver<T>) {
        let index_cache_bytes = self.stats.index_cache_bytes;
        self.stats = Stats { index_cache_bytes, reconnects: old.stats.reconnects + 1, ..old.stats };
        self.next_ticket = old.next_ticket;
    }

    /// True if GETs are loads.
    #[inline]
    pub(crate) fn gets_are_loads(&self) -> bool {
        self.gets_are_loads
    }

    /// What is known of the table.
    pub(crate) fn view(&self) -> &TableView {
        &self.view
    }

    /// One turn: everything that can be done without waiting.
    pub(crate) fn turn(&mut self) {
        self.take_events();
        self.look_at_clock();
        self.send_queued();
        self.post_queued_reads();
        self.end_late();
        self.transport.flush();
    }

    /// Operations that have been submitted and whose completions have not been taken.
    pub(crate) fn pending(&self) -> usize {
        self.ops.len() + self.completions.len()
    }

    /// The next completion that is there already.
    pub(crate) fn take_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// Works until a completion is there; `None` if nothing is in flight.
    pub(crate) fn wait_any(&mut self) -> Option<Completion> {
        loop {
            if let Some(done) = self.completions.pop_front() {
                return Some(done);
            }
            if self.ops.is_empty() {
                return None;
            }
            self.turn_and_wait();
        }
    }

    /// Works until this operation has ended. Completions of others stay where they are.
    pub(crate) fn wait_for(&mut self, ticket: Ticket) -> Outcome {
        loop {
            if let Some(at) = self.completions.iter().position(|done| done.ticket == ticket) {
                return self.completions.remove(at).expect("just found").outcome;
            }
            self.turn_and_wait();
        }
    }

    fn turn_and_wait(&mut self) {
        self.turn();
        if self.completions.is_empty()
            && let Some(until_ns) = self.ops.iter().map(|(_, op)| op.deadline_ns).min()
        {
            self.transport.wait(self.look_at_clock_ns.map_or(until_ns, |look_ns| look_ns.min(until_ns)));
        }
    }

    /// Takes what came, a bounded number: a server that never stops talking must not keep deadlines from being looked
    /// at.
    fn take_events(&mut self) {
        for _ in 0..EVENTS_PER_TURN_MAX {
            if self.broken.is_some() {
                return;
            }
            match self.transport.poll() {
                Ok(None) => return,
                Ok(Some(Event::Message(message))) => self.on_message(&message),
                Ok(Some(Event::Read { token, buffer, result })) => self.on_read(token, buffer, result),
                Err(broken) => self.fail_all(broken),
            }
        }
    }

    /// The connection is no more: every operation in flight fails, once.
    pub(crate) fn fail_all(&mut self, broken: Broken) {
        tracing::debug!(%broken, operations = self.ops.len(), "connection lost");
        self.broken = Some(broken.clone());
        let keys: Vec<usize> = self.ops.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.take_back(key);
            let mut op = self.ops.remove(key);
            let outcome = op.failure(Error::Broken(broken.clone()));
            self.completions.push_back(Completion { ticket: op.ticket, outcome });
        }
        self.unsent.clear();
        self.in_flight.clear();
        self.staging = Staging::default();
        self.reads_queued.clear();
        self.refresh = None;
        self.region_reads.forget();
    }

    fn end_late(&mut self) {
        if self.ops.is_empty() {
            return;
        }
        let now_ns = self.transport.now_ns();
        let late: Vec<usize> =
            self.ops.iter().filter(|(_, op)| op.deadline_ns <= now_ns).map(|(key, _)| key).collect();
        let mut has_taken_back = false;
        for key in late {
            // A late write that ends lets GETs behind it go on, and those may be at their end at once.
            let Some(op) = self.ops.get(key) else { continue };
            let waited_ms = (now_ns - op.started_ns) / 1_000_000;
            self.stats.timeouts += 1;
            has_taken_back |= self.take_back(key);
            self.end_with_error(key, Error::Timeout { waited_ms });
        }
        if has_taken_back {
            // The connection may have ended for it.
            self.take_events();
        }
    }

    fn end_with_error(&mut self, key: usize, error: Error) {
        let outcome = self.ops[key].failure(error);
        self.end(key, outcome);
    }

    /// Ends an operation: its completion can be taken, and GETs that waited for it go on.
    fn end(&mut self, key: usize, outcome: Outcome) {
        let op = self.ops.remove(key);
        self.unsent.retain(|&other| other != key);
        self.staging.forget(key);
        self.reads_queued.retain(|&other| other != key);
        for request in self.in_flight.iter_mut().filter(|request| request.op == Some(key)) {
            request.op = None;
        }
        match &outcome {
            Outcome::Get(result) => self.count_get(result.as_ref().map(Option::is_some).ok()),
            Outcome::GetInto(_, result) => self.count_get(result.as_ref().map(Option::is_some).ok()),
            Outcome::Put(_)
            | Outcome::Delete(_)
            | Outcome::Conditional(_)
            | Outcome::Add(_)
            | Outcome::Append(_) => self.stats.writes += 1,
            Outcome::Ping(_) | Outcome::Ttl(_) | Outcome::Walk(_) => {}
        }
        self.completions.push_back(Completion { ticket: op.ticket, outcome });
        if op.is_write() {
            self.resume_behind(op.hash);
        }
    }

    #[inline]
    fn count_get(&mut self, is_hit: Option<bool>) {
        self.stats.gets += 1;
        match is_hit {
            Some(true) => self.stats.hits += 1,
            Some(false) => self.stats.misses += 1,
            None => {}
        }
    }

    /// A large value has come as far as `furthest`. If that is further than before, its operation has all its time again, and so
    /// have those that wait for it: what was submitted behind an upload, and GETs of its key.
    fn note_progress(&mut self, key: usize, furthest: u64) {
        if furthest <= self.ops[key].furthest {
            return;
        }
        let deadline_ns = self.transport.now_ns().saturating_add(self.timeout_ns);
        let op = &mut self.ops[key];
        (op.furthest, op.deadline_ns) = (furthest, deadline_ns);
        if !op.is_write() {
            return;
        }
        for &waiting in &self.unsent {
            self.ops[waiting].deadline_ns = deadline_ns;
        }
        for (_, op) in &mut self.ops {
            if matches!(op.kind, Kind::Get { state: GetState::BehindWrite, .. }) {
                op.deadline_ns = deadline_ns;
            }
        }
    }

    /// Refuses values beyond what the server takes before they are copied or sent.
    pub(crate) fn check_value_bytes(&self, found_bytes: usize) -> Result<(), Error> {
        let limit_bytes = self.view.value_max_bytes;
        if found_bytes > limit_bytes {
            return Err(Error::ValueTooLarge { found_bytes, limit_bytes });
        }
        Ok(())
    }

    fn check_alive(&self) -> Result<(), Error> {
        self.broken.clone().map_or(Ok(()), |broken| Err(Error::Broken(broken)))
    }

    /// True if a write of this client to the key is in flight: a GET waits for it, so that a client reads its own
    /// writes.
    #[inline]
    pub(crate) fn is_behind_write(&self, hash: KeyHash) -> bool {
        if self.ops.is_empty() || kv_common::adversary::mutant(kv_common::adversary::Mutant::SkipOwnWrites) {
            return false;
        }
        self.ops.iter().any(|(_, op)| op.is_write() && op.hash == hash)
    }

    fn set_get_state(&mut self, key: usize, new: GetState) {
        if let Kind::Get { state, .. } = &mut self.ops[key].kind {
            *state = new;
        }
    }
}

impl Driver<AnyTransport> {
    /// Gives back what a lost connection still holds: the session's place at the server, and the cache's memory.
    pub(crate) fn let_go(&mut self) {
        self.transport = AnyTransport::Lost(Lost::new());
        if let Ok(none) = IndexCache::new(1, 1) {
            self.cache = none;
        }
    }
}

/// What a connection needs to know beside its transport.
pub(crate) struct DriverOptions {
    pub(crate) session: u64,
    /// The credit that the server grants.
    pub(crate) requests_in_flight: usize,
    pub(crate) timeout_ns: u64,
    pub(crate) index_cache_bytes: usize,
    pub(crate) get_mode: GetMode,
    /// The hello was sent so long ago.
    pub(crate) hello_ago_ns: u64,
}

fn memory_error(error: std::io::Error) -> Error {
    Error::Connect {
        endpoint: "the index cache".into(),
        reason: format!("no memory for it: {error}; lower its budget"),
    }
}
