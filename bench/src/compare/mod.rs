//! The store against its peer and its floor, in one process and one run, so that a ratio means something on a machine
//! whose speed changes from minute to minute.
//!
//! | file | holds |
//! |---|---|
//! | `rounds` | the contenders taking turns |
//! | `puts` | PUT round trips beside the floor under them |
//! | `ping_pong` | that floor |

pub mod ping_pong;
pub mod puts;
pub mod rounds;

use std::sync::Barrier;

use rounds::{CONTENDERS, Contest, Handles, Seen, run_thread, throughputs};

use crate::clock::Clock;
use crate::report::json::PutsJson;
use crate::runner::server_cpu::CpuTimes;
use crate::runner::tally::Latencies;
use crate::store::{Counters, Factory, Store, StoreError};
use crate::value::{Shape, check_value, key_hash};
use crate::workload::WorkloadPlan;
use crate::workload::latest::InsertCounter;
use crate::workload::trace::Trace;

/// Everything that a comparison needs to know besides the contenders.
#[derive(Debug, Clone)]
pub struct ComparePlan {
    /// The keys; reads only.
    pub workload: WorkloadPlan,
    /// One value.
    pub shape: Shape,
    /// Rounds, slices, threads.
    pub contest: Contest,
    /// PUTs in each round after the reads; 0 for none.
    pub puts: usize,
}

/// What one contender came to.
#[derive(Debug)]
pub struct Contender {
    /// `store`, `dashmap`, `floor`.
    pub name: &'static str,
    /// Of the free slices in every round, in operations per second.
    pub throughputs: Vec<f64>,
    /// The same of the serial slices.
    pub serial_throughputs: Vec<f64>,
    /// Of sampled reads (batches, with batches) of the serial slices.
    pub latencies: Latencies,
    /// Reads, timed or not.
    pub reads: u64,
    /// Keys that were not there.
    pub not_found: u64,
    /// Wrong values.
    pub wrong: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The first failure in words.
    pub error: Option<String>,
    /// What it counted.
    pub counters: Option<Counters>,
}

impl Contender {
    /// Median over the rounds, in operations per second.
    pub fn throughput(&self) -> f64 {
        median(self.throughputs.clone()).unwrap_or(0.0)
    }

    /// The same of the serial slices.
    pub fn serial_throughput(&self) -> f64 {
        median(self.serial_throughputs.clone()).unwrap_or(0.0)
    }

    /// Its throughput divided by `other`'s, round by round.
    pub fn ratios(&self, other: &Self) -> Vec<f64> {
        divide(&self.throughputs, &other.throughputs)
    }

    /// The same of the serial slices.
    pub fn serial_ratios(&self, other: &Self) -> Vec<f64> {
        divide(&self.serial_throughputs, &other.serial_throughputs)
    }
}

fn divide(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

/// What a comparison came to.
#[derive(Debug)]
pub struct CompareResult {
    /// The store first.
    pub contenders: [Contender; CONTENDERS],
    /// With PUTs.
    pub puts: Option<PutsJson>,
    /// Values of the store that were checked byte by byte before the rounds and were right.
    pub verified: u64,
    /// Processor time of the server during the rounds of reads.
    pub server_cpu_s: Option<f64>,
}

/// The middle value, or the mean of the two in the middle; nothing of nothing.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

/// Values of the store that are checked before the rounds.
const CHECKED_MAX: u64 = 20_000;

/// Runs the comparison on three stores that hold the records of `plan`. `told` hears what happens next.
///
/// # Errors
/// If a handle cannot be opened, or a PUT fails. What goes wrong with reads is in the result.
pub fn compare<A: Factory, B: Factory, F: Factory, K: Clock>(
    (store, peer, floor): (&A, (&'static str, &B), &F),
    plan: &ComparePlan,
    clock: &K,
    told: &mut dyn FnMut(&str),
) -> Result<CompareResult, StoreError> {
    let contest = &plan.contest;
    let mut handles = Vec::new();
    for _ in 0..contest.threads {
        let mut ours = store.open()?;
        ours.warm_up()?;
        handles.push(Handles(ours, peer.1.open()?, floor.open()?));
    }
    told("checking values");
    let (verified, wrong) = check(&mut handles[0].0, plan)?;
    told(&format!("{} rounds of {} reads of each", contest.rounds, 2 * contest.slice * contest.threads));
    let cpu_before = store.server_pid().and_then(CpuTimes::read);
    let together = Barrier::new(contest.threads);
    let seen: Vec<[Seen; CONTENDERS]> = std::thread::scope(|scope| {
        let run = |(thread, handles)| {
            let (together, workload) = (&together, &plan.workload);
            scope.spawn(move || run_thread(contest, workload, thread, handles, clock, together))
        };
        let threads: Vec<_> = handles.into_iter().enumerate().map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let cpu_after = store.server_pid().and_then(CpuTimes::read);
    let names = ["store", peer.0, "floor"];
    let mut contenders = std::array::from_fn(|who| {
        let of_threads: Vec<&Seen> = seen.iter().map(|thread| &thread[who]).collect();
        merge(names[who], contest, &of_threads, clock)
    });
    contenders[0].wrong += wrong;
    let mut puts = None;
    if plan.puts > 0 {
        told(&format!("{} rounds of {} PUTs and of ping-pong", contest.rounds, plan.puts));
        let base = crate::oracle::version_base();
        let rounds = (contest.rounds, plan.puts);
        puts = Some(puts::measure(&mut store.open()?, &plan.workload, plan.shape, rounds, base, clock)?);
    }
    let server_cpu_s = cpu_before.zip(cpu_after).and_then(|(before, after)| after.seconds_since(&before));
    Ok(CompareResult { contenders, puts, verified, server_cpu_s })
}

/// Reads a sample of the store's values and checks every byte. Returns how many were right, and how many wrong or
/// missing.
fn check<S: Store>(store: &mut S, plan: &ComparePlan) -> Result<(u64, u64), StoreError> {
    let inserts = InsertCounter::new(plan.workload.records);
    let mut trace = Trace::new(&plan.workload, plan.contest.threads, 1, 0);
    let sample = CHECKED_MAX.min(plan.workload.records);
    trace.refill(sample, &inserts);
    let (mut value, mut versions) = (Vec::new(), Vec::new());
    let mut right = 0;
    for at in 0..trace.len() {
        let key = trace.key_at(at);
        if store.read(key, &mut value)?
            && check_value(&value, plan.shape, key_hash(key), &mut versions).is_ok()
        {
            right += 1;
        }
    }
    Ok((right, trace.len() as u64 - right))
}

fn merge<K: Clock>(name: &'static str, contest: &Contest, of_threads: &[&Seen], clock: &K) -> Contender {
    let mut latencies = Latencies::default();
    let mut counters: Option<Counters> = None;
    for seen in of_threads {
        latencies.merge(&seen.latencies);
        counters = match (counters, seen.counters) {
            (Some(mine), Some(theirs)) => Some(mine.plus(theirs)),
            (mine, theirs) => mine.or(theirs),
        };
    }
    let sum = |of: fn(&Seen) -> u64| of_threads.iter().map(|seen| of(seen)).sum();
    Contender {
        name,
        throughputs: throughputs(contest, of_threads, clock, false),
        serial_throughputs: throughputs(contest, of_threads, clock, true),
        latencies,
        reads: sum(|seen| seen.reads),
        not_found: sum(|seen| seen.not_found),
        wrong: sum(|seen| seen.wrong),
        errors: sum(|seen| seen.errors),
        error: of_threads.iter().find_map(|seen| seen.error.clone()),
        counters,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
