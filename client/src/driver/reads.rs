//! GETs and whatever else READs the region.

use std::borrow::Cow;
use std::ops::Range;

use kv_common::adversary::{Mutant, mutant};
use kv_common::hash::KeyHash;
use kv_common::layout::{Slot, superblock};
use kv_common::limits::CLIENT_OPERATIONS_MAX;
use kv_common::probe::TableView;
use kv_common::region::bytes_of;
use kv_common::transport::{Broken, ReadBuffer, ReadNow, Transport};

use super::Driver;
use super::blocking::Blocking;
use super::region::REGION_TOKEN;
use crate::GetMode;
use crate::clock::Judgement;
use crate::error::Error;
use crate::get::{Action, Context};
use crate::op::{Answer, GetState, Kind, Outcome, SendState, Version};

/// Tokens of READs that belong to no operation.
const REFRESH_TOKEN: u64 = u64::MAX;
pub(super) const BLOCKING_TOKEN: u64 = u64::MAX - 1;

const _: () = assert!(CLIENT_OPERATIONS_MAX <= 1 << 16, "a token has 16 bits for the operation");

/// Words of the guard line (owner, place epoch, directory depth, LEASE), and the server's clock behind it.
const GUARD_WORDS: usize = superblock::CLOCK_NS - superblock::OWNER + 1;

/// The directory or the lease is being read anew.
#[derive(Debug)]
pub(super) struct Refresh {
    wants_directory: bool,
    phase: RefreshPhase,
}

#[derive(Debug)]
enum RefreshPhase {
    Guard { posted_ns: u64 },
    Directory,
}

/// Where the words of an operation's READ are.
enum Landed {
    Private(Vec<u64>),
    /// The first ones of the operation's memory of the user.
    User {
        len_words: usize,
    },
}

impl<T: Transport> Driver<T> {
    #[cold]
    pub(super) fn broke(&mut self, broken: Broken) -> Error {
        self.fail_all(broken.clone());
        Error::Broken(broken)
    }

    /// Starts a submitted GET, or starts it over, or goes on once its large block was fetched.
    pub(super) fn start_get(&mut self, key: usize) {
        self.advance(key, None);
    }

    /// Gives a submitted GET the words of its READ and does what it wants next.
    fn advance(&mut self, key: usize, mut landed: Option<Landed>) {
        if self.get_mode == GetMode::Server {
            return self.ask(key);
        }
        loop {
            let place_epoch = match self.place_epoch() {
                Ok(Some(epoch)) => epoch,
                Ok(None) => {
                    self.stats.leases_expired += u64::from(landed.is_some());
                    self.recycle(landed);
                    return self.refresh_for(key, false);
                }
                Err(_) => return,
            };
            match self.step_op(key, landed.as_ref(), place_epoch) {
                Action::Read { at_word, len_words } => {
                    let mut buffer = self.buffer_for(key, landed.take(), len_words);
                    let read = self.transport.read_now(at_word, &mut buffer);
                    if read == Ok(ReadNow::Post) {
                        return self.post_read(key, at_word, buffer);
                    }
                    landed = Some(self.land_op(key, buffer));
                    if let Err(broken) = read {
                        return self.fail_all(broken);
                    }
                }
                Action::Found { version, value } => {
                    let outcome = self.found(key, landed.as_ref(), value, version);
                    self.end_hit(key, outcome);
                    break;
                }
                Action::Fetch => {
                    self.recycle(landed.take());
                    if !self.fetch_pages(key) {
                        return;
                    }
                }
                Action::FoundLarge { version, bytes, expires_ns } => {
                    match self.judge_large(expires_ns) {
                        Err(_) => return,
                        Ok(Judgement::Ask | Judgement::Expired) => self.ask(key),
                        Ok(Judgement::LookAt(at_ns)) => self.wait_for_clock(key, at_ns),
                        Ok(Judgement::Live) => {
                            let outcome = self.ops[key].found(Cow::Owned(bytes), version);
                            self.end_hit(key, outcome);
                        }
                    }
                    break;
                }
                Action::NoMemory { bytes } => {
                    self.end_with_error(key, Error::NoMemory { bytes });
                    break;
                }
                Action::Absent => {
                    let outcome = self.ops[key].absent();
                    self.end(key, outcome);
                    break;
                }
                Action::FoundExpiring { version, value, expires_ns } => {
                    match self.judge_expiry(expires_ns) {
                        Err(_) => return,
                        Ok(Judgement::Ask) => self.ask(key),
                        Ok(Judgement::LookAt(at_ns)) => self.wait_for_clock(key, at_ns),
                        Ok(Judgement::Expired) => {
                            let outcome = self.ops[key].absent();
                            self.end(key, outcome);
                        }
                        Ok(Judgement::Live) => {
                            let outcome = self.found(key, landed.as_ref(), value, version);
                            self.end_hit(key, outcome);
                        }
                    }
                    break;
                }
                Action::RefreshDirectory => {
                    self.refresh_for(key, true);
                    break;
                }
                Action::Ask => {
                    self.ask(key);
                    break;
                }
            }
        }
        self.recycle(landed);
    }

    /// Ends a GET that has found its value, and notes that if it is this hit's turn.
    fn end_hit(&mut self, key: usize, outcome: Outcome) {
        let slot = self.slot_to_note(key);
        self.end(key, outcome);
        if let Some(slot) = slot {
            self.note_hit(slot, true);
        }
    }

    fn slot_to_note(&mut self, key: usize) -> Option<Slot> {
        if !self.hits.is_due() {
            return None;
        }
        let Kind::Get { get, .. } = &self.ops[key].kind else { return None };
        get.found_slot()
    }

    /// How an operation ends whose value is at `value` in the words of its READ.
    fn found(
        &mut self,
        key: usize,
        landed: Option<&Landed>,
        value: Range<usize>,
        version: Version,
    ) -> Outcome {
        let op = &mut self.ops[key];
        match landed.expect("a value is found in words") {
            Landed::User { .. } => {
                self.stats.values_in_place += 1;
                op.found_in_place(value, version)
            }
            Landed::Private(words) => op.found(Cow::Borrowed(&bytes_of(words)[value]), version),
        }
    }

    /// Where an operation's next READ ends: in memory of the user, if it has some that is large enough.
    fn buffer_for(&mut self, key: usize, landed: Option<Landed>, len_words: usize) -> ReadBuffer {
        if let Some(memory) = self.ops[key].registered().and_then(|buffer| buffer.lend(len_words)) {
            self.recycle(landed);
            return ReadBuffer::User { memory, len_words };
        }
        let mut words = match landed {
            Some(Landed::Private(words)) => words,
            _ => self.spare_buffers.pop().unwrap_or_default(),
        };
        words.resize(len_words, 0);
        ReadBuffer::Private(words)
    }

    /// Takes the buffer of a READ that is done, or was not made: memory of the user goes back to its operation.
    fn land_op(&mut self, key: usize, buffer: ReadBuffer) -> Landed {
        let len_words = buffer.len();
        match buffer.into_user() {
            Err(words) => Landed::Private(words),
            Ok(memory) => {
                self.ops[key].registered().expect("it was lent by this operation").put_back(memory);
                Landed::User { len_words }
            }
        }
    }

    fn recycle(&mut self, landed: Option<Landed>) {
        if let Some(Landed::Private(words)) = landed {
            self.spare_buffers.push(words);
        }
    }

    /// Takes the user's memory back from the READ of an operation. False if it is not lent to one.
    pub(super) fn take_back(&mut self, key: usize) -> bool {
        let token = self.token(key);
        let Some(buffer) = self.ops[key].registered().filter(|buffer| buffer.is_lent()) else { return false };
        if let Some(memory) = self.transport.take_back(token) {
            buffer.put_back(memory);
        }
        true
    }

    /// Whether a time has come by the server's clock.
    pub(super) fn judge_expiry(&mut self, expires_ns: u64) -> Result<Judgement, Error> {
        if mutant(Mutant::IgnoreExpiry) {
            return Ok(Judgement::Live);
        }
        if self.transport.reads_are_loads() {
            let posted_ns = self.transport.now_ns();
            let mut word = [0];
            match self.transport.read_now(superblock::CLOCK_NS, &mut word) {
                Ok(_) => self.clock.note(word[0], posted_ns, self.transport.now_ns()),
                Err(broken) => return Err(self.broke(broken)),
            }
        }
        Ok(self.clock.judge(expires_ns, self.transport.now_ns()))
    }

    /// Whether a large value that was read counts, which has this expiry if it has any. If its time is over the server must be
    /// asked. READs of its pages take their time: it may have been touched after the first and before its time was over, and
    /// then the key was never absent.
    pub(super) fn judge_large(&mut self, expires_ns: Option<u64>) -> Result<Judgement, Error> {
        expires_ns.map_or(Ok(Judgement::Live), |expires_ns| self.judge_expiry(expires_ns))
    }

    /// Lets an operation wait until the server's clock has been looked at again, at `at_ns` or later.
    fn wait_for_clock(&mut self, key: usize, at_ns: u64) {
        self.stats.clock_looks += 1;
        self.set_get_state(key, GetState::Refreshing);
        self.look_at_clock_ns = Some(self.look_at_clock_ns.map_or(at_ns, |earlier| earlier.min(at_ns)));
    }

    /// Looks at the server's clock, if somebody waits for it and it is time.
    pub(super) fn look_at_clock(&mut self) {
        let is_due = self.look_at_clock_ns.is_some_and(|at_ns| at_ns <= self.transport.now_ns());
        if is_due {
            self.look_at_clock_ns = None;
            // One that is under way looks at the clock, too.
            if self.refresh.is_none() && self.broken.is_none() {
                self.start_refresh(false);
            }
        }
    }

    /// Has the server answer a GET: the answer of last resort.
    pub(super) fn ask(&mut self, key: usize) {
        self.stats.asked_server += 1;
        self.set_get_state(key, GetState::Asked { state: SendState::Queued, answer: Answer::default() });
        self.unsent.push_back(key);
        self.send_queued();
    }

    fn step_op(&mut self, key: usize, landed: Option<&Landed>, place_epoch: u64) -> Action {
        let transport = &self.transport;
        let now_ns = || transport.now_ns();
        let (view, cache, stats) = (&self.view, &mut self.cache, &mut self.stats);
        let mut cx = Context { view, cache, stats, place_epoch, now_ns: &now_ns };
        let op = &mut self.ops[key];
        let Kind::Get { get, into, .. } = &mut op.kind else { unreachable!("only GETs read") };
        match landed {
            None => get.start(&mut cx),
            Some(Landed::Private(words)) => get.words(&op.key, words, &mut cx),
            Some(Landed::User { len_words }) => {
                let buffer = into.as_ref().expect("the words went there");
                get.words(&op.key, buffer.words(*len_words), &mut cx)
            }
        }
    }

    fn post_read(&mut self, key: usize, at_word: usize, buffer: ReadBuffer) {
        if self.reads_in_flight >= self.transport.reads_in_flight_max() {
            let len_words = buffer.len();
            let unused = self.land_op(key, buffer);
            self.recycle(Some(unused));
            self.set_get_state(key, GetState::ReadQueued { at_word, len_words });
            return self.reads_queued.push_back(key);
        }
        self.set_get_state(key, GetState::Reading);
        self.reads_in_flight += 1;
        self.transport.post_read(self.token(key), at_word, buffer);
    }

    pub(super) fn post_queued_reads(&mut self) {
        while self.reads_in_flight < self.transport.reads_in_flight_max() {
            let Some(key) = self.reads_queued.pop_front() else { return };
            let (at_word, len_words) = match self.ops[key].kind {
                Kind::Get { state: GetState::ReadQueued { at_word, len_words }, .. } => (at_word, len_words),
                Kind::Get { state: GetState::Fetching { .. }, .. } => {
                    self.fetch_pages(key);
                    continue;
                }
                _ => unreachable!("queued for a READ"),
            };
            let buffer = self.buffer_for(key, None, len_words);
            self.post_read(key, at_word, buffer);
        }
    }

    /// An operation's READ: its slab key, and enough of its ticket to tell it from a later one with the same key. Between them
    /// is room for which READ of pages it is, 0 for others.
    pub(super) fn token(&self, key: usize) -> u64 {
        key as u64 | self.ops[key].ticket.0 << 32 & u64::MAX >> 1
    }

    pub(super) fn on_read(&mut self, token: u64, buffer: ReadBuffer, result: Result<(), Broken>) {
        match token {
            REFRESH_TOKEN => return self.on_refresh(&buffer, result),
            BLOCKING_TOKEN => {
                return self.blocking = Blocking::Done(result.map(|()| buffer.into_words()));
            }
            _ => self.reads_in_flight -= 1,
        }
        if token & REGION_TOKEN != 0 {
            return self.on_region_read(token, buffer.into_words(), result);
        }
        let (key, piece) = (token as u16 as usize, token >> 16 & 0xffff);
        let is_wanted = self.ops.contains(key) && self.token(key) | piece << 16 == token;
        if piece != 0 {
            return self.on_pages(is_wanted.then_some(key), piece, buffer.into_words(), result);
        }
        let landed = if is_wanted { self.land_op(key, buffer) } else { Landed::Private(buffer.into_words()) };
        match result {
            Err(broken) => self.fail_all(broken),
            Ok(()) if is_wanted => self.advance(key, Some(landed)),
            Ok(()) => self.recycle(Some(landed)),
        }
    }

    /// The place epoch for a step: a load where READs are loads, else the lease if it is fresh.
    pub(super) fn place_epoch(&mut self) -> Result<Option<u64>, Error> {
        match self.transport.guard_now() {
            Ok(None) => {}
            Ok(epoch) => return Ok(epoch),
            Err(broken) => return Err(self.broke(broken)),
        }
        let now_ns = self.transport.now_ns();
        let Some((epoch, age_ns)) = self.lease.map(|(epoch, posted_ns)| (epoch, now_ns - posted_ns)) else {
            return Ok(None);
        };
        if age_ns > self.view.lease_ns / 2 && self.refresh.is_none() {
            // In time, so that no GET has to wait for it.
            self.start_refresh(false);
        }
        Ok(Some(epoch).filter(|_| age_ns < self.view.lease_ns))
    }

    /// Lets an operation wait until the guard line, and the directory if it is wanted, have been read anew.
    fn refresh_for(&mut self, key: usize, wants_directory: bool) {
        self.set_get_state(key, GetState::Refreshing);
        match &mut self.refresh {
            Some(refresh) => refresh.wants_directory |= wants_directory,
            None => self.start_refresh(wants_directory),
        }
    }

    fn start_refresh(&mut self, wants_directory: bool) {
        let posted_ns = self.transport.now_ns();
        self.refresh = Some(Refresh { wants_directory, phase: RefreshPhase::Guard { posted_ns } });
        self.read_for_refresh(superblock::OWNER, GUARD_WORDS);
    }

    fn read_for_refresh(&mut self, at_word: usize, len_words: usize) {
        let mut words = vec![0; len_words];
        match self.transport.read_now(at_word, &mut words) {
            Ok(ReadNow::Done) => self.on_refresh(&words, Ok(())),
            Ok(ReadNow::Post) => self.transport.post_read(REFRESH_TOKEN, at_word, words.into()),
            Err(broken) => self.fail_all(broken),
        }
    }

    fn on_refresh(&mut self, words: &[u64], result: Result<(), Broken>) {
        if let Err(broken) = result {
            return self.fail_all(broken);
        }
        let Some(refresh) = &mut self.refresh else { return };
        match refresh.phase {
            RefreshPhase::Guard { posted_ns } => {
                self.lease = Some((words[superblock::PLACE_EPOCH - superblock::OWNER], posted_ns));
                let now_ns = self.transport.now_ns();
                self.clock.note(words[superblock::CLOCK_NS - superblock::OWNER], posted_ns, now_ns);
                let depth = TableView::check_depth(words[superblock::DIRECTORY_DEPTH - superblock::OWNER]);
                match (depth, refresh.wants_directory) {
                    (Ok(depth), true) => {
                        refresh.phase = RefreshPhase::Directory;
                        return self.read_for_refresh(self.view.directory_word, 1 << depth);
                    }
                    (Ok(_), false) => {}
                    (Err(error), _) => return self.fail_all(Broken::Protocol { what: error.to_string() }),
                }
            }
            RefreshPhase::Directory => {
                if let Err(error) = self.view.set_directory(words) {
                    return self.fail_all(Broken::Protocol { what: error.to_string() });
                }
                self.fit_cache();
            }
        }
        self.refresh = None;
        self.resume(|op| matches!(op.kind, Kind::Get { state: GetState::Refreshing, .. }));
    }

    /// Starts GETs over that waited for a write to their key, if no other that was submitted before them is left. Those
    /// submitted after them do not count: a client that always has one in flight would never get an answer.
    pub(super) fn resume_behind(&mut self, hash: KeyHash) {
        let writes = self.ops.iter().filter(|(_, op)| op.is_write() && op.hash == hash);
        let first_write = writes.map(|(_, op)| op.ticket).min();
        self.resume(|op| {
            let is_waiting = matches!(op.kind, Kind::Get { state: GetState::BehindWrite, .. });
            is_waiting && op.hash == hash && first_write.is_none_or(|write| op.ticket < write)
        });
    }

    fn resume(&mut self, waits: impl Fn(&crate::op::Op) -> bool) {
        let keys: Vec<usize> = self.ops.iter().filter(|(_, op)| waits(op)).map(|(key, _)| key).collect();
        for key in keys {
            if self.ops.contains(key) {
                self.advance(key, None);
            }
        }
    }
}
