//! Writes that find no room, and wait for some.
//!
//! A write waits for free segments, whoever uses them; the keeper of the space answers all that have asked so far (see `space`).
//! In a server that evicts a large value waits for a run of its own, which the keeper makes (see `clear`).

use std::sync::atomic::Ordering;

use kv_common::layout::{Counter, PAGE_BYTES};
use kv_common::limits::LEASE_NS;
use kv_common::wire::Refusal;

use super::Worker;
use super::space::Space;

/// A write that finds no room waits so long at most: for two times LEASE, and the work.
const WAIT_MAX_NS: u64 = 4 * LEASE_NS;
/// A value waits so long before segments are emptied for it: what has gone for others may be on its way back.
const PATIENCE_NS: u64 = 20_000_000;

/// A write that has found no room, and waits for some. None yet: `Waiting::default()`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waiting(Option<Asked>);

#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    until_ns: u64,
}

/// A large value that waits for a run.
pub(super) struct Want {
    number: u64,
    pages: u64,
    /// Segments may be emptied for it from then on.
    due_ns: u64,
    until_ns: u64,
    /// The region has no stretch that is so long.
    is_hopeless: bool,
}

impl Space {
    /// What was asked for first of what is due. None after it is over.
    pub(super) fn due_want(&self, now_ns: u64) -> Option<(u64, u64)> {
        let mut wants = self.wants.lock();
        wants.retain(|want| want.until_ns > now_ns);
        let due = wants.iter().filter(|want| want.due_ns <= now_ns && !want.is_hopeless);
        let due = due.min_by_key(|want| want.number)?;
        Some((due.number, due.pages))
    }

    /// How long until some want is due.
    pub(super) fn until_want_ns(&self, now_ns: u64) -> Option<u64> {
        let wants = self.wants.lock();
        let hopeful = wants.iter().filter(|want| !want.is_hopeless);
        hopeful.map(|want| want.due_ns.saturating_sub(now_ns)).min()
    }

    /// It has what it wanted, or it is tried again first.
    pub(super) fn forget_want(&self, number: u64) {
        self.wants.lock().retain(|want| want.number != number);
    }

    /// It is due later.
    pub(super) fn put_off(&self, number: u64, now_ns: u64) {
        if let Some(want) = self.wants.lock().iter_mut().find(|want| want.number == number) {
            want.due_ns = now_ns + PATIENCE_NS;
        }
    }

    pub(super) fn note_hopeless(&self, number: u64) {
        if let Some(want) = self.wants.lock().iter_mut().find(|want| want.number == number) {
            want.is_hopeless = true;
        }
    }
}

impl Worker {
    /// Whether a write that was refused should be tried again later, since it has found no room and there may be some.
    pub(crate) fn is_worth_waiting(&self, refusal: Refusal, waiting: &mut Waiting) -> bool {
        let wants_run = match refusal {
            Refusal::NoRun { run_bytes, .. } if self.table.evicts() => {
                return self.waits_for_run(run_bytes / PAGE_BYTES, waiting);
            }
            Refusal::NoRun { .. } => true,
            Refusal::RegionFull { .. } | Refusal::IndexFull { .. } => false,
            _ => return false,
        };
        let (space, now_ns) = (&self.table.space, self.table.monotonic_ns());
        let is_new = waiting.0.is_none();
        let asked = self.ask(waiting, now_ns);
        if is_new {
            space.signal.set();
            return true;
        }
        // Segments that are free by now may not be those that make a run, and others are not made free for it.
        let is_served = wants_run && space.served.load(Ordering::Relaxed) >= asked.number;
        now_ns < asked.until_ns && !is_served && space.refused.load(Ordering::Relaxed) < asked.number
    }

    /// Whether a large value should be tried again later that found no run of so many pages in a server that evicts.
    fn waits_for_run(&self, pages: u64, waiting: &mut Waiting) -> bool {
        let (space, now_ns) = (&self.table.space, self.table.monotonic_ns());
        let Asked { number, until_ns } = self.ask(waiting, now_ns);
        let mut wants = space.wants.lock();
        let noted = wants.iter().position(|want| want.number == number);
        if now_ns >= until_ns || noted.is_some_and(|at| wants[at].is_hopeless) {
            noted.map(|at| wants.remove(at));
            return false;
        }
        if noted.is_none() {
            wants.push(Want { number, pages, due_ns: now_ns + PATIENCE_NS, until_ns, is_hopeless: false });
            drop(wants);
            space.signal.set();
        }
        true
    }

    /// What is kept of a write that waits, from its first time on.
    fn ask(&self, waiting: &mut Waiting, now_ns: u64) -> Asked {
        *waiting.0.get_or_insert_with(|| {
            self.counters.add(Counter::WritesWaited, 1);
            let number = self.table.space.asked.fetch_add(1, Ordering::Relaxed) + 1;
            Asked { number, until_ns: now_ns + WAIT_MAX_NS }
        })
    }

    /// A write that may have waited is carried out or refused, or its session is over.
    pub(crate) fn end_wait(&self, waiting: &Waiting) {
        if let Some(Asked { number, .. }) = waiting.0 {
            self.table.space.forget_want(number);
        }
    }
}
