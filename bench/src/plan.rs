//! From arguments to plans: defaults that depend on each other, and everything that makes no sense refused before
//! anything is touched.

use std::time::Duration;

use kv_common::endpoint::EndpointError;
use thiserror::Error;

use crate::args::{CacheArgs, CompareArgs, DriveArgs, LoadArgs, RecordArgs, RunArgs};
use crate::cache::CachePlan;
use crate::compare::ComparePlan;
use crate::compare::rounds::Contest;
use crate::oracle::UpdateMode;
use crate::range::{OutOfRange, in_range};
use crate::runner::{Length, RunPlan, Verify};
use crate::value::Shape;
use crate::workload::keys::{KEY_SIZE_MIN, KeyFormat};
use crate::workload::mix::{Mix, Workload};
use crate::workload::{Distribution, WorkloadPlan};

/// Largest number of records.
const RECORDS_MAX: u64 = 1 << 32;
/// Operations of a cache, which are kept in memory, 4 bytes each.
const CACHE_OPERATIONS_MAX: u64 = 1 << 31;
/// Limits of the store, for all stores.
const KEY_SIZE_MAX: u64 = kv_client::KEY_MAX_BYTES as u64;
const VALUE_BYTES_MAX: u64 = kv_client::VALUE_MAX_BYTES as u64;
const FIELDS_MAX: u64 = 1000;
const THREADS_MAX: u64 = 1024;
const DEPTH_MAX: u64 = kv_client::CLIENT_OPERATIONS_MAX as u64;
const BATCH_MAX: u64 = 1024;
const RAW_EVERY_MAX: u64 = 1_000_000;
const ROUNDS_MIN: u64 = 7;
const ROUNDS_MAX: u64 = 10_000;
/// Two slices and the untimed reads before them come out of one chunk of a trace.
const SLICE_MIN: u64 = 1000;
const SLICE_MAX: u64 = 400_000;
/// PUTs in each round of a comparison.
const PUTS_PER_ROUND: usize = 20_000;
/// Operations in flight per thread while records are stored that are not measured.
const FILL_DEPTH: usize = 16;
/// How long a run takes that is not told.
const DURATION_DEFAULT: Duration = Duration::from_secs(10);

/// Arguments that make no sense.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UsageError {
    /// A number out of its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// Workload e.
    #[error(
        "workload e scans ranges of neighbouring keys, and a hash table has no order of keys: the neighbours of a key \
         lie anywhere. Use workload a, b, c, d or f"
    )]
    Scans,
    /// Both kinds of overlapping.
    #[error("--depth and --batch are two ways to overlap reads; give one of them")]
    DepthAndBatch,
    /// A distribution that needs inserts, without them.
    #[error("--distribution latest follows the inserts, and {0} has none; use it with workload d")]
    LatestWithoutInserts(String),
    /// A store in this process that has nothing to verify or compare.
    #[error("{0} is of no use with mem:null, which stores nothing")]
    Null(&'static str),
    /// A URL of no known kind.
    #[error("cannot use {0:?}: {1}; or use mem:dashmap or mem:null")]
    Url(String, EndpointError),
}

fn size(flag: &'static str, found: u64, from: u64, to: u64) -> Result<usize, UsageError> {
    Ok(in_range(flag, found, from, to)? as usize)
}

fn key_format(key_size: Option<u64>) -> Result<KeyFormat, UsageError> {
    let Some(bytes) = key_size else { return Ok(KeyFormat::default()) };
    let bytes = size("--key-size", bytes, KEY_SIZE_MIN as u64, KEY_SIZE_MAX)?;
    Ok(KeyFormat::of_size_bytes(bytes).unwrap_or_default())
}

fn shape(records: &RecordArgs) -> Result<Shape, UsageError> {
    let shape = match records.value_size {
        Some(bytes) => Shape { fields: 1, field_bytes: size("--value-size", bytes, 0, VALUE_BYTES_MAX)? },
        None => Shape {
            fields: size("--fieldcount", records.fieldcount, 1, FIELDS_MAX)?,
            field_bytes: size("--fieldlength", records.fieldlength, 0, VALUE_BYTES_MAX)?,
        },
    };
    in_range("--fieldcount times --fieldlength", shape.value_bytes() as u64, 0, VALUE_BYTES_MAX)?;
    Ok(shape)
}

fn workload_plan(records: &RecordArgs, name: &'static str, mix: Mix) -> Result<WorkloadPlan, UsageError> {
    Ok(WorkloadPlan {
        name,
        mix,
        distribution: Distribution::Sequential,
        records: in_range("--recordcount", records.recordcount, 1, RECORDS_MAX)?,
        operations: records.recordcount,
        keys: key_format(records.key_size)?,
        seed: records.seed,
    })
}

fn base_plan(records: &RecordArgs, drive: &DriveArgs, workload: WorkloadPlan) -> Result<RunPlan, UsageError> {
    let target = drive.target.map(|target| in_range("--target", target, 1, u64::MAX)).transpose()?;
    Ok(RunPlan {
        length: Length::Operations(workload.records),
        workload,
        threads: size("--threads", drive.threads, 1, THREADS_MAX)?,
        depth: size("--depth", drive.depth, 1, DEPTH_MAX)?,
        batch: 1,
        warmup: Length::NONE,
        target_ops_per_s: target.map(|target| target as f64),
        verify: Verify::Length,
        shape: shape(records)?,
        update_mode: UpdateMode::Whole,
        warm_index: false,
        raw_every: 0,
    })
}

impl LoadArgs {
    /// Inserts of all records.
    ///
    /// # Errors
    /// Arguments that make no sense.
    pub fn plan(&self) -> Result<RunPlan, UsageError> {
        if self.workload.is_some_and(|workload| workload.mix().is_none()) {
            return Err(UsageError::Scans);
        }
        let workload = workload_plan(&self.records, "load", Mix::INSERTS)?;
        base_plan(&self.records, &self.drive, workload)
    }
}

/// Reads of all records of a `load`, each once, that check every byte; `version_base` is the load's.
pub fn read_back(load: &RunPlan, version_base: u64) -> RunPlan {
    RunPlan {
        workload: WorkloadPlan { name: "verify", mix: Mix::READS, ..load.workload.clone() },
        verify: Verify::Bytes { oldest: version_base + 1 },
        target_ops_per_s: None,
        ..load.clone()
    }
}

/// Inserts of all records that `run` works on, for a store that begins empty.
pub fn fill(run: &RunPlan) -> RunPlan {
    RunPlan {
        workload: WorkloadPlan {
            name: "load",
            mix: Mix::INSERTS,
            distribution: Distribution::Sequential,
            ..run.workload.clone()
        },
        length: Length::Operations(run.workload.records),
        warmup: Length::NONE,
        depth: FILL_DEPTH,
        batch: 1,
        target_ops_per_s: None,
        verify: Verify::Length,
        warm_index: false,
        raw_every: 0,
        ..run.clone()
    }
}

impl RunArgs {
    /// The workload.
    ///
    /// # Errors
    /// Arguments that make no sense.
    pub fn plan(&self) -> Result<RunPlan, UsageError> {
        let mix = self.workload.mix().ok_or(UsageError::Scans)?;
        let mut workload = workload_plan(&self.records, self.workload.name(), mix)?;
        workload.distribution = self.distribution.unwrap_or(self.workload.distribution());
        workload.operations = self.operationcount.unwrap_or(0);
        if workload.distribution == Distribution::Latest && self.workload != Workload::D {
            return Err(UsageError::LatestWithoutInserts(format!("workload {}", workload.name)));
        }
        let base = base_plan(&self.records, &self.drive, workload)?;
        let batch = size("--batch", self.batch, 1, BATCH_MAX)?;
        if batch > 1 && base.depth > 1 {
            return Err(UsageError::DepthAndBatch);
        }
        let one_value = self.records.value_size.is_some();
        let update_default = if one_value { UpdateMode::Whole } else { UpdateMode::Field };
        Ok(RunPlan {
            length: match (self.operationcount, self.duration) {
                (Some(operations), _) => Length::Operations(operations),
                (None, time) => Length::Time(time.unwrap_or(DURATION_DEFAULT)),
            },
            warmup: Length::Time(self.warmup),
            batch,
            update_mode: self.update_mode.unwrap_or(update_default),
            verify: match (self.verify, self.other_writers) {
                (false, _) => Verify::Length,
                (true, true) => Verify::Bytes { oldest: 0 },
                (true, false) => Verify::Oracle,
            },
            warm_index: self.warm_index,
            raw_every: in_range("--raw-every", self.raw_every, 0, RAW_EVERY_MAX)?,
            ..base
        })
    }
}

impl CacheArgs {
    /// The run.
    ///
    /// # Errors
    /// Arguments that make no sense.
    pub fn plan(&self) -> Result<CachePlan, UsageError> {
        if self.distribution == Distribution::Latest {
            return Err(UsageError::LatestWithoutInserts("a cache".into()));
        }
        let least = in_range("--value-size", self.value_size, 8, VALUE_BYTES_MAX)?;
        let most = self.value_size_max.unwrap_or(least);
        Ok(CachePlan {
            workload: WorkloadPlan {
                name: "cache",
                mix: Mix::READS,
                distribution: self.distribution,
                records: in_range("--recordcount", self.recordcount, 1, RECORDS_MAX - 1)?,
                operations: 0,
                keys: key_format(self.key_size)?,
                seed: self.seed,
            },
            value_bytes: (least as usize, size("--value-size-max", most, least, VALUE_BYTES_MAX)?),
            warmup: in_range("--warmup", self.warmup, 0, CACHE_OPERATIONS_MAX)?,
            operations: in_range("--operationcount", self.operationcount, 1, CACHE_OPERATIONS_MAX)?,
        })
    }
}

impl CompareArgs {
    /// The comparison.
    ///
    /// # Errors
    /// Arguments that make no sense.
    pub fn plan(&self) -> Result<ComparePlan, UsageError> {
        if self.distribution == Distribution::Latest {
            return Err(UsageError::LatestWithoutInserts("a comparison of reads".into()));
        }
        let shape =
            Shape { fields: 1, field_bytes: size("--value-size", self.value_size, 0, VALUE_BYTES_MAX)? };
        Ok(ComparePlan {
            workload: WorkloadPlan {
                name: Workload::C.name(),
                mix: Mix::READS,
                distribution: self.distribution,
                records: in_range("--recordcount", self.recordcount, 1, RECORDS_MAX - 1)?,
                operations: 0,
                keys: key_format(Some(self.key_size))?,
                seed: self.seed,
            },
            shape,
            contest: Contest {
                rounds: size("--rounds", self.rounds, ROUNDS_MIN, ROUNDS_MAX)?,
                slice: size("--slice", self.slice, SLICE_MIN, SLICE_MAX)?,
                batch: size("--batch", self.batch, 1, BATCH_MAX)?,
                threads: size("--threads", self.threads, 1, THREADS_MAX)?,
                value_bytes: shape.value_bytes(),
            },
            puts: if self.puts { PUTS_PER_ROUND } else { 0 },
        })
    }
}

/// The run of reads that stands for a comparison where a run is needed: to load its records, and to measure the
/// harness.
pub fn as_run(compare: &ComparePlan) -> RunPlan {
    RunPlan {
        workload: compare.workload.clone(),
        threads: compare.contest.threads,
        depth: 1,
        batch: compare.contest.batch,
        warmup: Length::NONE,
        length: Length::NONE,
        target_ops_per_s: None,
        verify: Verify::Length,
        shape: compare.shape,
        update_mode: UpdateMode::Whole,
        warm_index: false,
        raw_every: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn run(line: &str) -> Result<RunPlan, UsageError> {
        match Cli::try_parse_from(["kv-bench", "run"].into_iter().chain(line.split(' '))).unwrap().command {
            Command::Run(args) => args.plan(),
            other => panic!("{other:?}"),
        }
    }

    fn compare(line: &str) -> Result<ComparePlan, UsageError> {
        let words = ["kv-bench", "compare"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Compare(args) => args.plan(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_are_those_of_ycsb() {
        let plan = run("--workload a").unwrap();
        assert_eq!(plan.shape, Shape { fields: 10, field_bytes: 100 });
        assert_eq!(plan.update_mode, UpdateMode::Field);
        assert_eq!(plan.workload.distribution, Distribution::Zipfian);
        assert_eq!(plan.length, Length::Time(Duration::from_secs(10)));
        assert_eq!(run("--workload D").unwrap().workload.distribution, Distribution::Latest);
        assert_eq!(run("--workload a --value-size 64").unwrap().update_mode, UpdateMode::Whole);
    }

    #[test]
    fn numbers_are_read_with_their_units() {
        let plan =
            run("--workload b --recordcount 1M --operationcount 10k --value-size 4KiB --warmup 2s").unwrap();
        assert_eq!(plan.workload.records, 1_000_000);
        assert_eq!(plan.length, Length::Operations(10_000));
        assert_eq!(plan.workload.operations, 10_000);
        assert_eq!(plan.shape, Shape { fields: 1, field_bytes: 4096 });
        assert_eq!(plan.warmup, Length::Time(Duration::from_secs(2)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(run("--workload e").unwrap_err(), UsageError::Scans);
        assert!(UsageError::Scans.to_string().contains("no order"));
        assert_eq!(run("--workload a --depth 2 --batch 2").unwrap_err(), UsageError::DepthAndBatch);
        assert!(matches!(
            run("--workload b --distribution latest"),
            Err(UsageError::LatestWithoutInserts(_))
        ));
        for bad in [
            "--threads 0",
            "--depth 0",
            "--batch 0",
            "--recordcount 0",
            "--fieldcount 0",
            "--key-size 15",
            "--target 0",
            "--value-size 2GiB",
            "--fieldlength 900MiB",
        ] {
            let found = run(&format!("--workload c {bad}"));
            assert!(matches!(found, Err(UsageError::Range(_))), "{bad}: {found:?}");
        }
        for bad in ["--rounds 6", "--slice 10", "--slice 1M"] {
            assert!(matches!(compare(bad), Err(UsageError::Range(_))), "{bad}");
        }
    }

    #[test]
    fn a_comparison_is_of_these_sizes_by_default() {
        let plan = compare("").unwrap();
        assert_eq!(plan.workload.records, 1_000_000);
        assert_eq!(plan.workload.keys.bytes_max(), 24);
        assert_eq!(plan.shape.value_bytes(), 64);
        assert!(plan.contest.rounds >= 7);
        assert_eq!(plan.puts, 0);
    }

    #[test]
    fn clap_refuses_what_excludes_each_other() {
        for bad in [
            "run --workload a --operationcount 5 --duration 5s",
            "run --workload a --value-size 5 --fieldcount 2",
            "run --workload a --other-writers",
            "run --workload x",
            "run",
            "run --workload a --distribution sequential",
            "load --recordcount many",
        ] {
            assert!(Cli::try_parse_from(format!("kv-bench {bad}").split(' ')).is_err(), "{bad}");
        }
    }
}
