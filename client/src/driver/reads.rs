//! GETs and whatever else READs the region.

use kv_common::block::{Verdict, judge};
use kv_common::hash::KeyHash;
use kv_common::layout::{LINE_WORDS, Slot, superblock};
use kv_common::probe::TableView;
use kv_common::region::bytes_of;
use kv_common::transport::{Broken, ReadNow, Transport};

use super::Driver;
use super::blocking::Blocking;
use crate::error::Error;
use crate::get::{Action, Context, Get};
use crate::op::{GetState, Kind, Outcome, SendState, Value, Version};

/// Tokens of READs that belong to no operation.
const REFRESH_TOKEN: u64 = u64::MAX;
pub(super) const BLOCKING_TOKEN: u64 = u64::MAX - 1;

/// Words of a block that are fetched ahead: the processor follows a longer copy by itself.
const PREFETCH_WORDS_MAX: usize = 256;

/// Words of the guard line: owner, place epoch, directory depth, LEASE.
const GUARD_WORDS: usize = 8;

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

/// How a GET that was tried at once ended.
pub(crate) enum GetNow {
    /// The value is at this place in the scratch words.
    Found { version: Version, value: std::ops::Range<usize> },
    /// Proved absent.
    Absent,
    /// Reading does not settle it: ask the server.
    Ask,
    /// It takes more than READs that are loads: submit it.
    Submit,
}

impl<T: Transport> Driver<T> {
    /// A GET over a transport whose READs are loads: no operation, no queue, no copy of the key.
    ///
    /// Nearly all of them are the first half: one block, named by the index cache, valid. Whatever else it is, the
    /// machine takes over with the same words.
    #[inline]
    pub(crate) fn get_now(&mut self, key: &[u8]) -> Result<GetNow, Error> {
        let hash = self.view.hash(key);
        let slot = self.cache.first_in_window(self.view.home(hash), hash);
        self.get_at(key, hash, slot, self.cache.place_epoch())
    }

    /// The same, of a key whose hash is known, and the slot that the index cache had for it under `place_epoch`.
    #[inline]
    pub(crate) fn get_at(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        slot: Option<Slot>,
        place_epoch: u64,
    ) -> Result<GetNow, Error> {
        if !self.transport.reads_are_loads() || self.broken.is_some() || self.is_behind_write(hash) {
            return Ok(GetNow::Submit);
        }
        // Whatever is read from here on is at least as new as what the slot was learned under.
        let Some((slot, len_words)) = slot.and_then(|slot| Some((slot, self.view.block_words(slot)?))) else {
            let mut get = Get::new(hash);
            let action = self.step(&mut get, None, self.cache.place_epoch());
            return self.run_now(key, get, action);
        };
        self.stats.index_cache_lookups += 1;
        self.stats.reads += 1;
        self.stats.read_bytes += len_words as u64 * 8;
        if len_words > LINE_WORDS * 4 {
            // The copy's loads fill the processor's window after some lines; this asks for all lines at once.
            self.transport.prefetch(slot.place().word(), len_words.min(PREFETCH_WORDS_MAX));
        }
        let Some(epoch_now) = self.read_into_scratch(slot.place().word(), len_words)? else {
            return Ok(GetNow::Submit);
        };
        let verdict = judge(&self.scratch[..len_words], key, slot.place(), self.view.table_id);
        if let Verdict::Found { version, value } = verdict
            && epoch_now == place_epoch
        {
            self.stats.index_cache_hits += 1;
            self.count_get(Some(true));
            return Ok(GetNow::Found { version, value });
        }
        let home = self.view.home(hash);
        let mut get = Get::at_cached_block(hash, home, slot, self.cache.find(home, hash), place_epoch);
        let action = self.step(&mut get, Some((key, len_words)), epoch_now);
        self.run_now(key, get, action)
    }

    /// Runs the machine to its end where every READ is served at once.
    #[cold]
    fn run_now(&mut self, key: &[u8], mut get: Get, mut action: Action) -> Result<GetNow, Error> {
        loop {
            match action {
                Action::Read { at_word, len_words } => {
                    let Some(epoch_now) = self.read_into_scratch(at_word, len_words)? else {
                        return Ok(GetNow::Submit);
                    };
                    action = self.step(&mut get, Some((key, len_words)), epoch_now);
                }
                Action::Found { version, value } => {
                    self.count_get(Some(true));
                    return Ok(GetNow::Found { version, value });
                }
                Action::Absent => {
                    self.count_get(Some(false));
                    return Ok(GetNow::Absent);
                }
                Action::Ask => return Ok(GetNow::Ask),
                // The submitted GET starts over; this is rare.
                Action::RefreshDirectory => return Ok(GetNow::Submit),
            }
        }
    }

    /// Reads words into the scratch and then the place epoch; `None` if this transport's READs take time.
    #[inline]
    fn read_into_scratch(&mut self, at_word: usize, len_words: usize) -> Result<Option<u64>, Error> {
        if self.scratch.len() < len_words {
            self.scratch.resize(len_words, 0);
        }
        match self.transport.read_now(at_word, &mut self.scratch[..len_words]) {
            Ok(ReadNow::Done) => {}
            Ok(ReadNow::Post) => return Ok(None),
            Err(broken) => return Err(self.broke(broken)),
        }
        self.transport.guard_now().map_err(|broken| self.broke(broken))
    }

    /// The bytes that `get_now` found.
    #[inline]
    pub(crate) fn found_bytes(&self, value: std::ops::Range<usize>) -> &[u8] {
        &bytes_of(&self.scratch)[value]
    }

    /// The hash of a key; fetches into the processor's cache what a GET of it looks at first.
    #[inline]
    pub(crate) fn prefetch_lines(&self, key: &[u8]) -> KeyHash {
        let hash = self.view.hash(key);
        self.cache.prefetch(self.view.home(hash));
        hash
    }

    /// The slot that the index cache has for a hash; fetches the start of its block.
    #[inline]
    pub(crate) fn prefetch_block(&self, hash: KeyHash) -> Option<Slot> {
        let slot = self.cache.first_in_window(self.view.home(hash), hash)?;
        let len_words = self.view.block_words(slot)?;
        self.transport.prefetch(slot.place().word(), len_words.min(PREFETCH_WORDS_MAX));
        Some(slot)
    }

    #[cold]
    pub(super) fn broke(&mut self, broken: Broken) -> Error {
        self.fail_all(broken.clone());
        Error::Broken(broken)
    }

    /// One step of a GET whose words, if any, are in the scratch.
    fn step(&mut self, get: &mut Get, words: Option<(&[u8], usize)>, place_epoch: u64) -> Action {
        let transport = &self.transport;
        let now_ns = || transport.now_ns();
        let (view, cache, stats) = (&self.view, &mut self.cache, &mut self.stats);
        let mut cx = Context { view, cache, stats, place_epoch, now_ns: &now_ns };
        match words {
            None => get.start(&mut cx),
            Some((key, len_words)) => get.words(key, &self.scratch[..len_words], &mut cx),
        }
    }

    /// Starts a submitted GET, or starts it over.
    pub(super) fn start_get(&mut self, key: usize) {
        self.advance(key, None);
    }

    /// Gives a submitted GET the words of its READ and does what it wants next.
    fn advance(&mut self, key: usize, mut buffer: Option<Vec<u64>>) {
        loop {
            let place_epoch = match self.place_epoch() {
                Ok(Some(epoch)) => epoch,
                Ok(None) => {
                    self.stats.leases_expired += u64::from(buffer.is_some());
                    self.spare_buffers.extend(buffer);
                    return self.refresh_for(key, false);
                }
                Err(_) => return,
            };
            let action = self.step_op(key, buffer.as_deref(), place_epoch);
            match action {
                Action::Read { at_word, len_words } => {
                    let mut words = buffer.take().or_else(|| self.spare_buffers.pop()).unwrap_or_default();
                    words.resize(len_words, 0);
                    match self.transport.read_now(at_word, &mut words) {
                        Ok(ReadNow::Done) => buffer = Some(words),
                        Ok(ReadNow::Post) => return self.post_read(key, at_word, words),
                        Err(broken) => return self.fail_all(broken),
                    }
                }
                Action::Found { version, value } => {
                    let words = buffer.as_deref().expect("a value is found in words");
                    let bytes = bytes_of(words)[value].to_vec();
                    self.end(key, Outcome::Get(Ok(Some(Value { bytes, version }))));
                    break;
                }
                Action::Absent => {
                    self.end(key, Outcome::Get(Ok(None)));
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
        self.spare_buffers.extend(buffer);
    }

    /// Has the server answer a GET: the answer of last resort.
    pub(super) fn ask(&mut self, key: usize) {
        self.stats.asked_server += 1;
        self.set_get_state(key, GetState::Asked { state: SendState::Queued, value: Vec::new() });
        self.unsent.push_back(key);
        self.send_queued();
    }

    fn step_op(&mut self, key: usize, words: Option<&[u64]>, place_epoch: u64) -> Action {
        let transport = &self.transport;
        let now_ns = || transport.now_ns();
        let (view, cache, stats) = (&self.view, &mut self.cache, &mut self.stats);
        let mut cx = Context { view, cache, stats, place_epoch, now_ns: &now_ns };
        let op = &mut self.ops[key];
        let Kind::Get { get, .. } = &mut op.kind else { unreachable!("only GETs read") };
        match words {
            None => get.start(&mut cx),
            Some(words) => get.words(&op.key, words, &mut cx),
        }
    }

    fn post_read(&mut self, key: usize, at_word: usize, words: Vec<u64>) {
        if self.reads_in_flight >= self.transport.reads_in_flight_max() {
            let len_words = words.len();
            self.spare_buffers.push(words);
            self.set_get_state(key, GetState::ReadQueued { at_word, len_words });
            return self.reads_queued.push_back(key);
        }
        self.set_get_state(key, GetState::Reading);
        self.reads_in_flight += 1;
        self.transport.post_read(self.token(key), at_word, words);
    }

    pub(super) fn post_queued_reads(&mut self) {
        while self.reads_in_flight < self.transport.reads_in_flight_max() {
            let Some(key) = self.reads_queued.pop_front() else { return };
            let Kind::Get { state: GetState::ReadQueued { at_word, len_words }, .. } = self.ops[key].kind
            else {
                unreachable!("queued for a READ")
            };
            let mut words = self.spare_buffers.pop().unwrap_or_default();
            words.resize(len_words, 0);
            self.post_read(key, at_word, words);
        }
    }

    /// An operation's READ: its slab key, and enough of its ticket to tell it from a later one with the same key.
    fn token(&self, key: usize) -> u64 {
        key as u64 | self.ops[key].ticket.0 << 32 & u64::MAX >> 1
    }

    pub(super) fn on_read(&mut self, token: u64, buffer: Vec<u64>, result: Result<(), Broken>) {
        match token {
            REFRESH_TOKEN => return self.on_refresh(buffer, result),
            BLOCKING_TOKEN => return self.blocking = Blocking::Done(result.map(|()| buffer)),
            _ => self.reads_in_flight -= 1,
        }
        if let Err(broken) = result {
            return self.fail_all(broken);
        }
        let key = token as u32 as usize;
        if self.ops.contains(key) && self.token(key) == token {
            self.advance(key, Some(buffer));
        } else {
            self.spare_buffers.push(buffer);
        }
    }

    /// The place epoch for a step: a load where READs are loads, else the lease if it is fresh.
    fn place_epoch(&mut self) -> Result<Option<u64>, Error> {
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
            Ok(ReadNow::Done) => self.on_refresh(words, Ok(())),
            Ok(ReadNow::Post) => self.transport.post_read(REFRESH_TOKEN, at_word, words),
            Err(broken) => self.fail_all(broken),
        }
    }

    fn on_refresh(&mut self, words: Vec<u64>, result: Result<(), Broken>) {
        if let Err(broken) = result {
            return self.fail_all(broken);
        }
        let Some(refresh) = &mut self.refresh else { return };
        match refresh.phase {
            RefreshPhase::Guard { posted_ns } => {
                self.lease = Some((words[superblock::PLACE_EPOCH - superblock::OWNER], posted_ns));
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
                if let Err(error) = self.view.set_directory(&words) {
                    return self.fail_all(Broken::Protocol { what: error.to_string() });
                }
                self.cache.fit(self.view.index_lines());
                self.stats.index_cache_bytes = self.cache.bytes();
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
