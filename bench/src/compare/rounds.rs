//! Contenders that take turns on the same keys: in every round each reads the same slice of the trace, and the order
//! rotates, so that whatever the machine does meanwhile hits all of them alike.
//!
//! Each turn has two slices. In the free one the reads just follow each other, as in most benchmarks of maps; the
//! processor then overlaps reads of short code by itself, so it is not quite a depth of one. In the serial one every
//! read needs the value of the one before, as it is when a caller decides by a value what to read next.

use std::ops::Range;
use std::sync::Barrier;

use crate::clock::Clock;
use crate::runner::tally::Latencies;
use crate::store::{Counters, Store};
use crate::workload::WorkloadPlan;
use crate::workload::latest::InsertCounter;
use crate::workload::trace::{TOUCHED_STEPS, Trace};

/// Contenders: the store, the peer, the floor.
pub const CONTENDERS: usize = 3;
/// Every so many operations, one is timed by itself.
const SAMPLE_EVERY: usize = 16;

/// How the contest goes.
#[derive(Debug, Clone, Copy)]
pub struct Contest {
    /// Rounds, at least seven for a median that means something.
    pub rounds: usize,
    /// Reads of a free slice, and of a serial one, of each contender in each round, per thread.
    pub slice: usize,
    /// Keys of one batch; 1 for single reads.
    pub batch: usize,
    /// Threads, each with a handle of each contender.
    pub threads: usize,
    /// Bytes that every value has.
    pub value_bytes: usize,
}

impl Contest {
    /// Untimed reads before a slice: the contender before has left its own lines in the caches.
    fn unmeasured(&self) -> usize {
        self.slice / 8
    }

    /// Reads of one chunk of keys: the untimed ones, a free slice, a serial slice.
    fn keys(&self) -> usize {
        self.unmeasured() + 2 * self.slice
    }
}

/// The contender that comes at `position` in `round`.
const fn turn(round: usize, position: usize) -> usize {
    // Every second rotation backwards, so that no contender always follows the same one.
    let position = if round.is_multiple_of(2) { position } else { CONTENDERS - 1 - position };
    (round / 2 + position) % CONTENDERS
}

/// One thread's slice, in ticks.
#[derive(Debug, Clone, Copy, Default)]
struct Slice {
    begin: u64,
    end: u64,
}

/// What one thread saw of one contender.
#[derive(Debug, Default)]
pub struct Seen {
    free: Vec<Slice>,
    serial: Vec<Slice>,
    /// Latencies of sampled reads of the serial slices; with batches, of sampled batches.
    pub latencies: Latencies,
    /// Reads, timed or not.
    pub reads: u64,
    /// Keys that were not there.
    pub not_found: u64,
    /// Values of another length.
    pub wrong: u64,
    /// Reads that failed.
    pub errors: u64,
    /// The first failure in words.
    pub error: Option<String>,
    /// What the contender counted.
    pub counters: Option<Counters>,
}

/// The contenders' handles of one thread.
pub struct Handles<A, B, C>(pub A, pub B, pub C);

/// Runs all rounds of one thread.
pub fn run_thread<A: Store, B: Store, C: Store, K: Clock>(
    contest: &Contest,
    plan: &WorkloadPlan,
    thread: usize,
    mut handles: Handles<A, B, C>,
    clock: &K,
    together: &Barrier,
) -> [Seen; CONTENDERS] {
    let inserts = InsertCounter::new(plan.records);
    let mut trace = Trace::new(plan, thread, 1, 0);
    let mut seen: [Seen; CONTENDERS] = Default::default();
    let before = [handles.0.counters(), handles.1.counters(), handles.2.counters()];
    for round in 0..contest.rounds {
        trace.refill(contest.keys() as u64, &inserts);
        for position in 0..CONTENDERS {
            let who = turn(round, position);
            let seen = &mut seen[who];
            match who {
                0 => run_turn(contest, &mut handles.0, &trace, clock, seen, together),
                1 => run_turn(contest, &mut handles.1, &trace, clock, seen, together),
                _ => run_turn(contest, &mut handles.2, &trace, clock, seen, together),
            }
        }
    }
    let after = [handles.0.counters(), handles.1.counters(), handles.2.counters()];
    for (seen, (after, before)) in seen.iter_mut().zip(after.into_iter().zip(before)) {
        seen.counters = after.zip(before).map(|(after, before)| after.since(before));
    }
    seen
}

fn run_turn<S: Store, K: Clock>(
    contest: &Contest,
    store: &mut S,
    trace: &Trace,
    clock: &K,
    seen: &mut Seen,
    together: &Barrier,
) {
    let (warm, half) = (contest.unmeasured(), contest.unmeasured() + contest.slice);
    together.wait();
    read_slice::<S, K, FREE>(contest, store, trace, 0..warm, clock, seen);
    together.wait();
    let begin = clock.begin();
    read_slice::<S, K, FREE>(contest, store, trace, warm..half, clock, seen);
    seen.free.push(Slice { begin, end: clock.end() });
    together.wait();
    let begin = clock.begin();
    read_slice::<S, K, SERIAL>(contest, store, trace, half..contest.keys(), clock, seen);
    seen.serial.push(Slice { begin, end: clock.end() });
}

/// The processor may begin a read before the one before has its value.
const FREE: bool = false;
/// Where the next key lies depends on the value before, so the processor cannot begin earlier; some reads are timed.
const SERIAL: bool = true;

fn read_slice<S: Store, K: Clock, const MODE: bool>(
    contest: &Contest,
    store: &mut S,
    trace: &Trace,
    range: Range<usize>,
    clock: &K,
    seen: &mut Seen,
) {
    seen.reads += range.len() as u64;
    if contest.batch == 1 {
        read_single::<S, K, MODE>(contest, store, trace, range, clock, seen);
    } else {
        read_batches::<S, K, MODE>(contest, store, trace, range, clock, seen);
    }
}

/// Zero, computed from the last byte of `value` in a way that neither compiler nor processor can foresee.
#[inline]
fn zero_from(value: &[u8], zero: usize) -> usize {
    usize::from(value.last().copied().unwrap_or(0)) & zero
}

/// Begins to time every so many reads of a serial slice.
#[inline]
fn sample<K: Clock, const MODE: bool>(number: usize, clock: &K) -> Option<u64> {
    (MODE == SERIAL && number.is_multiple_of(SAMPLE_EVERY)).then(|| clock.begin())
}

#[inline(never)]
fn read_single<S: Store, K: Clock, const MODE: bool>(
    contest: &Contest,
    store: &mut S,
    trace: &Trace,
    range: Range<usize>,
    clock: &K,
    seen: &mut Seen,
) {
    let mut value = Vec::with_capacity(contest.value_bytes);
    let zero = std::hint::black_box(0);
    for at in range {
        if at.is_multiple_of(TOUCHED_STEPS) {
            trace.touch(at);
        }
        let key = trace.key_at(if MODE == SERIAL { at + zero_from(&value, zero) } else { at });
        let sampled = sample::<K, MODE>(at, clock);
        let found = store.read(key, &mut value);
        if let Some(begin) = sampled {
            seen.latencies.record(clock.ns(clock.end() - begin));
        }
        std::hint::black_box(&value);
        match found {
            Ok(true) if value.len() == contest.value_bytes => {}
            Ok(true) => seen.wrong += 1,
            Ok(false) => seen.not_found += 1,
            Err(error) => seen.fail(&error),
        }
    }
}

#[inline(never)]
fn read_batches<S: Store, K: Clock, const MODE: bool>(
    contest: &Contest,
    store: &mut S,
    trace: &Trace,
    range: Range<usize>,
    clock: &K,
    seen: &mut Seen,
) {
    let mut keys: Vec<&[u8]> = Vec::with_capacity(contest.batch);
    let mut out = Vec::with_capacity(contest.value_bytes);
    let zero = std::hint::black_box(0);
    for (number, at) in range.clone().step_by(contest.batch).enumerate() {
        let first = if MODE == SERIAL { at + zero_from(&out, zero) } else { at };
        if number.is_multiple_of(TOUCHED_STEPS.div_ceil(contest.batch)) {
            trace.touch(at);
        }
        keys.clear();
        keys.extend((first..(first + contest.batch).min(range.end)).map(|at| trace.key_at(at)));
        let sampled = sample::<K, MODE>(number, clock);
        let outcome = store.multi_read(&keys, |_, found| match found {
            // Copied out, as a single read does: all contenders hand the bytes to the caller.
            Ok(Some(value)) => {
                out.clear();
                out.extend_from_slice(value);
                std::hint::black_box(&out);
                seen.wrong += u64::from(value.len() != contest.value_bytes);
            }
            Ok(None) => seen.not_found += 1,
            Err(error) => seen.fail(&error),
        });
        if let Some(begin) = sampled {
            seen.latencies.record(clock.ns(clock.end() - begin));
        }
        if let Err(error) = outcome {
            seen.fail(&error);
        }
    }
}

impl Seen {
    #[cold]
    fn fail(&mut self, error: &crate::store::StoreError) {
        self.errors += 1;
        self.error.get_or_insert_with(|| error.to_string());
    }
}

/// Throughput of one contender in every round, in operations per second, of its free or its serial slices: all
/// threads' reads, divided by the time from the first thread's beginning to the last one's end.
pub fn throughputs<K: Clock>(contest: &Contest, of_threads: &[&Seen], clock: &K, serial: bool) -> Vec<f64> {
    (0..contest.rounds)
        .map(|round| {
            let of =
                |seen: &&Seen| if serial { seen.serial.get(round) } else { seen.free.get(round) }.copied();
            let slices = of_threads.iter().filter_map(of);
            let begin = slices.clone().map(|slice| slice.begin).min().unwrap_or(0);
            let end = slices.map(|slice| slice.end).max().unwrap_or(0);
            let seconds = clock.ns(end.saturating_sub(begin)).max(1) as f64 / 1e9;
            (contest.slice * of_threads.len()) as f64 / seconds
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::FakeClock;
    use crate::store::Factory;
    use crate::store::fake::{Behaviour, FakeFactory};
    use crate::workload::Distribution;
    use crate::workload::keys::KeyFormat;
    use crate::workload::mix::Mix;

    #[test]
    fn everyone_comes_first_equally_often() {
        let mut first = [0; CONTENDERS];
        for round in 0..6 {
            let mut order: Vec<usize> = (0..CONTENDERS).map(|position| turn(round, position)).collect();
            first[order[0]] += 1;
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2]);
        }
        assert_eq!(first, [2, 2, 2]);
    }

    fn fake(clock: &FakeClock, service_ns: u64) -> FakeFactory {
        let factory = FakeFactory::new(clock.clone(), Behaviour { service_ns, ..Behaviour::default() });
        let mut store = factory.open().unwrap();
        for number in 0..100 {
            store.write(&KeyFormat::default().key(number), b"12345678").unwrap();
        }
        factory
    }

    #[test]
    fn throughput_is_that_of_the_contenders() {
        let clock = FakeClock::default();
        let plan = WorkloadPlan {
            name: "c",
            mix: Mix::READS,
            distribution: Distribution::Uniform,
            records: 100,
            operations: 0,
            keys: KeyFormat::default(),
            seed: 1,
        };
        for batch in [1, 16] {
            let contest = Contest { rounds: 7, slice: 800, batch, threads: 1, value_bytes: 8 };
            let handles = Handles(
                fake(&clock, 100).open().unwrap(),
                fake(&clock, 200).open().unwrap(),
                fake(&clock, 400).open().unwrap(),
            );
            let seen = run_thread(&contest, &plan, 0, handles, &clock, &Barrier::new(1));
            for (seen, expected) in seen.iter().zip([10_000_000.0, 5_000_000.0, 2_500_000.0]) {
                for serial in [false, true] {
                    assert_eq!(throughputs(&contest, &[seen], &clock, serial), [expected; 7]);
                }
                assert_eq!((seen.reads, seen.not_found, seen.wrong, seen.errors), (7 * 1700, 0, 0, 0));
            }
        }
    }
}
