//! Runs a workload on a store: opens a handle per thread, warms up, measures, merges.
//!
//! | file | holds |
//! |---|---|
//! | `worker` | one thread: its phases, its next step, what an operation's end means |
//! | `direct` | operations one after the other |
//! | `batched` | reads gathered into batches |
//! | `pipelined` | several operations in flight |
//! | `raw` | bare READs between GETs |
//! | `judge` | values made and checked |
//! | `patience` | when a thread that only fails gives up |
//! | `tally` | counts and latencies |
//! | `server_cpu` | what the server's process used meanwhile |

mod batched;
mod direct;
mod judge;
mod patience;
mod pipelined;
mod raw;
pub mod server_cpu;
pub mod tally;
#[cfg(test)]
mod tests;
mod worker;

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

pub use judge::Verify;
use server_cpu::CpuTimes;
use tally::Tally;
use worker::Worker;

use crate::clock::Clock;
use crate::oracle::{Oracle, UpdateMode, version_base};
use crate::store::null::NullFactory;
use crate::store::{Factory, Store, StoreError};
use crate::value::Shape;
use crate::workload::WorkloadPlan;
use crate::workload::latest::InsertCounter;

/// How long a phase lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// So many operations of all threads together.
    Operations(u64),
    /// So long.
    Time(Duration),
}

impl Length {
    /// Nothing at all.
    pub const NONE: Self = Self::Operations(0);

    /// The part of one thread: operations are shared out without a rest.
    fn of_thread(self, thread: usize, threads: usize) -> Self {
        match self {
            Self::Time(_) => self,
            Self::Operations(all) => Self::Operations(share(all, thread, threads)),
        }
    }
}

/// What `thread` of `threads` gets of `all`; the parts add up to `all`.
const fn share(all: u64, thread: usize, threads: usize) -> u64 {
    all / threads as u64 + ((thread as u64) < all % threads as u64) as u64
}

/// Everything that a run needs to know besides the store.
#[derive(Debug, Clone)]
pub struct RunPlan {
    /// The operations.
    pub workload: WorkloadPlan,
    /// Threads, each with a handle of its own.
    pub threads: usize,
    /// Operations in flight per thread.
    pub depth: usize,
    /// Reads of one `multi_read`; 1 for none.
    pub batch: usize,
    /// What comes before the measurement.
    pub warmup: Length,
    /// The measurement.
    pub length: Length,
    /// Operations per second of all threads together; nothing for as many as go.
    pub target_ops_per_s: Option<f64>,
    /// What is checked of values read.
    pub verify: Verify,
    /// How values are cut into fields.
    pub shape: Shape,
    /// What an update writes.
    pub update_mode: UpdateMode,
    /// Whether the store fills its index cache before the warm-up.
    pub warm_index: bool,
    /// After how many GETs there is a bare READ of as many bytes, where one operation is in flight; 0 for none.
    pub raw_every: u64,
}

/// What the threads of a run share.
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    plan: &'a RunPlan,
    inserts: InsertCounter,
    oracle: Option<Oracle>,
    base: u64,
    /// Set when one thread has lost its connection or gets no answers, so that the others do not run on for nothing.
    stop: AtomicBool,
    /// Operations done, by thread; each on cache lines of its own.
    done: Box<[Progress]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

impl<'a> Shared<'a> {
    fn new(plan: &'a RunPlan) -> Self {
        // The load phase inserts all records; other runs add to them.
        let stored =
            if plan.workload.mix == crate::workload::mix::Mix::INSERTS { 0 } else { plan.workload.records };
        let base = version_base();
        let oracle =
            (plan.verify == Verify::Oracle).then(|| Oracle::new(base, stored, plan.shape, plan.update_mode));
        Self {
            plan,
            inserts: InsertCounter::new(stored),
            oracle,
            base,
            stop: AtomicBool::new(false),
            done: (0..plan.threads).map(|_| Progress::default()).collect(),
        }
    }

    fn operations_done(&self) -> u64 {
        self.done.iter().map(|thread| thread.0.load(Ordering::Relaxed)).sum()
    }
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// All threads together.
    pub tally: Tally,
    /// From the first operation to the last one's end, on the thread that took longest, in seconds. Making chunks of
    /// the trace is not counted.
    pub seconds: f64,
    /// Processor time of the server meanwhile; nothing if its process is not known.
    pub server_cpu_s: Option<f64>,
    /// Versions of all values written are above this number.
    pub version_base: u64,
}

impl RunResult {
    /// Operations per second, whatever came of them.
    pub fn throughput_ops_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.tally.operations() as f64 / self.seconds } else { 0.0 }
    }
}

/// How far a run is: operations done, and seconds since the measurement began (nothing during the warm-up).
pub type Watch<'a> = &'a mut dyn FnMut(u64, Option<f64>);

/// How often the watcher is told.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// Runs `plan` on the store of `factory`.
///
/// # Errors
/// If a handle cannot be opened. What goes wrong later is in the result.
pub fn run<F: Factory, C: Clock>(
    factory: &F,
    plan: &RunPlan,
    clock: &C,
    watch: Watch<'_>,
) -> Result<RunResult, StoreError> {
    let shared = Shared::new(plan);
    let mut workers = Vec::with_capacity(plan.threads);
    for thread in 0..plan.threads {
        let mut store = factory.open()?;
        if plan.warm_index {
            store.warm_up()?;
        }
        workers.push(Worker::new(&shared, thread, store, clock.clone()));
    }
    let start = Barrier::new(plan.threads + 1);
    let (finished, all_finished) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| {
                let (start, finished) = (&start, finished.clone());
                scope.spawn(move || {
                    // A panic must reach the thread that waits at the barrier, not leave it waiting.
                    let warm_up = panic::catch_unwind(panic::AssertUnwindSafe(|| worker.warm_up()));
                    start.wait();
                    warm_up.unwrap_or_else(|payload| panic::resume_unwind(payload));
                    worker.measure();
                    drop(finished);
                    worker.into_tally()
                })
            })
            .collect();
        drop(finished);
        watch(0, None);
        start.wait();
        let (began, cpu_before) = (Instant::now(), factory.server_pid().and_then(CpuTimes::read));
        while all_finished.recv_timeout(WATCH_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
            watch(shared.operations_done(), Some(began.elapsed().as_secs_f64()));
        }
        let cpu_after = factory.server_pid().and_then(CpuTimes::read);
        let mut tally = Tally::new(plan.target_ops_per_s.is_some());
        for thread in threads {
            tally.merge(thread.join().unwrap_or_else(|payload| panic::resume_unwind(payload)));
        }
        Ok(RunResult {
            seconds: tally.active_ns as f64 / 1e9,
            tally,
            server_cpu_s: cpu_before.zip(cpu_after).and_then(|(before, after)| after.seconds_since(&before)),
            version_base: shared.base,
        })
    })
}

/// Operations on the null store that measure the harness, and the bytes of values that they may make: with large
/// values, fewer are enough.
const NULL_OPERATIONS_MAX: u64 = 400_000;
const NULL_BYTES_MAX: u64 = 1 << 30;

/// What the harness itself needs for an operation of `plan`, in nanoseconds of one thread: the same workload on a
/// store that does nothing, with as many threads, unverified and as fast as it goes.
///
/// # Errors
/// None that the null store could cause.
pub fn null_ns_per_op<C: Clock>(plan: &RunPlan, clock: &C) -> Result<f64, StoreError> {
    let operations =
        (NULL_BYTES_MAX / (plan.shape.value_bytes() as u64).max(1)).clamp(16, NULL_OPERATIONS_MAX);
    let plan = RunPlan {
        warmup: Length::Operations(operations / 4),
        length: Length::Operations(operations),
        target_ops_per_s: None,
        verify: Verify::Length,
        warm_index: false,
        raw_every: 0,
        ..plan.clone()
    };
    let factory = NullFactory { value_bytes: plan.shape.value_bytes() };
    let result = run(&factory, &plan, clock, &mut |_, _| ())?;
    // Threads beyond the number of cores take turns; their waiting is not the harness's cost.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(1e9 / result.throughput_ops_per_s() * plan.threads.min(cores) as f64)
}
