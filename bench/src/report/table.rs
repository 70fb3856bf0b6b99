//! The result for people.

use std::fmt::Write;

use super::{LatencyNs, Report};
use crate::runner::Verify;
use crate::runner::tally::KindTally;
use crate::units::show_ns;
use crate::workload::mix::OpKind;

/// The whole report.
pub fn text(report: &Report<'_>) -> String {
    let mut out = String::new();
    write_all(&mut out, report).expect("writing to a string does not fail");
    out
}

fn write_all(out: &mut String, report: &Report<'_>) -> std::fmt::Result {
    let (plan, result) = (report.plan, report.result);
    let tally = &result.tally;
    writeln!(
        out,
        "workload {}, {} records of {} bytes, {}, {} thread(s), depth {}, batch {}, over {}",
        plan.workload.name,
        plan.workload.records,
        plan.shape.value_bytes(),
        plan.workload.distribution.name(),
        plan.threads,
        plan.depth,
        plan.batch,
        report.transport,
    )?;
    for (name, fact) in &report.facts {
        writeln!(out, "  {}: {fact}", name.replace('_', " "))?;
    }
    if let Some(skew) = report.skew {
        writeln!(out, "  measured skew: {skew}")?;
    }
    if plan.workload.mix.share(OpKind::Update) + plan.workload.mix.share(OpKind::Rmw) > 0.0 {
        writeln!(out, "  updates write: {}", describe_updates(report))?;
    }
    writeln!(
        out,
        "\n{} operations in {:.3} s: {:.0} operations/s",
        tally.operations(),
        result.seconds,
        result.throughput_ops_per_s()
    )?;
    write_latencies(out, report)?;
    write_store(out, report)?;
    write_verdict(out, report)?;
    writeln!(
        out,
        "harness: {:.0} ns per operation of its own (null store), times from the {}",
        report.null_ns_per_op, report.clock
    )
}

fn describe_updates(report: &Report<'_>) -> String {
    let shape = report.plan.shape;
    if report.plan.update_mode.name() == "field" && shape.fields > 1 {
        format!(
            "one field of {} ({} bytes); the store holds whole values, so the client reads the record, changes the \
             field and writes the record",
            shape.fields, shape.field_bytes
        )
    } else {
        "the whole value".into()
    }
}

fn write_latencies(out: &mut String, report: &Report<'_>) -> std::fmt::Result {
    writeln!(
        out,
        "\n{:<16}{:>11}{:>10}{:>8}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "", "count", "not found", "errors", "min", "mean", "p50", "p90", "p99", "p99.9", "max"
    )?;
    for kind in OpKind::ALL {
        let counts = report.result.tally.kind(kind);
        if counts.count() == 0 {
            continue;
        }
        write!(out, "{:<16}{:>11}{:>10}{:>8}", kind.name(), counts.count(), counts.not_found, counts.errors)?;
        write_points(out, LatencyNs::of(counts.service.histogram()))?;
        write_intended(out, counts)?;
    }
    writeln!(out)
}

fn write_intended(out: &mut String, counts: &KindTally) -> std::fmt::Result {
    let Some(intended) = &counts.intended else { return Ok(()) };
    write!(out, "{:<45}", "  from the intended start")?;
    write_points(out, LatencyNs::of(intended.histogram()))
}

fn write_points(out: &mut String, points: Option<LatencyNs>) -> std::fmt::Result {
    if let Some(ns) = points {
        for value in [ns.min as f64, ns.mean, ns.p50 as f64, ns.p90 as f64, ns.p99 as f64, ns.p99_9 as f64] {
            write!(out, "{:>10}", show_ns(value))?;
        }
        write!(out, "{:>10}", show_ns(ns.max as f64))?;
    }
    writeln!(out)
}

fn write_store(out: &mut String, report: &Report<'_>) -> std::fmt::Result {
    if let Some((reads, bytes)) = report.per_get() {
        write!(out, "per GET: {reads:.3} READs, {bytes:.0} bytes")?;
        match report.index_cache_hit_ratio() {
            Some(ratio) => writeln!(out, "; index cache hits {:.2} %", ratio * 100.0)?,
            None => writeln!(out)?,
        }
    }
    if let (Some(raw), Some(ratio)) = (report.raw_read(), report.get_per_raw_read()) {
        writeln!(
            out,
            "raw READs of as many bytes, between the GETs on the same queue pair: {}, p50 {}, p99 {}\nGET p50 / raw READ p50: {ratio:.3}",
            report.result.tally.raw_read.histogram().len(),
            show_ns(raw.p50 as f64),
            show_ns(raw.p99 as f64)
        )?;
    }
    if let Some(counters) = report.result.tally.counters {
        let by = counters.retries;
        writeln!(
            out,
            "repeated reads: {} torn, {} stale, {} dead; server asked {} times",
            by.torn, by.stale, by.dead, by.asked_server
        )?;
    }
    match report.result.server_cpu_s {
        Some(seconds) => {
            let ns = seconds * 1e9 / (report.result.tally.operations().max(1) as f64);
            writeln!(out, "server: {seconds:.3} s of processor time, {ns:.0} ns per operation")
        }
        None => writeln!(out, "server: processor time not known"),
    }
}

fn write_verdict(out: &mut String, report: &Report<'_>) -> std::fmt::Result {
    let tally = &report.result.tally;
    match report.plan.verify {
        Verify::Length if tally.wrong == 0 => {
            writeln!(out, "values: lengths checked only (--verify checks bytes)")?
        }
        Verify::Length => writeln!(out, "values: {} WRONG", tally.wrong)?,
        _ => writeln!(out, "values: {} verified, {} WRONG", tally.verified, tally.wrong)?,
    }
    if tally.wrong + tally.not_found() + tally.errors() > 0 {
        for example in &tally.examples {
            writeln!(out, "  for example: {example}")?;
        }
    }
    if let Some(error) = &tally.fatal {
        writeln!(out, "ENDED EARLY: {error}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, report, result};
    use super::*;
    use crate::workload::mix::Workload;

    #[test]
    fn says_what_was_run_and_what_it_came_to() {
        let (plan, mut result) = (plan(Workload::F), result());
        result.tally.wrong = 3;
        for ns in [1_000, 3_200, 4_000] {
            result.tally.raw_read.record(ns);
        }
        result.tally.examples.push("record 5, key user1: torn".into());
        let found = text(&report(&plan, &result));
        for part in [
            "workload f, 1000 records of 1000 bytes",
            "pages: 2 MiB pages",
            "updates write: the whole value",
            "10 operations in 2.000 s: 5 operations/s",
            "per GET: 1.500 READs, 100 bytes; index cache hits 90.00 %",
            // Reads took 1 to 8 us: the median of eight is 4.
            "GET p50 / raw READ p50: 1.25",
            "on the same queue pair: 3, p50 3.20 us",
            "1 torn, 2 stale, 3 dead; server asked 4 times",
            "0.250 s of processor time",
            "3 WRONG",
            "for example: record 5",
            "33 ns per operation of its own",
        ] {
            assert!(found.contains(part), "{part:?} is not in\n{found}");
        }
    }
}
