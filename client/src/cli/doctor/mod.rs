//! `kv doctor`: checks in the order in which things depend on each other, each with what was found and the remedy.
//!
//! | file | checks |
//! |---|---|
//! | `memory.rs` | memory that may be locked, huge pages |
//! | `rdma.rs` | devices, ports, GIDs, MTU, registration, a READ from this host to itself, losses |
//! | `rdma_cm.rs` | rdma_cm, and its way to the server |
//! | `server.rs` | the server: reachable, by which transport, READs of it, small and large |

mod memory;
#[cfg(feature = "verbs")]
mod rdma;
#[cfg(feature = "verbs")]
mod rdma_cm;
mod server;

use std::fmt;

use serde_json::json;

use super::{CliError, End, print};

/// Arguments of `kv doctor`.
#[derive(clap::Args)]
pub(super) struct DoctorArguments {
    /// As one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Good.
    Ok,
    /// It works, but could be better, or something else stands in for it.
    Warning,
    /// It does not work.
    Failed,
    /// It could not be looked at, because of a failure before it.
    Skipped,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Failed => "FAILED",
            Level::Skipped => "skipped",
        })
    }
}

/// One check's result.
#[derive(Debug)]
pub(super) struct Finding {
    check: &'static str,
    level: Level,
    /// What was found.
    found: String,
    /// What to do about it; nothing if it is good.
    remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, level: Level::Ok, found: found.into(), remedy: None }
    }

    pub(super) fn warning(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { check, level: Level::Warning, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn failed(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding { check, level: Level::Failed, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn skipped(check: &'static str, found: impl Into<String>) -> Finding {
        Finding { check, level: Level::Skipped, found: found.into(), remedy: None }
    }
}

/// Runs all checks. Ends as "not found" if one failed.
pub(super) fn run(
    arguments: &DoctorArguments,
    url: &str,
    timeout: std::time::Duration,
) -> Result<End, CliError> {
    let mut findings = memory::check();
    findings.extend(check_rdma(url));
    findings.extend(server::check(url, timeout));
    if arguments.json {
        let list: Vec<_> = findings
            .iter()
            .map(|one| {
                json!({
                    "check": one.check,
                    "level": one.level.to_string().to_lowercase(),
                    "found": one.found,
                    "remedy": one.remedy,
                })
            })
            .collect();
        print(format_args!("{:#}", json!({ "schema": 1, "url": url, "findings": list })))?;
    } else {
        for Finding { check, level, found, remedy } in &findings {
            print(format_args!("{level:<8} {check:<18} {found}"))?;
            if let Some(remedy) = remedy {
                print(format_args!("{:<27} -> {remedy}", ""))?;
            }
        }
    }
    let has_failed = findings.iter().any(|one| one.level == Level::Failed);
    Ok(if has_failed { End::NotFoundOrDiffers } else { End::Done })
}

#[cfg(feature = "verbs")]
fn check_rdma(url: &str) -> Vec<Finding> {
    rdma::check(url)
}

#[cfg(not(feature = "verbs"))]
fn check_rdma(url: &str) -> Vec<Finding> {
    let found = "this kv was built without RDMA";
    let remedy = "build it with the feature `verbs` (on by default; needs libibverbs-dev, librdmacm-dev, libclang-dev)";
    vec![if url.starts_with("kv+rdma://") {
        Finding::failed("rdma device", found, remedy)
    } else {
        Finding::warning("rdma device", found, remedy)
    }]
}
