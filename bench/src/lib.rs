//! Benchmark of the key-value store: YCSB's workloads, self-proving values, and comparisons taken in one run.
//!
//! The binary `kv-bench` is a thin wrapper around this library, so that tests can drive every part of it.
//!
//! | module | holds |
//! |---|---|
//! | `args`, `plan`, `range` | the command line, what it means, and within which bounds |
//! | `workload` | which operations there are: keys, popularity, mixes, traces |
//! | `value`, `oracle` | values that prove themselves, and what a read may return |
//! | `store` | the seam to what is measured |
//! | `runner` | operations in, counts and latencies out |
//! | `raw` | the bare verbs, as perftest measures them |
//! | `cache` | the store as a cache, beside an exact LRU |
//! | `compare` | the store against its peer and its floor |
//! | `report` | the result for people, for scripts, as JSON |
//! | `commands`, `error` | the subcommands, from arguments to exit code |

pub mod args;
pub mod cache;
pub mod clock;
pub mod commands;
pub mod compare;
pub mod error;
pub mod oracle;
pub mod plan;
pub mod range;
pub mod raw;
pub mod report;
pub mod rng;
pub mod runner;
pub mod store;
pub mod units;
pub mod value;
pub mod workload;
