//! What one thread has seen: counts and latencies by kind of operation. Threads share nothing; the tallies are merged
//! when all have ended, histogram into histogram, so that a percentile is one of all operations.

use hdrhistogram::Histogram;

use crate::store::{Counters, StoreError};
use crate::workload::mix::OpKind;

/// Longest latency that is told apart, in nanoseconds; longer ones count as this one.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;
/// Decimal digits of a latency that are kept.
const DIGITS: u8 = 3;
/// Wrong values that are described in full.
const EXAMPLES_MAX: usize = 5;

/// Latencies in nanoseconds, with three digits.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(
            Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS)
                .expect("the bounds are constants and valid"),
        )
    }
}

impl Latencies {
    /// Counts one operation.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds the operations of another thread.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both histograms have the same bounds");
    }

    /// The histogram.
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.0
    }
}

/// Counts of one kind of operation.
#[derive(Debug, Clone, Default)]
pub struct KindTally {
    /// Service time of operations that succeeded.
    pub service: Latencies,
    /// The same from the moment when the operation should have started, with a target rate.
    pub intended: Option<Latencies>,
    /// Reads of keys that were not there.
    pub not_found: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl KindTally {
    fn new(paced: bool) -> Self {
        Self { intended: paced.then(Latencies::default), ..Self::default() }
    }

    /// Operations that succeeded.
    pub fn ok(&self) -> u64 {
        self.service.0.len()
    }

    /// All operations.
    pub fn count(&self) -> u64 {
        self.ok() + self.not_found + self.errors
    }

    fn merge(&mut self, other: &Self) {
        self.service.merge(&other.service);
        if let (Some(mine), Some(theirs)) = (&mut self.intended, &other.intended) {
            mine.merge(theirs);
        }
        self.not_found += other.not_found;
        self.errors += other.errors;
    }
}

/// Everything that one thread, or all of them together, have counted.
#[derive(Debug, Clone)]
pub struct Tally {
    kinds: [KindTally; 4],
    /// The read half of read-modify-writes; YCSB counts it among the reads too.
    pub rmw_read: Latencies,
    /// The write half of read-modify-writes; YCSB counts it among the updates too.
    pub rmw_write: Latencies,
    /// Bare READs of as many bytes as GETs had, between them.
    pub raw_read: Latencies,
    /// Values that were checked byte by byte and were right.
    pub verified: u64,
    /// Values that cannot be what was stored.
    pub wrong: u64,
    /// The first wrong values and failed operations, in words.
    pub examples: Vec<String>,
    /// What the store counted.
    pub counters: Option<Counters>,
    /// What ended the thread before its time.
    pub fatal: Option<StoreError>,
    /// Nanoseconds from the thread's first operation to its last one's end, without making chunks of the trace.
    pub active_ns: u64,
}

impl Tally {
    /// Nothing counted; with `paced`, intended latencies are kept too.
    pub fn new(paced: bool) -> Self {
        Self {
            kinds: std::array::from_fn(|_| KindTally::new(paced)),
            rmw_read: Latencies::default(),
            rmw_write: Latencies::default(),
            raw_read: Latencies::default(),
            verified: 0,
            wrong: 0,
            examples: Vec::new(),
            counters: None,
            fatal: None,
            active_ns: 0,
        }
    }

    /// The counts of `kind`.
    pub fn kind(&self, kind: OpKind) -> &KindTally {
        &self.kinds[kind as usize]
    }

    /// The counts of `kind`, to be added to.
    #[inline]
    pub fn kind_mut(&mut self, kind: OpKind) -> &mut KindTally {
        &mut self.kinds[kind as usize]
    }

    /// All operations, whatever came of them.
    pub fn operations(&self) -> u64 {
        self.kinds.iter().map(KindTally::count).sum()
    }

    /// Operations that failed.
    pub fn errors(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.errors).sum()
    }

    /// Operations whose key was not there.
    pub fn not_found(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.not_found).sum()
    }

    /// Keeps a description for the report, up to a few.
    pub fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(text());
        }
    }

    /// Adds what another thread has counted.
    pub fn merge(&mut self, other: Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.merge(theirs);
        }
        self.rmw_read.merge(&other.rmw_read);
        self.rmw_write.merge(&other.rmw_write);
        self.raw_read.merge(&other.raw_read);
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.examples.extend(other.examples);
        self.examples.truncate(EXAMPLES_MAX);
        self.counters = match (self.counters, other.counters) {
            (Some(mine), Some(theirs)) => Some(mine.plus(theirs)),
            (mine, theirs) => mine.or(theirs),
        };
        self.fatal = self.fatal.take().or(other.fatal);
        self.active_ns = self.active_ns.max(other.active_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_percentiles_are_those_of_all_operations() {
        // Nine threads with 100 operations of 1 us, one with 100 of 1 ms: the 95th percentile of all is 1 ms; the
        // mean of the ten threads' percentiles would be 101 us.
        let mut all = Tally::new(false);
        for thread in 0..10 {
            let mut one = Tally::new(false);
            for _ in 0..100 {
                let ns = if thread == 9 { 1_000_000 } else { 1_000 };
                one.kind_mut(OpKind::Read).service.record(ns);
            }
            all.merge(one);
        }
        let read = &all.kind(OpKind::Read).service;
        assert_eq!(read.histogram().len(), 1000);
        assert_eq!(read.histogram().value_at_quantile(0.89), 1_000);
        assert!(read.histogram().value_at_quantile(0.95).abs_diff(1_000_000) < 1_000);
    }

    #[test]
    fn failures_are_operations_but_no_latencies() {
        let mut tally = Tally::new(false);
        tally.kind_mut(OpKind::Read).service.record(5);
        tally.kind_mut(OpKind::Read).not_found += 1;
        tally.kind_mut(OpKind::Update).errors += 2;
        assert_eq!((tally.operations(), tally.not_found(), tally.errors()), (4, 1, 2));
        assert_eq!(tally.kind(OpKind::Read).ok(), 1);
    }

    #[test]
    fn latencies_beyond_the_bounds_are_kept_at_them() {
        let mut latencies = Latencies::default();
        latencies.record(0);
        latencies.record(u64::MAX);
        assert_eq!(latencies.histogram().len(), 2);
        assert!(latencies.histogram().max() >= LATENCY_MAX_NS);
    }
}
