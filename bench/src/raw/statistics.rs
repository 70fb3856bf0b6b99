//! Figures as perftest defines them, so that they can stand beside perftest's.

use serde::Serialize;

/// The largest times that perftest leaves out of all figures but the maximum.
const LEFT_OUT: usize = 2;
/// Rounds of the search for the peak; it needs about 5.
const SEARCH_ROUNDS: usize = 64;

/// Latency, in ns, of one message, or of half of a ping-pong.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Smallest.
    pub min: f64,
    /// The second largest: perftest leaves two out, and gives the smaller of them as the maximum.
    pub max: f64,
    /// Median.
    pub typical: f64,
    /// Mean.
    pub avg: f64,
    /// Standard deviation. perftest cuts each difference to whole microseconds; this does not.
    pub stdev: f64,
    /// 99 % are smaller.
    pub p99: f64,
    /// 99.9 % are smaller.
    pub p99_9: f64,
}

/// Rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Bytes per second of the best stretch of messages: bytes over the time from the first one's posting to the last one's
    /// completion.
    pub peak_bytes_per_s: f64,
    /// Bytes per second from the first posting to the last completion.
    pub average_bytes_per_s: f64,
    /// Messages per second from the first posting to the last completion.
    pub messages_per_s: f64,
}

/// Latency from the times between the starts of messages, in ns, which `parts` messages share: 2 for a ping-pong.
/// `None` if there are fewer than 4, of which no tail can be told.
pub fn latency(mut between_ns: Vec<u64>, parts: u32) -> Option<Latency> {
    if between_ns.len() < LEFT_OUT + 2 {
        return None;
    }
    between_ns.sort_unstable();
    let parts = f64::from(parts.max(1));
    let at = |index: usize| between_ns[index] as f64 / parts;
    let kept = between_ns.len() - LEFT_OUT;
    let typical =
        if kept.is_multiple_of(2) { f64::midpoint(at(kept / 2 - 1), at(kept / 2)) } else { at(kept / 2) };
    let avg = (0..kept).map(at).sum::<f64>() / kept as f64;
    let variance = (0..kept).map(|index| (at(index) - avg).powi(2)).sum::<f64>() / kept as f64;
    // The first index at or after this share of the kept ones; for few it is the maximum above.
    let tail = |share: f64| at((kept as f64 * share).ceil() as usize);
    Some(Latency {
        min: at(0),
        max: at(kept),
        typical,
        avg,
        stdev: variance.sqrt(),
        p99: tail(0.99),
        p99_9: tail(0.999),
    })
}

/// Rates of messages of `size_bytes` that were posted and completed at these times, in ns; completions in the order of
/// postings. `None` if there are none, or not as many of one as of the other.
pub fn bandwidth(posted_ns: &[u64], completed_ns: &[u64], size_bytes: u32) -> Option<Bandwidth> {
    let (&begun, &ended) = (posted_ns.first()?, completed_ns.last()?);
    if posted_ns.len() != completed_ns.len() {
        return None;
    }
    let messages_per_s = posted_ns.len() as f64 * 1e9 / (ended.saturating_sub(begun).max(1) as f64);
    Some(Bandwidth {
        peak_bytes_per_s: f64::from(size_bytes) * 1e9 / fewest_ns_per_message(posted_ns, completed_ns),
        average_bytes_per_s: f64::from(size_bytes) * messages_per_s,
        messages_per_s,
    })
}

/// The smallest, over all stretches of messages i to j, of (completed j - posted i) / (j - i + 1).
///
/// A ratio is the smallest if no stretch lies below the line of that slope. So each round looks for the stretch that lies
/// furthest below the line of the best slope so far, in one pass, and takes its slope (Dinkelbach's method). Trying
/// all stretches would take the square of the number of messages.
fn fewest_ns_per_message(posted_ns: &[u64], completed_ns: &[u64]) -> f64 {
    let (begun, count) = (posted_ns[0], posted_ns.len());
    let since = |at: u64| at as f64 - begun as f64;
    let mut best = since(completed_ns[count - 1]) / count as f64;
    for _ in 0..SEARCH_ROUNDS {
        let (mut latest_start, mut first) = (f64::NEG_INFINITY, 0);
        let (mut lowest, mut found) = (f64::INFINITY, best);
        for (last, (&posted, &completed)) in posted_ns.iter().zip(completed_ns).enumerate() {
            let start = since(posted) - best * last as f64;
            if start > latest_start {
                (latest_start, first) = (start, last);
            }
            let below = since(completed) - best * (last + 1) as f64 - latest_start;
            if below < lowest {
                let messages = (last + 1 - first) as f64;
                (lowest, found) = (below, (since(completed) - since(posted_ns[first])) / messages);
            }
        }
        if found >= best {
            break;
        }
        best = found;
    }
    // A clock that does not tell two moments apart must not make a rate infinite.
    best.max(f64::MIN_POSITIVE).max(1.0 / count as f64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-9 * expected.abs(), "{found} is not {expected}");
    }

    /// By hand: of 10..=100, 1000 and 2000 are left out as the two largest. Kept: 10, 20, ..., 80 (8 times).
    #[test]
    fn latency_of_an_even_number() {
        let times = vec![2000, 80, 20, 1000, 40, 30, 60, 50, 70, 10];
        let found = latency(times, 1).unwrap();
        close(found.min, 10.0);
        close(found.max, 1000.0);
        close(found.typical, 45.0);
        close(found.avg, 45.0);
        // Squares: 2 * (35^2 + 25^2 + 15^2 + 5^2) / 8 = 525.
        close(found.stdev, 525_f64.sqrt());
        close(found.p99, 1000.0);
        close(found.p99_9, 1000.0);
    }

    /// Five times of a ping-pong, halved. Kept: 100, 200, 600; the median is of three.
    #[test]
    fn latency_of_an_odd_number_in_halves() {
        let found = latency(vec![900, 200, 100, 600, 800], 2).unwrap();
        close(found.min, 50.0);
        close(found.max, 400.0);
        close(found.typical, 100.0);
        close(found.avg, 150.0);
        // 100, 50 and 150 from the mean: (10000 + 2500 + 22500) / 3.
        close(found.stdev, (35_000.0 / 3.0_f64).sqrt());
        assert_eq!(latency(vec![1, 2, 3], 1), None);
    }

    /// 1 to 1002: 1000 are kept, the 990th of them (from 0) is 991, the 999th 1000, the second largest of all 1001.
    #[test]
    fn the_tail_of_many() {
        let found = latency((1..=1002).rev().collect(), 1).unwrap();
        close(found.p99, 991.0);
        close(found.p99_9, 1000.0);
        close(found.max, 1001.0);
        close(found.typical, 500.5);
    }

    /// Four messages in 400 ns, of which the second and third take 100 ns together.
    #[test]
    fn bandwidth_by_hand() {
        let found = bandwidth(&[0, 150, 160, 170], &[140, 240, 250, 400], 64).unwrap();
        close(found.messages_per_s, 1e7);
        close(found.average_bytes_per_s, 64e7);
        close(found.peak_bytes_per_s, 64.0 * 2.0 / 100e-9);
        assert_eq!(bandwidth(&[], &[], 1), None);
        assert_eq!(bandwidth(&[1, 2], &[3], 1), None);
        assert!(bandwidth(&[5, 5], &[5, 5], 1).unwrap().peak_bytes_per_s.is_finite());
    }

    proptest! {
        #[test]
        fn the_peak_is_that_of_all_stretches(steps in prop::collection::vec((0u64..1000, 1u64..1000), 1..60)) {
            let (mut now, mut posted, mut completed) = (7_000, Vec::new(), Vec::new());
            for (step, takes) in steps {
                now += step;
                posted.push(now);
                completed.push((now + takes).max(completed.last().copied().unwrap_or(0)));
            }
            let mut fewest = f64::INFINITY;
            for (first, &begin) in posted.iter().enumerate() {
                for (last, &end) in completed.iter().enumerate().skip(first) {
                    fewest = fewest.min((end - begin) as f64 / (last - first + 1) as f64);
                }
            }
            let found = fewest_ns_per_message(&posted, &completed);
            prop_assert!((found - fewest).abs() <= 1e-6 * fewest, "{} {}", found, fewest);
        }
    }
}
