//! The lines that scripts written for YCSB parse, in its order and with its names.
//!
//! As in YCSB, an operation that failed or missed is counted in a section of its own (`READ-FAILED`), the halves of a
//! read-modify-write are counted among the reads and updates too, and percentiles are whole microseconds.

use std::fmt::Write;

use hdrhistogram::Histogram;

use super::Report;
use crate::runner::tally::Latencies;
use crate::workload::mix::OpKind;

const fn section_name(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Read => "READ",
        OpKind::Update => "UPDATE",
        OpKind::Insert => "INSERT",
        OpKind::Rmw => "READ-MODIFY-WRITE",
    }
}

/// All lines.
pub fn lines(report: &Report<'_>) -> String {
    let mut out = String::new();
    let result = report.result;
    line(&mut out, "OVERALL", "RunTime(ms)", (result.seconds * 1000.0).round() as u64);
    line(&mut out, "OVERALL", "Throughput(ops/sec)", format_args!("{:?}", result.throughput_ops_per_s()));
    for kind in OpKind::ALL {
        let counts = result.tally.kind(kind);
        let half = match kind {
            OpKind::Read => Some(&result.tally.rmw_read),
            OpKind::Update => Some(&result.tally.rmw_write),
            OpKind::Insert | OpKind::Rmw => None,
        };
        let name = section_name(kind);
        section(&mut out, name, &with(&counts.service, half));
        if counts.not_found > 0 {
            line(&mut out, name, "Return=NOT_FOUND", counts.not_found);
        }
        if counts.errors > 0 {
            line(&mut out, name, "Return=ERROR", counts.errors);
        }
        if counts.not_found + counts.errors > 0 {
            line(&mut out, &format!("{name}-FAILED"), "Operations", counts.not_found + counts.errors);
        }
        if let Some(intended) = &counts.intended {
            section(&mut out, &format!("Intended-{name}"), intended);
        }
    }
    out
}

fn with(latencies: &Latencies, half: Option<&Latencies>) -> Latencies {
    let mut all = latencies.clone();
    if let Some(half) = half {
        all.merge(half);
    }
    all
}

fn section(out: &mut String, name: &str, latencies: &Latencies) {
    let histogram: &Histogram<u64> = latencies.histogram();
    if histogram.is_empty() {
        return;
    }
    line(out, name, "Operations", histogram.len());
    line(out, name, "AverageLatency(us)", format_args!("{:?}", histogram.mean() / 1000.0));
    line(out, name, "MinLatency(us)", histogram.min() / 1000);
    line(out, name, "MaxLatency(us)", histogram.max() / 1000);
    for (percentile, quantile) in [("50th", 0.5), ("95th", 0.95), ("99th", 0.99)] {
        let us = histogram.value_at_quantile(quantile) / 1000;
        line(out, name, &format!("{percentile}PercentileLatency(us)"), us);
    }
    line(out, name, "Return=OK", histogram.len());
}

fn line(out: &mut String, section: &str, name: &str, value: impl std::fmt::Display) {
    writeln!(out, "[{section}], {name}, {value}").expect("writing to a string does not fail");
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, report, result};
    use super::*;
    use crate::workload::mix::Workload;

    #[test]
    fn lines_have_the_names_and_numbers_of_ycsb() {
        let (plan, result) = (plan(Workload::F), result());
        let found = lines(&report(&plan, &result));
        let expected = [
            "[OVERALL], RunTime(ms), 2000",
            "[OVERALL], Throughput(ops/sec), 5.0",
            "[READ], Operations, 9",
            "[READ], MinLatency(us), 1",
            "[READ], MaxLatency(us), 10",
            "[READ], 50thPercentileLatency(us), 5",
            "[READ], 95thPercentileLatency(us), 10",
            "[READ], 99thPercentileLatency(us), 10",
            "[READ], Return=OK, 9",
            "[READ], Return=NOT_FOUND, 1",
            "[READ-FAILED], Operations, 1",
            "[UPDATE], Operations, 1",
            "[READ-MODIFY-WRITE], Operations, 1",
            "[READ-MODIFY-WRITE], Return=OK, 1",
        ];
        for line in expected {
            assert!(found.lines().any(|l| l == line), "{line:?} is not in\n{found}");
        }
        assert!(!found.contains("INSERT"));
        // Every line is `[SECTION], Name, number`.
        for line in found.lines() {
            let parts: Vec<&str> = line.split(", ").collect();
            assert_eq!(parts.len(), 3, "{line}");
            assert!(parts[0].starts_with('[') && parts[0].ends_with(']'), "{line}");
            assert!(parts[2].parse::<f64>().is_ok(), "{line}");
        }
    }
}
