//! What a run came to, for people, for scripts that know YCSB's output, and as JSON.

pub mod compare;
pub mod json;
pub mod progress;
pub mod sink;
pub mod table;
pub mod ycsb;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::oracle::UpdateMode;
use crate::runner::{RunPlan, RunResult};
use crate::store::StoreError;
use crate::workload::mix::OpKind;
use crate::workload::skew::Skew;

/// How the program ends. The numbers are a contract with scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// All was done, and all of it right.
    Done = 0,
    /// A value was wrong, or a key that must be there was not.
    Wrong = 1,
    /// The arguments make no sense, or a file or standard output cannot be written.
    Usage = 2,
    /// There is no server, it does not answer, or the connection was lost.
    NoConnection = 3,
    /// The store refused or failed operations, or a limit was missed.
    Refused = 4,
}

impl Exit {
    /// How a program ends that could not go on because of `error`.
    pub const fn of_error(error: &StoreError) -> Self {
        match error {
            StoreError::NoConnection(_) | StoreError::NoAnswer(_) | StoreError::Unknown(_) => {
                Self::NoConnection
            }
            StoreError::Refused(_) | StoreError::Failed(_) => Self::Refused,
        }
    }

    /// How a run ends: wrong values weigh most, then a lost connection, then missing keys, then failures.
    pub fn of_result(result: &RunResult) -> Self {
        let tally = &result.tally;
        if tally.wrong > 0 {
            return Self::Wrong;
        }
        match &tally.fatal {
            Some(error) => Self::of_error(error),
            None if tally.not_found() > 0 => Self::Wrong,
            None if tally.errors() > 0 => Self::Refused,
            None => Self::Done,
        }
    }
}

/// A run and everything that a reader needs to judge it.
#[derive(Debug)]
pub struct Report<'a> {
    /// What was run.
    pub plan: &'a RunPlan,
    /// What it came to.
    pub result: &'a RunResult,
    /// How the store was reached.
    pub transport: String,
    /// What else is known about the store.
    pub facts: Vec<(&'static str, String)>,
    /// The harness's own cost per operation.
    pub null_ns_per_op: f64,
    /// How skewed the distribution measured.
    pub skew: Option<Skew>,
    /// Where the times come from.
    pub clock: &'static str,
}

impl Report<'_> {
    /// GETs that the run consisted of, as halves of other operations too.
    pub fn gets(&self) -> u64 {
        let tally = &self.result.tally;
        let field_updates = self.plan.update_mode == UpdateMode::Field && self.plan.shape.fields > 1;
        tally.kind(OpKind::Read).count()
            + tally.kind(OpKind::Rmw).count()
            + if field_updates { tally.kind(OpKind::Update).count() } else { 0 }
    }

    /// READs and bytes per GET, if the store counts them.
    pub fn per_get(&self) -> Option<(f64, f64)> {
        let counters = self.result.tally.counters?;
        let gets = self.gets();
        (gets > 0).then(|| (counters.reads as f64 / gets as f64, counters.read_bytes as f64 / gets as f64))
    }

    /// Bare READs between the GETs, if there were any.
    pub fn raw_read(&self) -> Option<LatencyNs> {
        LatencyNs::of(self.result.tally.raw_read.histogram())
    }

    /// The median GET divided by the median bare READ of as many bytes in the same run.
    pub fn get_per_raw_read(&self) -> Option<f64> {
        let get = LatencyNs::of(self.result.tally.kind(OpKind::Read).service.histogram())?;
        self.raw_read().map(|raw| get.p50 as f64 / raw.p50.max(1) as f64)
    }

    /// Hits in the index cache per lookup, if the store counts them.
    pub fn index_cache_hit_ratio(&self) -> Option<f64> {
        let counters = self.result.tally.counters?;
        (counters.cache_lookups > 0).then(|| counters.cache_hits as f64 / counters.cache_lookups as f64)
    }
}

/// The usual points of a latency distribution, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LatencyNs {
    /// Smallest.
    pub min: u64,
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: u64,
    /// 90 of 100 are at most this.
    pub p90: u64,
    /// 99 of 100 are at most this.
    pub p99: u64,
    /// 999 of 1000 are at most this.
    pub p99_9: u64,
    /// Largest.
    pub max: u64,
}

impl LatencyNs {
    /// The points of `histogram`; nothing if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        (!histogram.is_empty()).then(|| Self {
            min: histogram.min(),
            mean: histogram.mean(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p99_9: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::runner::tally::Tally;
    use crate::runner::{Length, Verify};
    use crate::store::{Counters, Retries};
    use crate::value::Shape;
    use crate::workload::keys::KeyFormat;
    use crate::workload::mix::Workload;
    use crate::workload::{Distribution, WorkloadPlan};

    pub(crate) fn plan(workload: Workload) -> RunPlan {
        RunPlan {
            workload: WorkloadPlan {
                name: workload.name(),
                mix: workload.mix().unwrap(),
                distribution: Distribution::Zipfian,
                records: 1000,
                operations: 10,
                keys: KeyFormat::default(),
                seed: 1,
            },
            threads: 1,
            depth: 1,
            batch: 1,
            warmup: Length::NONE,
            length: Length::Operations(10),
            target_ops_per_s: None,
            verify: Verify::Length,
            shape: Shape { fields: 10, field_bytes: 100 },
            update_mode: UpdateMode::Whole,
            warm_index: false,
            raw_every: 0,
        }
    }

    /// Eight reads of 1 to 8 us, one that missed, and a read-modify-write of 30 us, in two seconds.
    pub(crate) fn result() -> RunResult {
        let mut tally = Tally::new(false);
        for us in 1..=8 {
            tally.kind_mut(OpKind::Read).service.record(us * 1000);
        }
        tally.kind_mut(OpKind::Read).not_found = 1;
        tally.kind_mut(OpKind::Rmw).service.record(30_000);
        tally.rmw_read.record(10_000);
        tally.rmw_write.record(20_000);
        let retries = Retries { torn: 1, stale: 2, dead: 3, asked_server: 4 };
        let counters = Counters { reads: 15, read_bytes: 1000, cache_lookups: 10, cache_hits: 9, retries };
        tally.counters = Some(counters);
        RunResult { tally, seconds: 2.0, server_cpu_s: Some(0.25), version_base: 0 }
    }

    pub(crate) fn report<'a>(plan: &'a RunPlan, result: &'a RunResult) -> Report<'a> {
        Report {
            plan,
            result,
            transport: "shm".into(),
            facts: vec![("pages", "2 MiB pages".into())],
            null_ns_per_op: 33.25,
            skew: None,
            clock: "fake",
        }
    }

    #[test]
    fn exit_codes() {
        let mut result = result();
        assert_eq!(Exit::of_result(&result), Exit::Wrong, "a missing key");
        result.tally.kind_mut(OpKind::Read).not_found = 0;
        assert_eq!(Exit::of_result(&result), Exit::Done);
        result.tally.kind_mut(OpKind::Read).errors = 1;
        assert_eq!(Exit::of_result(&result), Exit::Refused);
        result.tally.fatal = Some(StoreError::NoConnection(String::new()));
        assert_eq!(Exit::of_result(&result), Exit::NoConnection);
        result.tally.wrong = 1;
        assert_eq!(Exit::of_result(&result), Exit::Wrong);
    }

    #[test]
    fn halves_of_other_operations_are_gets_too() {
        let (plan, result) = (plan(Workload::F), result());
        let report = report(&plan, &result);
        assert_eq!(report.gets(), 10);
        assert_eq!(report.per_get(), Some((1.5, 100.0)));
        assert_eq!(report.index_cache_hit_ratio(), Some(0.9));
    }
}
