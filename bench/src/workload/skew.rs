//! How skewed a distribution really is: measured on draws, not promised by its name.

use std::fmt;

use serde::Serialize;

use super::{Chooser, WorkloadPlan};
use crate::rng::Rng;

/// Draws that a measurement takes at most.
const DRAWS_MAX: u64 = 1_000_000;

/// The skew of a sample of draws.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Skew {
    /// Draws in the sample.
    pub draws: u64,
    /// Share of the draws that the most popular record got.
    pub hottest_share: f64,
    /// Share of the draws that the most popular hundredth of the records got.
    pub top_percent_share: f64,
    /// Records that were never drawn, as a share of all records.
    pub never_drawn_share: f64,
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hottest record {:.2} %, hottest 1 % of records {:.1} %, never drawn {:.1} % of records ({} draws)",
            self.hottest_share * 100.0,
            self.top_percent_share * 100.0,
            self.never_drawn_share * 100.0,
            self.draws
        )
    }
}

/// Measures the distribution of `plan` on as many draws as the run has operations, a million at most; nothing for
/// a distribution that moves with the inserts or draws nothing.
pub fn measure(plan: &WorkloadPlan) -> Option<Skew> {
    let chooser = Chooser::new(plan)?;
    let mut rng = Rng::new(plan.seed);
    let draws = if plan.operations == 0 { DRAWS_MAX } else { plan.operations.min(DRAWS_MAX) };
    let mut numbers: Vec<u64> = (0..draws).map(|_| chooser.number(&mut rng, plan.records)).collect();
    numbers.sort_unstable();
    let mut counts: Vec<u64> = numbers.chunk_by(|a, b| a == b).map(|same| same.len() as u64).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let top = usize::try_from(plan.records.div_ceil(100)).unwrap_or(usize::MAX);
    let share = |count: u64| count as f64 / draws as f64;
    Some(Skew {
        draws,
        hottest_share: share(*counts.first()?),
        top_percent_share: share(counts.iter().take(top).sum()),
        never_drawn_share: 1.0 - counts.len() as f64 / plan.records as f64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Distribution, keys::KeyFormat, mix::Mix};

    fn skew(distribution: Distribution) -> Skew {
        let plan = WorkloadPlan {
            name: "c",
            mix: Mix::READS,
            distribution,
            records: 1_000_000,
            operations: 1_000_000,
            keys: KeyFormat::default(),
            seed: 42,
        };
        measure(&plan).unwrap()
    }

    #[test]
    fn ycsb_and_zipf_over_the_records_are_two_workloads() {
        // The hottest key is rank 0: 1 / zeta(10^10) = 3.78 %, and 1 / zeta(10^6) = 6.50 %.
        let ycsb = skew(Distribution::Zipfian);
        assert!((ycsb.hottest_share - 0.0378).abs() < 0.001, "{ycsb:?}");
        let over_records = skew(Distribution::ZipfianN);
        assert!((over_records.hottest_share - 0.0650).abs() < 0.001, "{over_records:?}");
        assert!(over_records.top_percent_share > ycsb.top_percent_share + 0.2);
        let uniform = skew(Distribution::Uniform);
        assert!(uniform.hottest_share < 0.0001, "{uniform:?}");
        // A million draws out of a million: 1/e of them are not drawn.
        assert!((uniform.never_drawn_share - (-1.0f64).exp()).abs() < 0.005);
    }

    #[test]
    fn latest_is_not_measured() {
        let plan = WorkloadPlan {
            name: "d",
            mix: Mix::READS,
            distribution: Distribution::Latest,
            records: 10,
            operations: 0,
            keys: KeyFormat::default(),
            seed: 1,
        };
        assert_eq!(measure(&plan), None);
    }
}
