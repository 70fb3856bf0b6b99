//! A client as a task: the real client library over the fabric, doing what its random script says.

mod draw;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use kv_client::{
    Client, Condition, Conditional, Error, Options, Outcome, PutOptions, Refusal, Ticket, Value,
};
use kv_common::region::Words;
use kv_common::transport::Transport;
use kv_common::transport::sim::{Fabric, Flavour, Rng};
use kv_tests::oracle::{Call, OpId, Oracle, Return, When};

use crate::buffers::Buffers;
use crate::tasks::pause;
use crate::totals::Totals;

/// Operations that a client has in flight on one key, at most.
const PENDING_PER_KEY_MAX: usize = 4;

/// Operations of a client that only reads, at most.
const READER_OPERATIONS_MAX: u64 = 20_000;
/// Steps between the answer to a hello and the first look at the region, at most.
const LOOK_LATE_STEPS_MAX: u64 = 2000;

/// What is common to all clients.
pub(crate) struct Shared {
    pub(crate) fabric: Fabric,
    pub(crate) region_words: usize,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) totals: RefCell<Totals>,
    pub(crate) life: Cell<u32>,
    /// The server can be connected to.
    pub(crate) is_up: Rc<Cell<bool>>,
    pub(crate) sessions: Cell<u64>,
    /// All write more than they delete at the moment, or less: overflow lines come and go.
    pub(crate) is_growing: Cell<bool>,
    /// Clients that write and are not done.
    pub(crate) writers: Cell<u64>,
    /// The key that is being written, or was written last.
    pub(crate) written: Cell<usize>,
    /// The server is stopped until this time of the fabric.
    pub(crate) stopped_until_ns: Cell<u64>,
    /// GETs of the key being written that have ended.
    pub(crate) gets_ended: Cell<u64>,
    /// What was found wrong first.
    pub(crate) wrong: RefCell<Option<String>>,
    /// Bytes of blocks whose class is in use: values are cut to fit one of them.
    pub(crate) block_bytes: Vec<usize>,
    /// Words that a client lends for values too large for a message.
    pub(crate) staging_words: usize,
}

impl Shared {
    /// Notes that something is wrong. The world stops then.
    pub(crate) fn wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.fabric.now_ns() < self.stopped_until_ns.get()
    }
}

/// What a client may do to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Only read it.
    Read,
    /// Write it, but never delete it.
    Keep,
    /// Anything.
    Any,
}

/// How one client behaves.
#[derive(Clone, Debug)]
pub(crate) struct PlayerPlan {
    pub(crate) number: u32,
    pub(crate) operations: u64,
    /// By key.
    pub(crate) roles: Vec<Role>,
    pub(crate) flavours: Vec<Flavour>,
    /// Its READs may be slow.
    pub(crate) is_patient: bool,
    pub(crate) timeout: Duration,
    pub(crate) index_cache_bytes: usize,
    pub(crate) warms_up: bool,
    /// Operations that it has in flight at most.
    pub(crate) depth: usize,
    /// Of 100 operations so many are pipelined, so many are GETs.
    pub(crate) pipelined_percent: u64,
    pub(crate) gets_percent: u64,
    /// Of 100 writes to keys that nobody relies on, so many are of values whose time ends.
    pub(crate) ttl_percent: u64,
    /// Of 100 operations so many are on the key that was written last.
    pub(crate) follow_percent: u64,
    /// Every third operation is on one of so many keys.
    pub(crate) hot_keys: u64,
    /// If not 0: its keys are a queue. It writes up to so many new ones, then deletes up to so many of the oldest, and
    /// so on.
    pub(crate) queue_burst_max: u64,
    /// After so many operations on average, growing turns into shrinking or back.
    pub(crate) turn_one_in: u64,
    /// Once in so many connections it first looks at the region long after the server's answer to its hello.
    pub(crate) look_late_one_in: u64,
    /// Once in so many operations it sleeps.
    pub(crate) sleep_one_in: u64,
    pub(crate) sleep_steps_max: u64,
}

impl PlayerPlan {
    /// It does nothing but read.
    pub(crate) fn is_reader(&self) -> bool {
        self.gets_percent == 100
    }
}

/// A client while its script runs.
pub(crate) struct Player {
    shared: Rc<Shared>,
    plan: PlayerPlan,
    rng: Rng,
    /// The step until which it sleeps.
    sleep_until: Rc<Cell<u64>>,
    pending: BTreeMap<Ticket, (OpId, usize)>,
    buffers: Buffers,
    /// The last version seen, by key.
    versions: Vec<u64>,
    done: u64,
    /// The keys of the queue: so many from this one on.
    oldest: usize,
    queued: usize,
    is_filling: bool,
    burst_left: u64,
}

/// What it is connected by.
struct Line {
    client: Client,
    link: usize,
    life: u32,
}

impl Player {
    pub(crate) fn new(
        shared: Rc<Shared>,
        plan: PlayerPlan,
        mut rng: Rng,
        sleep_until: Rc<Cell<u64>>,
    ) -> Player {
        let versions = vec![0; plan.roles.len()];
        let buffers = Buffers::new(rng.pick(&shared.block_bytes));
        Player {
            shared,
            plan,
            rng,
            sleep_until,
            pending: BTreeMap::new(),
            buffers,
            versions,
            done: 0,
            oldest: 0,
            queued: 0,
            is_filling: false,
            burst_left: 0,
        }
    }

    /// The whole script.
    pub(crate) fn play(mut self) {
        while self.goes_on() {
            let Some(mut line) = self.connect() else { continue };
            self.play_on(&mut line);
            self.shared.totals.borrow_mut().add(&line.client.stats());
            if let Some((ticket, op)) = self.pending.pop_first() {
                self.shared.wrong(format!("{ticket:?}, {op:?} never completed"));
            }
        }
        if !self.plan.is_reader() {
            self.shared.writers.set(self.shared.writers.get() - 1);
        }
    }

    /// Whoever only reads goes on, within bounds, until the others are done.
    fn goes_on(&self) -> bool {
        if !self.plan.is_reader() {
            return self.done < self.plan.operations;
        }
        self.shared.writers.get() > 0 && self.done < READER_OPERATIONS_MAX
    }

    /// Reads every key once, at the end of everything.
    pub(crate) fn read_all(mut self) {
        let Some(mut line) = self.connect() else {
            return self.shared.wrong("no connection at the end".into());
        };
        for key in 0..self.plan.roles.len() {
            if !self.get(&mut line, key) {
                self.shared.wrong(format!("key {key} cannot be read at the end"));
            }
        }
    }

    /// A connection, once the server is up. None if it broke before it was of use.
    fn connect(&mut self) -> Option<Line> {
        while !self.shared.is_up.get() {
            self.sleep(100);
        }
        let life = self.shared.life.get();
        let session = self.shared.sessions.get() + 1;
        self.shared.sessions.set(session);
        let flavour = self.rng.pick(&self.plan.flavours);
        let staging = Words::zeroed(self.shared.staging_words);
        let transport = self.shared.fabric.connect(flavour, self.plan.is_patient, session, staging);
        let (link, hello_ns) = (transport.link(), transport.now_ns());
        // A server that is stopped does not answer.
        while self.shared.is_stopped() {
            self.sleep(100);
        }
        if self.rng.one_in(self.plan.look_late_one_in) {
            self.sleep(LOOK_LATE_STEPS_MAX);
        }
        let hello_ago = Duration::from_nanos(transport.now_ns() - hello_ns);
        let (timeout, index_cache_bytes) = (self.plan.timeout, self.plan.index_cache_bytes);
        let options = Options { timeout, index_cache_bytes, ..Options::default() };
        let region_words = self.shared.region_words;
        let connected = Client::over(Box::new(transport), session, region_words, hello_ago, &options);
        match connected {
            Ok(mut client) => {
                if self.plan.warms_up {
                    let _: Result<_, Error> = client.warm_up();
                }
                Some(Line { client, link, life })
            }
            Err(Error::Connect { .. }) => None,
            Err(error) => {
                self.shared.wrong(format!("no connection: {error}"));
                None
            }
        }
    }

    fn play_on(&mut self, line: &mut Line) {
        let mut is_up = true;
        while is_up && self.goes_on() {
            self.done += 1;
            if !self.plan.is_reader() && self.rng.one_in(self.plan.turn_one_in) {
                self.shared.is_growing.set(!self.shared.is_growing.get());
            }
            if self.rng.one_in(self.plan.sleep_one_in) {
                let steps = self.rng.below(self.plan.sleep_steps_max + 1);
                self.sleep(steps);
            }
            is_up = match self.rng.below(200) {
                0 => self.survives(line.client.server_stat().map(drop)),
                1..10 => self.multi_get(line),
                n if n < 10 + 2 * self.plan.pipelined_percent => self.submit(line),
                _ => self.call(line),
            };
            is_up &= self.take_completions(line);
        }
        while line.client.pending() > 0 {
            match line.client.wait() {
                Ok(Some(done)) => self.complete(done.ticket, done.outcome),
                Ok(None) => break,
                Err(error) => return self.shared.wrong(format!("waiting failed: {error}")),
            }
        }
    }

    fn sleep(&mut self, steps_max: u64) {
        self.sleep_until.set(self.shared.fabric.now_step() + self.rng.below(steps_max));
        pause();
    }

    /// One blocking call.
    fn call(&mut self, line: &mut Line) -> bool {
        let (key, call) = self.draw();
        if call == Call::Get {
            return self.get(line, key);
        }
        let (op, bytes) = self.begin(line, key, call);
        let name = self.key_bytes(key);
        let outcome = match call {
            Call::Get => unreachable!("done above"),
            Call::Put { ttl_ns: None, .. } => Outcome::Put(line.client.put(&name, &bytes)),
            Call::Put { ttl_ns, .. } => {
                Outcome::Conditional(line.client.put_with(&name, &bytes, options(None, ttl_ns)))
            }
            Call::Delete => Outcome::Delete(line.client.delete(&name)),
            Call::PutIf { when, ttl_ns, .. } => {
                Outcome::Conditional(line.client.put_with(&name, &bytes, options(Some(when), ttl_ns)))
            }
            Call::DeleteIf { when } => Outcome::Conditional(line.client.delete_if(&name, condition(when))),
        };
        self.finish(op, key, outcome)
    }

    fn get(&mut self, line: &mut Line, key: usize) -> bool {
        let (op, name) = (self.begin(line, key, Call::Get).0, self.key_bytes(key));
        let result = match self.rng.below(4) {
            0 => line.client.get(&name),
            3 => self.buffers.get(&mut line.client, &name),
            1 => {
                let mut bytes = vec![1];
                let version = line.client.get_to_vec(&name, &mut bytes);
                version.map(|found| found.map(|version| Value { bytes, version }))
            }
            _ => line.client.get_with(&name, |bytes, version| Value { bytes: bytes.to_vec(), version }),
        };
        self.shared.fabric.take_raced(line.link);
        self.finish(op, key, Outcome::Get(result))
    }

    fn multi_get(&mut self, line: &mut Line) -> bool {
        let keys: Vec<usize> = (0..1 + self.rng.below(20)).map(|_| self.draw_key()).collect();
        let names: Vec<Vec<u8>> = keys.iter().map(|&key| self.key_bytes(key)).collect();
        let ops: Vec<OpId> = keys.iter().map(|&key| self.begin(line, key, Call::Get).0).collect();
        let results = line.client.multi_get(&names);
        self.shared.fabric.take_raced(line.link);
        let mut is_up = true;
        for ((key, op), result) in keys.into_iter().zip(ops).zip(results) {
            is_up &= self.finish(op, key, Outcome::Get(result));
        }
        is_up
    }

    /// Submits one operation, or several.
    fn submit(&mut self, line: &mut Line) -> bool {
        for _ in 0..1 + self.rng.below(self.plan.depth as u64) {
            if self.pending.len() >= self.plan.depth {
                return true;
            }
            let (key, call) = self.draw();
            // What overlaps on one key multiplies the orders that the judge has to look at.
            if self.pending.values().filter(|&&(_, other)| other == key).count() >= PENDING_PER_KEY_MAX {
                continue;
            }
            let (op, bytes) = self.begin(line, key, call);
            let name = self.key_bytes(key);
            let ticket = match call {
                Call::Get if self.rng.one_in(3) => self.buffers.submit(&mut line.client, &name),
                Call::Get => line.client.submit_get(&name),
                Call::Put { ttl_ns: None, .. } => line.client.submit_put(&name, &bytes),
                Call::Put { ttl_ns, .. } => line.client.submit_put_with(&name, &bytes, options(None, ttl_ns)),
                Call::Delete => line.client.submit_delete(&name),
                Call::PutIf { when, ttl_ns, .. } => {
                    line.client.submit_put_with(&name, &bytes, options(Some(when), ttl_ns))
                }
                Call::DeleteIf { when } => line.client.submit_delete_if(&name, condition(when)),
            };
            match ticket {
                Ok(ticket) => {
                    if self.pending.insert(ticket, (op, key)).is_some() {
                        self.shared.wrong(format!("{ticket:?} was given out twice"));
                    }
                }
                Err(error) => {
                    self.end(op, Return::NoEffect);
                    return self.survives(Err(error));
                }
            }
        }
        true
    }

    fn take_completions(&mut self, line: &mut Line) -> bool {
        pause();
        for _ in 0..self.rng.below(4) {
            match line.client.poll() {
                Ok(Some(done)) => self.complete(done.ticket, done.outcome),
                Ok(None) => return true,
                Err(error) => return self.survives(Err(error)),
            }
        }
        true
    }

    fn complete(&mut self, ticket: Ticket, outcome: Outcome) {
        let outcome = self.buffers.outcome(outcome);
        match self.pending.remove(&ticket) {
            Some((op, key)) => {
                self.finish(op, key, outcome);
            }
            None => self.shared.wrong(format!("{ticket:?} completed, and is not pending: {outcome:?}")),
        }
    }

    /// Notes how an operation ended. False if the connection is no more.
    fn finish(&mut self, op: OpId, key: usize, outcome: Outcome) -> bool {
        if matches!(outcome, Outcome::Get(_)) && key == self.shared.written.get() {
            self.shared.gets_ended.set(self.shared.gets_ended.get() + 1);
        }
        let (back, error) = match outcome {
            Outcome::Get(Ok(Some(Value { bytes, version }))) => {
                self.versions[key] = version;
                (Return::Found { version, bytes }, None)
            }
            Outcome::Get(Ok(None)) | Outcome::Conditional(Ok(Conditional::NotFound)) => {
                (Return::Absent, None)
            }
            Outcome::Put(Ok(version)) | Outcome::Conditional(Ok(Conditional::Done(version))) => {
                self.versions[key] = version;
                (Return::Stored(version), None)
            }
            Outcome::Conditional(Ok(Conditional::Mismatch(version))) => (Return::Mismatch(version), None),
            Outcome::Delete(Ok(found)) => (Return::Deleted(found), None),
            Outcome::Put(Err(error)) | Outcome::Delete(Err(error)) | Outcome::Conditional(Err(error)) => {
                let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
                (if is_unknown { Return::Unknown } else { Return::NoEffect }, Some(error))
            }
            Outcome::Get(Err(error)) => (Return::NoEffect, Some(error)),
            Outcome::GetInto(..) => unreachable!("a GET by now"),
            Outcome::Add(_) | Outcome::Append(_) | Outcome::Ttl(_) | Outcome::Walk(_) => {
                unreachable!("none of these are submitted")
            }
            Outcome::Ping(result) => return self.survives(result),
        };
        self.end(op, back);
        self.survives(error.map_or(Ok(()), Err))
    }

    /// Whether the connection is still good after this. Errors that should not be are noted.
    fn survives(&self, result: Result<(), Error>) -> bool {
        let mut totals = self.shared.totals.borrow_mut();
        match result {
            Ok(()) => true,
            Err(Error::OutcomeUnknown { .. }) => {
                totals.unknown += 1;
                true
            }
            Err(Error::Timeout { .. } | Error::TooManyInFlight { .. } | Error::BufferTooSmall { .. }) => true,
            Err(Error::Refused(
                Refusal::RegionFull { .. }
                | Refusal::NoRun { .. }
                | Refusal::HomeFull { .. }
                | Refusal::StagedChanged { .. },
            )) => {
                totals.refused += 1;
                true
            }
            Err(Error::Broken(_)) => false,
            Err(error) => {
                self.shared.wrong(format!("an error that nothing here brings about: {error}"));
                false
            }
        }
    }

    fn begin(&self, line: &Line, key: usize, call: Call) -> (OpId, Vec<u8>) {
        let mut oracle = self.shared.oracle.borrow_mut();
        oracle.set_server_clock(self.shared.fabric.now_ns());
        let op = oracle.begin(line.life, self.plan.number, key, call);
        let has_value = matches!(call, Call::Put { .. } | Call::PutIf { .. });
        let bytes = if has_value { oracle.value(op) } else { Vec::new() };
        let expires = matches!(call, Call::Put { ttl_ns: Some(_), .. } | Call::PutIf { ttl_ns: Some(_), .. });
        self.shared.totals.borrow_mut().expiring_writes += u64::from(expires);
        (op, bytes)
    }

    fn end(&self, op: OpId, back: Return) {
        let mut oracle = self.shared.oracle.borrow_mut();
        oracle.set_server_clock(self.shared.fabric.now_ns());
        if let Err(what) = oracle.end(op, back) {
            self.shared.wrong(what);
        }
    }

    fn key_bytes(&self, key: usize) -> Vec<u8> {
        self.shared.oracle.borrow().keys()[key].bytes.clone()
    }
}

fn options(when: Option<When>, ttl_ns: Option<u64>) -> PutOptions {
    let mut options = PutOptions::from(when.map_or(Condition::Always, condition));
    options.ttl = ttl_ns.map(Duration::from_nanos);
    options
}

fn condition(when: When) -> Condition {
    match when {
        When::Absent => Condition::Absent,
        When::Present => Condition::Present,
        When::Version(version) => Condition::Version(version),
    }
}
