//! What is asked of the store: keys, their popularity, and the mix of operations, as YCSB defines them.
//!
//! | file | holds |
//! |---|---|
//! | `keys` | record number -> key |
//! | `zipfian` | Gray's generator |
//! | `latest` | numbers of new records; the prefix that may be read |
//! | `mix` | shares of the operations |
//! | `trace` | the operations of one thread, made before they are run |
//! | `skew` | how skewed a distribution measures |

pub mod keys;
pub mod latest;
pub mod mix;
pub mod skew;
pub mod trace;
pub mod zipfian;

use keys::{KeyFormat, fnv_hash};
use mix::{Mix, OpKind};
use zipfian::{Gray, THETA};

use crate::rng::Rng;

/// Which records are asked for how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Distribution {
    /// YCSB's: Zipf over 10^10 items, hashed onto the records. The skew does not depend on their number.
    Zipfian,
    /// Zipf over as many items as there are records, hashed onto them: more skewed than YCSB's.
    ZipfianN,
    /// Every record equally often.
    Uniform,
    /// The newest records most often.
    Latest,
    /// Every record once, in order.
    #[value(skip)]
    Sequential,
}

impl Distribution {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian",
            Self::ZipfianN => "zipfian-n",
            Self::Uniform => "uniform",
            Self::Latest => "latest",
            Self::Sequential => "sequential",
        }
    }
}

/// Everything that decides which operations a run consists of.
#[derive(Debug, Clone)]
pub struct WorkloadPlan {
    /// The name in reports: a letter of YCSB's, or `load`.
    pub name: &'static str,
    /// Shares of the operations.
    pub mix: Mix,
    /// Popularity of the records.
    pub distribution: Distribution,
    /// Records that are there before the run.
    pub records: u64,
    /// Operations that the run is expected to have, for YCSB's allowance for new records; 0 if not known.
    pub operations: u64,
    /// Record number to key.
    pub keys: KeyFormat,
    /// All random numbers follow from it.
    pub seed: u64,
}

impl WorkloadPlan {
    /// Whether the run adds records.
    pub fn has_inserts(&self) -> bool {
        self.mix.share(OpKind::Insert) > 0.0
    }

    /// Numbers that YCSB's `zipfian` draws from: the records, one more, and twice the inserts to be expected.
    pub fn zipfian_numbers(&self) -> u64 {
        let expected_inserts = self.operations as f64 * self.mix.share(OpKind::Insert);
        self.records + 1 + (expected_inserts * 2.0) as u64
    }
}

/// Redraws of a number that is not stored yet before the chooser settles for a stored one. YCSB has no bound; a
/// draw beyond this one would need a run that multiplies its records by hundreds.
const REDRAWS_MAX: u32 = 10_000;

/// Draws record numbers.
#[derive(Debug, Clone)]
pub enum Chooser {
    /// Ranks of `gray`, hashed onto `numbers` numbers.
    Scrambled {
        /// Draws the ranks.
        gray: Gray,
        /// Numbers that they are hashed onto, from 0.
        numbers: u64,
    },
    /// Any of the first `records`, equally likely.
    Uniform {
        /// How many records there are.
        records: u64,
    },
}

impl Chooser {
    /// The chooser of `plan`, or nothing for a distribution that does not draw from fixed numbers.
    pub fn new(plan: &WorkloadPlan) -> Option<Self> {
        match plan.distribution {
            Distribution::Zipfian => {
                Some(Self::Scrambled { gray: Gray::ycsb(), numbers: plan.zipfian_numbers() })
            }
            Distribution::ZipfianN => {
                Some(Self::Scrambled { gray: Gray::new(plan.records, THETA), numbers: plan.records })
            }
            Distribution::Uniform => Some(Self::Uniform { records: plan.records }),
            Distribution::Latest | Distribution::Sequential => None,
        }
    }

    /// A record among the first `stored`; a number beyond them is drawn again.
    #[inline]
    pub fn number(&self, rng: &mut Rng, stored: u64) -> u64 {
        match self {
            Self::Uniform { records } => rng.below((*records).min(stored).max(1)),
            Self::Scrambled { gray, numbers } => {
                let mut number = 0;
                for _ in 0..REDRAWS_MAX {
                    number = fnv_hash(gray.rank(rng.next_f64())) % numbers;
                    if number < stored {
                        return number;
                    }
                }
                number % stored.max(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(distribution: Distribution, mix: Mix, records: u64, operations: u64) -> WorkloadPlan {
        WorkloadPlan {
            name: "test",
            mix,
            distribution,
            records,
            operations,
            keys: KeyFormat::default(),
            seed: 1,
        }
    }

    #[test]
    fn zipfian_allows_for_new_records_as_ycsb_does() {
        assert_eq!(plan(Distribution::Zipfian, Mix::READS, 1000, 1_000_000).zipfian_numbers(), 1001);
        let d = mix::Workload::D.mix().unwrap();
        assert_eq!(plan(Distribution::Zipfian, d, 1000, 1_000_000).zipfian_numbers(), 101_001);
    }

    #[test]
    fn a_number_that_is_not_stored_is_drawn_again() {
        let mut rng = Rng::new(1);
        let d = mix::Workload::D.mix().unwrap();
        for distribution in [Distribution::Zipfian, Distribution::ZipfianN, Distribution::Uniform] {
            let chooser = Chooser::new(&plan(distribution, d, 1000, 10_000)).unwrap();
            assert!((0..10_000).all(|_| chooser.number(&mut rng, 1000) < 1000));
            assert!((0..100).all(|_| chooser.number(&mut rng, 1) == 0));
        }
    }

    #[test]
    fn uniform_is_uniform() {
        let mut rng = Rng::new(9);
        let chooser = Chooser::new(&plan(Distribution::Uniform, Mix::READS, 100, 0)).unwrap();
        let mut counts = [0u32; 100];
        for _ in 0..100_000 {
            counts[chooser.number(&mut rng, 100) as usize] += 1;
        }
        let chi2: f64 = counts.iter().map(|count| (f64::from(*count) - 1000.0).powi(2) / 1000.0).sum();
        assert!((chi2 - 99.0).abs() < 5.0 * (2.0f64 * 99.0).sqrt(), "chi-square {chi2}");
    }
}
