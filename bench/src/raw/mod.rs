//! `raw`: latency and rates of the bare verbs, as perftest measures and defines them: what the store's figures over RDMA
//! stand beside.
//!
//! | module | holds |
//! |---|---|
//! | `args`, `plan` | the command line, and which tests it means |
//! | `wire`, `control` | what two sides tell each other over TCP |
//! | `side`, `kinds`, `lane` | device, kinds of queue pairs, queue pairs with their buffers |
//! | `session` | both sides' course through the tests |
//! | `latency`, `bandwidth`, `taker` | the loops that are timed |
//! | `statistics`, `report` | figures, tables, JSON |

pub mod args;
pub mod error;
pub mod plan;
pub mod report;
pub mod statistics;

#[cfg(feature = "verbs")]
mod bandwidth;
#[cfg(feature = "verbs")]
mod control;
#[cfg(feature = "verbs")]
mod kinds;
#[cfg(feature = "verbs")]
mod lane;
#[cfg(feature = "verbs")]
mod latency;
#[cfg(feature = "verbs")]
mod session;
#[cfg(feature = "verbs")]
mod side;
#[cfg(feature = "verbs")]
mod taker;
#[cfg(feature = "verbs")]
pub mod wire;

#[cfg(feature = "verbs")]
mod run;

use args::RawArgs;
use error::RawError;
use plan::Test;
use report::RawJson;

/// Measures what `args` ask for, or serves another side that does; then there is nothing to report.
///
/// # Errors
/// If something cannot be measured, or a side or the way between them fails.
#[cfg(feature = "verbs")]
pub fn measure(args: &RawArgs, tests: &[Test]) -> Result<Option<RawJson>, RawError> {
    run::measure(args, tests)
}

/// Without RDMA there is nothing to measure.
///
/// # Errors
/// Always.
#[cfg(not(feature = "verbs"))]
pub fn measure(_args: &RawArgs, _tests: &[Test]) -> Result<Option<RawJson>, RawError> {
    Err(RawError::NoVerbs)
}
