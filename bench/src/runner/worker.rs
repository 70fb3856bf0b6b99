//! One thread of a run.

use std::sync::atomic::Ordering;

use super::judge::{Author, Judge};
use super::patience::Patience;
use super::tally::Tally;
use super::{Length, Shared};
use crate::clock::Clock;
use crate::oracle::UpdateMode;
use crate::store::{Counters, Store, StoreError};
use crate::workload::mix::OpKind;
use crate::workload::trace::{Step, Trace};

/// Everything that one thread needs to run operations.
pub(super) struct Worker<'a, S, C> {
    pub(super) shared: &'a Shared<'a>,
    pub(super) clock: C,
    pub(super) store: S,
    pub(super) trace: Trace,
    pub(super) tally: Tally,
    pub(super) judge: Judge<'a>,
    pub(super) author: Author<'a>,
    /// A value read.
    pub(super) record: Vec<u8>,
    /// A value to be written.
    pub(super) value: Vec<u8>,
    /// Numbers whose insert failed: they are tried again, so that the acknowledged prefix has no gap.
    failed_inserts: Vec<u64>,
    pub(super) gets_since_raw_read: u64,
    thread: usize,
    phase: Phase,
    patience: Patience,
    counters_before: Option<Counters>,
}

/// Where a phase stands. Times are ticks.
#[derive(Debug, Default)]
struct Phase {
    began: u64,
    /// The end of the newest operation or pause.
    now: u64,
    /// Time spent on making the trace, and on bare READs.
    paused: u64,
    operations_left: u64,
    /// Ticks that the phase may take, without pauses.
    ticks_max: Option<u64>,
    issued: u64,
    ticks_per_operation: Option<f64>,
}

impl Phase {
    /// Ticks from the beginning to the end of the newest operation, without pauses.
    #[inline]
    fn active(&self) -> u64 {
        self.now - self.began - self.paused
    }
}

/// When an operation was begun, and when it should have been.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) at: u64,
    pub(super) intended: Option<u64>,
}

impl<'a, S: Store, C: Clock> Worker<'a, S, C> {
    pub(super) fn new(shared: &'a Shared<'a>, thread: usize, store: S, clock: C) -> Self {
        let plan = shared.plan;
        let first = match plan.length {
            Length::Operations(all) => (0..thread).map(|t| super::share(all, t, plan.threads)).sum(),
            Length::Time(_) => 0,
        };
        Self {
            shared,
            clock,
            store,
            trace: Trace::new(&plan.workload, thread, plan.threads, first),
            tally: Tally::new(plan.target_ops_per_s.is_some()),
            judge: Judge::new(shared),
            author: Author::new(shared, thread),
            record: Vec::new(),
            value: Vec::new(),
            failed_inserts: Vec::new(),
            gets_since_raw_read: 0,
            thread,
            phase: Phase::default(),
            patience: Patience::default(),
            counters_before: None,
        }
    }

    /// Runs operations that are not counted; values that are wrong are.
    pub(super) fn warm_up(&mut self) {
        self.run(self.shared.plan.warmup);
        let before =
            std::mem::replace(&mut self.tally, Tally::new(self.shared.plan.target_ops_per_s.is_some()));
        self.tally.verified = before.verified;
        self.tally.wrong = before.wrong;
        self.tally.examples = before.examples;
        self.tally.fatal = before.fatal;
        self.shared.done[self.thread].0.store(0, Ordering::Relaxed);
        self.prepare(self.shared.plan.length);
    }

    /// Runs the operations that are counted.
    pub(super) fn measure(&mut self) {
        self.counters_before = self.store.counters();
        self.run(self.shared.plan.length);
        self.tally.active_ns = self.clock.ns(self.phase.active());
        let before = self.counters_before.take();
        self.tally.counters = self.store.counters().zip(before).map(|(now, before)| now.since(before));
    }

    pub(super) fn into_tally(self) -> Tally {
        self.tally
    }

    fn run(&mut self, length: Length) {
        self.begin_phase(length.of_thread(self.thread, self.shared.plan.threads));
        if self.shared.plan.depth > 1 {
            self.run_pipelined();
        } else if self.shared.plan.batch > 1 {
            self.run_batched();
        } else {
            self.run_direct();
        }
    }

    /// Makes the first chunk of the trace before the clock starts.
    fn prepare(&mut self, length: Length) {
        match length.of_thread(self.thread, self.shared.plan.threads) {
            Length::Operations(0) => {}
            Length::Operations(wanted) => self.trace.refill(wanted, &self.shared.inserts),
            Length::Time(_) => self.trace.refill(u64::MAX, &self.shared.inserts),
        }
    }

    fn begin_phase(&mut self, length: Length) {
        let plan = self.shared.plan;
        let per_thread = |target: f64| self.clock.ticks(1_000_000_000) as f64 * plan.threads as f64 / target;
        let began = self.clock.begin();
        self.phase = Phase {
            began,
            now: began,
            ticks_per_operation: plan.target_ops_per_s.map(per_thread),
            ..Phase::default()
        };
        match length {
            Length::Operations(operations) => self.phase.operations_left = operations,
            Length::Time(time) => {
                self.phase.operations_left = u64::MAX;
                let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
                self.phase.ticks_max = Some(self.clock.ticks(ns));
            }
        }
    }

    /// Whether the phase has no further operation.
    #[inline]
    fn is_over(&self) -> bool {
        let phase = &self.phase;
        phase.operations_left == 0
            || phase.ticks_max.is_some_and(|max| phase.active() >= max)
            || self.tally.fatal.is_some()
            || self.shared.stop.load(Ordering::Relaxed)
    }

    /// The next step and its record's number; nothing when the phase is over, or when the trace has to be made
    /// longer first: see [`Worker::refill`].
    #[inline]
    pub(super) fn next_step(&mut self) -> Option<(Step, u64)> {
        if self.is_over() {
            return None;
        }
        let mut step = self.trace.next_step()?;
        let (inserts, failed) = (&self.shared.inserts, &mut self.failed_inserts);
        let number = self.trace.bind(&mut step, inserts, || failed.pop().unwrap_or_else(|| inserts.take()));
        self.phase.operations_left -= 1;
        Some((step, number))
    }

    /// Makes the next chunk of the trace, with the clock stopped; `false` when the phase is over. No operation may
    /// be in flight whose key is still needed.
    pub(super) fn refill(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        let before = self.clock.end();
        self.trace.refill(self.phase.operations_left, &self.shared.inserts);
        let after = self.clock.end();
        self.pause(before, after);
        true
    }

    /// Takes what happened from `begin` to `end` out of the run's time.
    #[inline]
    pub(super) fn pause(&mut self, begin: u64, end: u64) {
        self.phase.paused += end.saturating_sub(begin);
        self.phase.now = self.phase.now.max(end);
    }

    /// When the next operation should start, with a target rate.
    #[inline]
    pub(super) fn next_intended(&self) -> Option<u64> {
        let per_operation = self.phase.ticks_per_operation?;
        Some(self.phase.began + self.phase.paused + (self.phase.issued as f64 * per_operation) as u64)
    }

    /// Waits for the moment at which the next operation should start, if there is a target rate, and takes it.
    #[inline]
    pub(super) fn pace(&mut self) -> Option<u64> {
        let intended = self.next_intended()?;
        self.clock.wait_until(intended);
        self.phase.issued += 1;
        Some(intended)
    }

    /// The stamp of a write of record `number`, waiting for a write of the same key by another thread.
    pub(super) fn begin_write(&mut self, number: u64) -> crate::value::Stamp {
        loop {
            // The other thread's write ends by the store's own deadline.
            match self.author.begin(number) {
                Some(stamp) => return stamp,
                None => std::thread::yield_now(),
            }
        }
    }

    /// Whether an operation of `kind` has to read the record before it can write.
    #[inline]
    pub(super) fn reads_first(&self, kind: OpKind) -> bool {
        let plan = self.shared.plan;
        kind == OpKind::Rmw
            || (kind == OpKind::Update && plan.update_mode == UpdateMode::Field && plan.shape.fields > 1)
    }

    /// Whether what a read-modify-write writes is one field of what it read.
    pub(super) fn patches(&self) -> bool {
        self.shared.plan.update_mode == UpdateMode::Field
    }

    /// Counts an operation that has ended at `end`: `Ok(true)` if it did what it should, `Ok(false)` if the key was
    /// not there.
    #[inline]
    pub(super) fn conclude(
        &mut self,
        kind: OpKind,
        number: u64,
        begun: Begun,
        end: u64,
        outcome: Result<bool, StoreError>,
    ) {
        self.phase.now = self.phase.now.max(end);
        let stored = outcome == Ok(true);
        let counts = self.tally.kind_mut(kind);
        match outcome {
            Ok(true) => {
                counts.service.record(self.clock.ns(end.saturating_sub(begun.at)));
                if let (Some(latencies), Some(intended)) = (&mut counts.intended, begun.intended) {
                    latencies.record(self.clock.ns(end.saturating_sub(intended)));
                }
                self.patience.succeeded(kind);
            }
            Ok(false) => {
                counts.not_found += 1;
                self.patience.succeeded(kind);
                self.tally.example(|| format!("record {number} is not there"));
            }
            Err(error) => {
                counts.errors += 1;
                self.note(kind, (begun.at, end), &error);
            }
        }
        if kind == OpKind::Insert {
            self.settle_insert(number, stored);
        }
        let done = &self.shared.done[self.thread].0;
        done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Decides whether an error ends the thread.
    #[cold]
    fn note(&mut self, kind: OpKind, ticks: (u64, u64), error: &StoreError) {
        self.tally.example(|| error.to_string());
        if let Some(fatal) = self.patience.failed(kind, ticks, error, &self.clock) {
            let gone = matches!(fatal, StoreError::NoConnection(_)) || fatal.is_unanswered();
            self.shared.stop.fetch_or(gone, Ordering::Relaxed);
            self.tally.fatal.get_or_insert(fatal);
        }
    }

    /// An insert that succeeded may be read from now on; one that failed is tried again later.
    fn settle_insert(&mut self, number: u64, stored: bool) {
        if !stored {
            self.failed_inserts.push(number);
        } else if let Err(full) = self.shared.inserts.acknowledge(number) {
            self.tally.fatal.get_or_insert(StoreError::Failed(full.to_string()));
        }
    }
}
