//! PUT round trips beside the floor under them, round by round.

use super::median;
use super::ping_pong::{self, PingPong};
use crate::clock::Clock;
use crate::report::json::PutsJson;
use crate::runner::tally::Latencies;
use crate::store::{Store, StoreError};
use crate::value::{Shape, Stamp, key_hash, write_value};
use crate::workload::WorkloadPlan;
use crate::workload::latest::InsertCounter;
use crate::workload::trace::Trace;

/// Round trips of a cache line in each round.
const TRIPS: u64 = 50_000;

/// Measures `rounds` rounds of `puts` PUTs each on existing keys, one at a time on one thread, each round with
/// ping-pongs before it. Versions of the values are above `base`.
///
/// # Errors
/// The first PUT that fails.
pub fn measure<S: Store, K: Clock>(
    store: &mut S,
    plan: &WorkloadPlan,
    shape: Shape,
    (rounds, puts): (usize, usize),
    base: u64,
    clock: &K,
) -> Result<PutsJson, StoreError> {
    let inserts = InsertCounter::new(plan.records);
    let mut trace = Trace::new(plan, 0, 1, 0);
    let (mut p50s, mut means, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    let mut value = Vec::new();
    let mut version = base;
    for _ in 0..rounds {
        floors.push(ping_pong::measure(clock, TRIPS));
        trace.refill(puts as u64, &inserts);
        let mut latencies = Latencies::default();
        for at in 0..puts {
            let key = trace.key_at(at);
            version += 1;
            write_value(&mut value, shape, key_hash(key), Stamp { version, writer: 0 });
            let begin = clock.begin();
            store.write(key, &value)?;
            latencies.record(clock.ns(clock.end() - begin));
        }
        p50s.push(latencies.histogram().value_at_quantile(0.5) as f64);
        means.push(latencies.histogram().mean());
    }
    Ok(summary(&p50s, &means, &floors))
}

/// Medians over the rounds; a ratio is the median of the rounds' ratios.
fn summary(p50s: &[f64], means: &[f64], floors: &[Option<PingPong>]) -> PutsJson {
    let floor = |of: fn(&PingPong) -> f64| median(floors.iter().flatten().map(of).collect());
    let ratio = |ours: &[f64], of: fn(&PingPong) -> f64| {
        median(ours.iter().zip(floors).filter_map(|(ours, floor)| Some(ours / of(floor.as_ref()?))).collect())
    };
    PutsJson {
        p50_ns: median(p50s.to_vec()).unwrap_or(0.0),
        mean_ns: median(means.to_vec()).unwrap_or(0.0),
        ping_pong_p50_ns: floor(|trip| trip.p50_ns),
        ping_pong_mean_ns: floor(|trip| trip.mean_ns),
        ratio_p50: ratio(p50s, |trip| trip.p50_ns),
        ratio_mean: ratio(means, |trip| trip.mean_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_of_the_rounds() {
        let trip = |ns| Some(PingPong { p50_ns: ns, mean_ns: ns * 2.0 });
        let floors = [trip(100.0), None, trip(200.0), trip(50.0)];
        let found = summary(&[600.0, 1.0, 400.0, 500.0], &[800.0, 1.0, 800.0, 800.0], &floors);
        assert_eq!(found.p50_ns, 450.0);
        assert_eq!(found.ping_pong_p50_ns, Some(100.0));
        // 6, 2 and 10 in the rounds that have a floor.
        assert_eq!(found.ratio_p50, Some(6.0));
        // 4, 2 and 8.
        assert_eq!(found.ratio_mean, Some(4.0));
        assert_eq!(summary(&[1.0], &[1.0], &[None]).ratio_p50, None);
    }
}
