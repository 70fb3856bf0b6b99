//! What the threads that keep the table in order have in common: how they are called, and what they wait for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What is waited for by the server's clock because clients count it by theirs takes longer by one part in so many, for clocks
/// that drift.
const DRIFT_PART: u64 = 8;

/// A clock that goes forward, in ns.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
pub(super) fn monotonic_clock() -> Clock {
    let began = Instant::now();
    Arc::new(move || began.elapsed().as_nanos() as u64)
}

/// How long to wait by one clock so that a time has passed by any other.
pub(super) fn by_any_clock(ns: u64) -> u64 {
    ns + ns / DRIFT_PART
}

/// What can be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upkeep {
    /// Go on.
    Busy,
    /// Nothing for so long.
    WaitNs(u64),
    /// Nothing until the signal is set.
    Idle,
}

/// Wakes who does it.
#[derive(Default)]
pub struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Ends a wait, this one or the next.
    pub fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_one();
    }

    /// Waits until it is set, at most for `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            match timeout {
                Some(timeout) => drop(self.changed.wait_for(&mut is_set, timeout)),
                None => self.changed.wait(&mut is_set),
            }
        }
        *is_set = false;
    }
}
