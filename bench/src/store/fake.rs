//! Stores with a known behaviour on a fake clock, for tests of the harness itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::deferred::{Deferred, batch_one_by_one, pipelined_by_deferring};
use super::{Counters, Factory, Store, StoreError};
use crate::clock::{Clock, FakeClock};

/// What a fake does besides storing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Behaviour {
    /// What an operation takes.
    pub service_ns: u64,
    /// The first operation that starts at this time or later takes `stall_ns` more.
    pub stall_at_ns: Option<u64>,
    /// How long the stall is.
    pub stall_ns: u64,
    /// Every so many reads, one misses; 0 for never.
    pub miss_every: u64,
    /// Every so many reads, one returns the value that the key had before; 0 for never.
    pub stale_every: u64,
    /// Every so many reads, the last byte is another; 0 for never.
    pub corrupt_every: u64,
    /// Every so many writes, one fails with an unknown outcome; 0 for never.
    pub fail_every: u64,
    /// Operations after which the connection is gone; 0 for never.
    pub dies_after: u64,
    /// From when on operations fail, and how.
    pub outage: Option<Outage>,
}

/// A time from which on nothing succeeds any more.
#[derive(Debug, Clone, Copy)]
pub struct Outage {
    /// Operations of a handle that are served before.
    pub after: u64,
    /// Whether reads fail too: those of shared memory need no server.
    pub of_reads: bool,
    /// Whether operations are refused; otherwise there is no answer to them.
    pub refuses: bool,
    /// What a failing operation takes.
    pub takes_ns: u64,
}

/// The newest and the one before it.
type Versions = (Vec<u8>, Option<Vec<u8>>);

/// Opens handles of one fake.
#[derive(Debug, Clone, Default)]
pub struct FakeFactory {
    clock: FakeClock,
    behaviour: Behaviour,
    map: Arc<Mutex<HashMap<Vec<u8>, Versions>>>,
}

impl FakeFactory {
    /// An empty store that takes its time from `clock`.
    pub fn new(clock: FakeClock, behaviour: Behaviour) -> Self {
        Self { clock, behaviour, map: Arc::default() }
    }

    /// The same records with another behaviour.
    pub fn with(&self, behaviour: Behaviour) -> Self {
        Self { behaviour, ..self.clone() }
    }

    /// How many keys are stored.
    pub fn keys(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Vec<u8>, Versions>> {
        self.map.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A handle of the fake.
#[derive(Debug)]
pub struct FakeStore {
    fake: FakeFactory,
    stalled: bool,
    operations: u64,
    reads: u64,
    writes: u64,
    scratch: Vec<u8>,
    deferred: Deferred,
}

impl Factory for FakeFactory {
    type Handle = FakeStore;

    fn open(&self) -> Result<FakeStore, StoreError> {
        Ok(FakeStore {
            fake: self.clone(),
            stalled: false,
            operations: 0,
            reads: 0,
            writes: 0,
            scratch: Vec::new(),
            deferred: Deferred::default(),
        })
    }

    fn transport(&self) -> String {
        "fake".into()
    }
}

const fn is_turn(count: u64, every: u64) -> bool {
    every != 0 && count.is_multiple_of(every)
}

impl FakeStore {
    fn serve(&mut self, is_read: bool) -> Result<(), StoreError> {
        let Behaviour { service_ns, stall_at_ns, stall_ns, dies_after, outage, .. } = self.fake.behaviour;
        self.operations += 1;
        if dies_after != 0 && self.operations > dies_after {
            return Err(StoreError::NoConnection("the fake server is gone".into()));
        }
        if let Some(outage) = outage
            && self.operations > outage.after
            && (outage.of_reads || !is_read)
        {
            self.fake.clock.advance(outage.takes_ns);
            return Err(match (outage.refuses, is_read) {
                (true, _) => StoreError::Refused("the fake server is full".into()),
                (false, true) => StoreError::NoAnswer("the fake server does not answer".into()),
                (false, false) => StoreError::Unknown("the fake server does not answer".into()),
            });
        }
        if !self.stalled && stall_at_ns.is_some_and(|at| self.fake.clock.begin() >= at) {
            self.stalled = true;
            self.fake.clock.advance(stall_ns);
        }
        self.fake.clock.advance(service_ns);
        Ok(())
    }
}

impl Store for FakeStore {
    fn read(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, StoreError> {
        self.serve(true)?;
        self.reads += 1;
        let behaviour = self.fake.behaviour;
        let map = self.fake.lock();
        let Some((newest, before)) = map.get(key) else { return Ok(false) };
        if is_turn(self.reads, behaviour.miss_every) {
            return Ok(false);
        }
        let found = match before {
            Some(before) if is_turn(self.reads, behaviour.stale_every) => before,
            _ => newest,
        };
        value.clear();
        value.extend_from_slice(found);
        if is_turn(self.reads, behaviour.corrupt_every)
            && let Some(last) = value.last_mut()
        {
            *last ^= 1;
        }
        Ok(true)
    }

    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.serve(false)?;
        self.writes += 1;
        if is_turn(self.writes, self.fake.behaviour.fail_every) {
            return Err(StoreError::Unknown("the fake server did not answer".into()));
        }
        let mut map = self.fake.lock();
        let before = map.get(key).map(|(newest, _)| newest.clone());
        map.insert(key.to_vec(), (value.to_vec(), before));
        Ok(())
    }

    /// Takes 5 ns for a byte.
    fn raw_read(&mut self, bytes: u64) -> Result<bool, StoreError> {
        self.fake.clock.advance(5 * bytes);
        Ok(true)
    }

    /// Each read is one READ of 100 bytes.
    fn counters(&self) -> Option<Counters> {
        Some(Counters { reads: self.reads, read_bytes: 100 * self.reads, ..Counters::default() })
    }

    batch_one_by_one!();
    pipelined_by_deferring!();
}
