//! The floor under every request and its reply through shared memory: a cache line that goes from one spinning core to
//! another and back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::clock::Clock;
use crate::runner::tally::Latencies;

/// Round trips that are timed together, so that reading the clock costs little of each.
const TRIPS_PER_SAMPLE: u64 = 16;
/// Looks at the line between two looks at the clock.
const SPINS_PER_CHECK: u32 = 1 << 16;
/// Longest wait for the other side, which may share its core with someone else.
const WAIT_MAX_NS: u64 = 1_000_000_000;
/// Longest measurement; what has been sampled until then counts.
const MEASURE_MAX_NS: u64 = 500_000_000;

/// Round trips of a cache line, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PingPong {
    /// Median.
    pub p50_ns: f64,
    /// Mean.
    pub mean_ns: f64,
}

/// The line that is exchanged, alone on its cache line and the one that is fetched with it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Ball(AtomicU64);

/// Two cores that this thread may run on, or nothing if there is only one.
fn two_cores() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
    Some([cores.next()?, cores.next()?])
}

/// Keeps the calling thread on `core`. Where that is not allowed, the kernel keeps two spinning threads apart anyway.
fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    let _ = sched_setaffinity(None, &only);
}

/// Waits until the ball shows `wanted`; `false` if the other side has given up, or does not answer.
fn await_ball<C: Clock>(ball: &Ball, wanted: u64, given_up: &AtomicBool, clock: &C) -> bool {
    let mut began = None;
    loop {
        for _ in 0..SPINS_PER_CHECK {
            // No pause instruction: it costs as much as a good part of the trip.
            if ball.0.load(Ordering::Acquire) == wanted {
                return true;
            }
        }
        let now = clock.begin();
        let waited_ns = clock.ns(now.saturating_sub(*began.get_or_insert(now)));
        if given_up.load(Ordering::Relaxed) || waited_ns > WAIT_MAX_NS {
            given_up.store(true, Ordering::Relaxed);
            return false;
        }
    }
}

/// Measures about `trips` round trips between two cores; nothing if there is only one, or if the two threads do not
/// get to run at the same time.
pub fn measure<C: Clock>(clock: &C, trips: u64) -> Option<PingPong> {
    let cores = two_cores()?;
    let samples = trips.div_ceil(TRIPS_PER_SAMPLE).max(1);
    // The first tenth brings both threads to speed and is not counted.
    let unmeasured = samples / 10 + 1;
    let (ball, given_up) = (Ball::default(), AtomicBool::new(false));
    let latencies = std::thread::scope(|scope| {
        let (ball, given_up) = (&ball, &given_up);
        let other_clock = clock.clone();
        scope.spawn(move || {
            stay_on(cores[1]);
            (0..(samples + unmeasured) * TRIPS_PER_SAMPLE).all(|trip| {
                let came = await_ball(ball, 2 * trip + 1, given_up, &other_clock);
                ball.0.store(2 * trip + 2, Ordering::Release);
                came
            });
        });
        let ping = scope.spawn(move || {
            stay_on(cores[0]);
            let mut latencies = Latencies::default();
            let began = clock.begin();
            for sample in 0..samples + unmeasured {
                let begin = clock.begin();
                for trip in sample * TRIPS_PER_SAMPLE..(sample + 1) * TRIPS_PER_SAMPLE {
                    ball.0.store(2 * trip + 1, Ordering::Release);
                    if !await_ball(ball, 2 * trip + 2, given_up, clock) {
                        return None;
                    }
                }
                let end = clock.end();
                if sample >= unmeasured {
                    latencies.record(clock.ns(end - begin));
                    if clock.ns(end - began) > MEASURE_MAX_NS {
                        given_up.store(true, Ordering::Relaxed);
                        break;
                    }
                }
            }
            Some(latencies)
        });
        ping.join().ok().flatten()
    })?;
    let histogram = latencies.histogram();
    let per_trip = TRIPS_PER_SAMPLE as f64;
    Some(PingPong {
        p50_ns: histogram.value_at_quantile(0.5) as f64 / per_trip,
        mean_ns: histogram.mean() / per_trip,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn the_ball_comes_back_when_there_are_two_cores() {
        let found = measure(&SystemClock::start(), 1000);
        if two_cores().is_none() {
            assert_eq!(found, None);
        } else if let Some(trip) = found {
            // No trip takes less than one access to a cache; a busy machine may make it as long as it likes.
            assert!(trip.p50_ns > 1.0 && trip.mean_ns > 1.0, "{trip:?}");
        }
    }
}
