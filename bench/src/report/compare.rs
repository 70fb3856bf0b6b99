//! A comparison for people and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::json::{OpJson, PeerJson, RunJson, SCHEMA};
use super::{Exit, LatencyNs};
use crate::compare::{ComparePlan, CompareResult, Contender, median};
use crate::units::show_ns;
use crate::workload::mix::OpKind;
use crate::workload::skew::Skew;

/// A comparison and everything that a reader needs to judge it.
#[derive(Debug)]
pub struct CompareReport<'a> {
    /// What was run.
    pub plan: &'a ComparePlan,
    /// What it came to.
    pub result: &'a CompareResult,
    /// How the store was reached.
    pub transport: String,
    /// What else is known about the contenders.
    pub facts: Vec<(&'static str, String)>,
    /// The harness's own cost per read.
    pub null_ns_per_op: f64,
    /// How skewed the distribution measured.
    pub skew: Option<Skew>,
    /// Where the times come from.
    pub clock: &'static str,
}

impl CompareReport<'_> {
    fn ours(&self) -> &Contender {
        &self.result.contenders[0]
    }

    fn peers(&self) -> impl Iterator<Item = (&Contender, PeerJson)> {
        self.result.contenders[1..].iter().map(|theirs| {
            let ratios = self.ours().ratios(theirs);
            let peer = PeerJson {
                throughput_ops_per_s: theirs.throughput(),
                ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                ratio_max: ratios.iter().copied().fold(0.0, f64::max),
                ratio: median(ratios).unwrap_or(0.0),
                serial_throughput_ops_per_s: theirs.serial_throughput(),
                serial_ratio: median(self.ours().serial_ratios(theirs)).unwrap_or(0.0),
                latency_ns: LatencyNs::of(theirs.latencies.histogram()),
            };
            (theirs, peer)
        })
    }

    /// The store's throughput divided by that of `peer`, median over the rounds; `serial`: of the serial slices.
    pub fn ratio(&self, peer: &str, serial: bool) -> Option<f64> {
        let (_, found) = self.peers().find(|(theirs, _)| theirs.name == peer)?;
        Some(if serial { found.serial_ratio } else { found.ratio })
    }

    /// READs and bytes per GET of the store, if it counts them.
    fn per_get(&self) -> Option<(f64, f64)> {
        let ours = self.ours();
        let counters = ours.counters?;
        let gets = ours.reads.max(1) as f64;
        Some((counters.reads as f64 / gets, counters.read_bytes as f64 / gets))
    }

    fn hit_ratio(&self) -> Option<f64> {
        let counters = self.ours().counters?;
        (counters.cache_lookups > 0).then(|| counters.cache_hits as f64 / counters.cache_lookups as f64)
    }

    /// How the comparison ends: wrong or missing values, then failures, of any contender.
    pub fn exit(&self) -> Exit {
        let all = &self.result.contenders;
        if all.iter().any(|one| one.wrong + one.not_found > 0) {
            Exit::Wrong
        } else if all.iter().any(|one| one.errors > 0) {
            Exit::Refused
        } else {
            Exit::Done
        }
    }

    /// The JSON: the names of a run for the store, and the others under `peers`.
    pub fn json(&self) -> RunJson {
        let (plan, ours) = (self.plan, self.ours());
        let operations = (plan.contest.slice * plan.contest.threads * plan.contest.rounds) as u64;
        let seconds_of = |throughput: &f64| (plan.contest.slice * plan.contest.threads) as f64 / throughput;
        let read = OpJson {
            count: operations,
            not_found: ours.not_found,
            errors: ours.errors,
            latency_ns: LatencyNs::of(ours.latencies.histogram()),
            intended_latency_ns: None,
        };
        let none =
            || OpJson { count: 0, not_found: 0, errors: 0, latency_ns: None, intended_latency_ns: None };
        let mut ops: BTreeMap<&'static str, OpJson> =
            OpKind::ALL.into_iter().map(|kind| (kind.name(), none())).collect();
        ops.insert(OpKind::Read.name(), read);
        RunJson {
            schema: SCHEMA,
            workload: plan.workload.name,
            transport: self.transport.clone(),
            distribution: plan.workload.distribution.name(),
            threads: plan.contest.threads,
            depth: 1,
            batch: plan.contest.batch,
            recordcount: plan.workload.records,
            value_bytes: plan.shape.value_bytes(),
            update_mode: "whole",
            seed: plan.workload.seed,
            seconds: ours.throughputs.iter().map(seconds_of).sum(),
            operations,
            throughput_ops_per_s: ours.throughput(),
            target_ops_per_s: None,
            server_cpu_s: self.result.server_cpu_s,
            reads_per_get: self.per_get().map(|(reads, _)| reads),
            bytes_per_get: self.per_get().map(|(_, bytes)| bytes),
            raw_read_ns: None,
            get_p50_per_raw_read_p50: None,
            index_cache_hit_ratio: self.hit_ratio(),
            retries: ours.counters.map(|counters| counters.retries),
            verify: true,
            verified: self.result.verified,
            wrong: ours.wrong,
            null_ns_per_op: self.null_ns_per_op,
            skew: self.skew,
            ops,
            store: self.facts.iter().cloned().collect(),
            error: ours.error.clone(),
            clock: self.clock,
            serial_throughput_ops_per_s: Some(ours.serial_throughput()),
            peers: Some(self.peers().map(|(theirs, peer)| (theirs.name, peer)).collect()),
            puts: self.result.puts,
        }
    }

    /// The table.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("writing to a string does not fail");
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let plan = self.plan;
        writeln!(
            out,
            "GET compared: {} keys of {} bytes, values of {} bytes, {}, {} thread(s), {}; store over {}",
            plan.workload.records,
            plan.workload.keys.bytes_max(),
            plan.shape.value_bytes(),
            plan.workload.distribution.name(),
            plan.contest.threads,
            if plan.contest.batch == 1 {
                "one at a time".into()
            } else {
                format!("batches of {} (latencies are a batch's)", plan.contest.batch)
            },
            self.transport,
        )?;
        for (name, fact) in &self.facts {
            writeln!(out, "  {}: {fact}", name.replace('_', " "))?;
        }
        if let Some(skew) = self.skew {
            writeln!(out, "  measured skew: {skew}")?;
        }
        let rounds = plan.contest.rounds;
        writeln!(
            out,
            "  medians of {rounds} interleaved rounds of {} reads per thread\n",
            plan.contest.slice
        )?;
        self.write_contenders(out)?;
        self.write_store(out)?;
        self.write_puts(out)
    }

    fn write_contenders(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "{:<9}|{:^45}|{:^45}\n{:<9}|{:>13}{:>9}{:>9}{:>14}|{:>13}{:>9}{:>9}{:>9}",
            "",
            "reads one after the other",
            "each read needs the value before (serial)",
            "",
            "operations/s",
            "ns/op",
            "store /",
            "smallest-",
            "operations/s",
            "store /",
            "p50",
            "p99"
        )?;
        let show = |out: &mut String, one: &Contender, peer: Option<PeerJson>| {
            let ns_per_op = 1e9 / one.throughput() * self.plan.contest.threads as f64;
            let blank = || ("-".to_owned(), "-".to_owned(), "-".to_owned());
            let (ratio, range, serial_ratio) = peer.map_or_else(blank, |peer| {
                let range = format!("{:.2}-{:.2}", peer.ratio_min, peer.ratio_max);
                (format!("{:.2}", peer.ratio), range, format!("{:.2}", peer.serial_ratio))
            });
            let points = LatencyNs::of(one.latencies.histogram());
            let show_point =
                |of: fn(LatencyNs) -> u64| points.map_or("-".into(), |ns| show_ns(of(ns) as f64));
            writeln!(
                out,
                "{:<9}|{:>13.0}{ns_per_op:>9.1}{ratio:>9}{range:>14}|{:>13.0}{serial_ratio:>9}{:>9}{:>9}",
                one.name,
                one.throughput(),
                one.serial_throughput(),
                show_point(|ns| ns.p50),
                show_point(|ns| ns.p99),
            )
        };
        writeln!(out, "{:<9}|{:>31}{:>14}|{:>22}{:>18}", "", "theirs", "largest", "theirs", "")?;
        show(out, self.ours(), None)?;
        for (theirs, peer) in self.peers() {
            show(out, theirs, Some(peer))?;
        }
        writeln!(
            out,
            "one after the other: the processor overlaps neighbouring reads; serial: each read needs the value \
             before, one read in flight\n"
        )
    }

    fn write_store(&self, out: &mut String) -> std::fmt::Result {
        if let Some((reads, bytes)) = self.per_get() {
            writeln!(out, "per GET: {reads:.3} READs, {bytes:.0} bytes")?;
        }
        if let Some(ratio) = self.hit_ratio() {
            writeln!(out, "index cache hits: {:.2} %", ratio * 100.0)?;
        }
        if let Some(seconds) = self.result.server_cpu_s {
            writeln!(out, "server: {seconds:.3} s of processor time during all rounds of reads")?;
        }
        writeln!(out, "values: {} verified before the rounds", self.result.verified)?;
        for one in &self.result.contenders {
            if one.wrong + one.not_found + one.errors > 0 {
                let error = one.error.as_deref().unwrap_or("");
                let (wrong, missing, failed) = (one.wrong, one.not_found, one.errors);
                writeln!(out, "{}: {wrong} WRONG, {missing} MISSING, {failed} FAILED {error}", one.name)?;
            }
        }
        writeln!(
            out,
            "harness: {:.0} ns per timed read of its own (null store), times from the {}",
            self.null_ns_per_op, self.clock
        )
    }

    fn write_puts(&self, out: &mut String) -> std::fmt::Result {
        let Some(puts) = self.result.puts else { return Ok(()) };
        writeln!(
            out,
            "\nPUT round trip, one thread, one at a time: p50 {}, mean {}",
            show_ns(puts.p50_ns),
            show_ns(puts.mean_ns)
        )?;
        match (puts.ping_pong_p50_ns, puts.ping_pong_mean_ns, puts.ratio_p50, puts.ratio_mean) {
            (Some(p50), Some(mean), Some(ratio_p50), Some(ratio_mean)) => writeln!(
                out,
                "ping-pong of two spinning cores: p50 {}, mean {}\nPUT / ping-pong: p50 {ratio_p50:.2}, mean \
                 {ratio_mean:.2}",
                show_ns(p50),
                show_ns(mean)
            ),
            _ => writeln!(out, "ping-pong of two spinning cores: not measured, it needs two free cores"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::rounds::Contest;
    use crate::report::json::PutsJson;
    use crate::runner::tally::Latencies;
    use crate::value::Shape;
    use crate::workload::keys::KeyFormat;
    use crate::workload::mix::Mix;
    use crate::workload::{Distribution, WorkloadPlan};

    fn contender(name: &'static str, throughputs: &[f64]) -> Contender {
        let mut latencies = Latencies::default();
        latencies.record(300);
        Contender {
            name,
            throughputs: throughputs.to_vec(),
            serial_throughputs: throughputs.iter().map(|ops| ops * ops / 1e6).collect(),
            latencies,
            reads: 3000,
            not_found: 0,
            wrong: 0,
            errors: 0,
            error: None,
            counters: None,
        }
    }

    fn plan() -> ComparePlan {
        ComparePlan {
            workload: WorkloadPlan {
                name: "c",
                mix: Mix::READS,
                distribution: Distribution::Uniform,
                records: 1000,
                operations: 0,
                keys: KeyFormat::of_size_bytes(24).unwrap(),
                seed: 1,
            },
            shape: Shape { fields: 1, field_bytes: 64 },
            contest: Contest { rounds: 3, slice: 1000, batch: 1, threads: 1, value_bytes: 64 },
            puts: 10,
        }
    }

    fn result() -> CompareResult {
        CompareResult {
            contenders: [
                contender("store", &[1e6, 2e6, 3e6]),
                contender("dashmap", &[1e6, 1e6, 1e6]),
                contender("floor", &[2e6, 2e6, 12e6]),
            ],
            puts: Some(PutsJson {
                p50_ns: 600.0,
                mean_ns: 700.0,
                ping_pong_p50_ns: Some(100.0),
                ping_pong_mean_ns: Some(140.0),
                ratio_p50: Some(6.0),
                ratio_mean: Some(5.0),
            }),
            verified: 20_000,
            server_cpu_s: Some(0.0),
        }
    }

    fn report<'a>(plan: &'a ComparePlan, result: &'a CompareResult) -> CompareReport<'a> {
        CompareReport {
            plan,
            result,
            transport: "shm".into(),
            facts: Vec::new(),
            null_ns_per_op: 30.0,
            skew: None,
            clock: "fake",
        }
    }

    #[test]
    fn ratios_are_medians_of_the_rounds_ratios() {
        let (plan, mut result) = (plan(), result());
        {
            let report = report(&plan, &result);
            assert_eq!(report.ratio("dashmap", false), Some(2.0));
            // 0.5, 1 and 0.25: not the ratio of the medians, which is 1.
            assert_eq!(report.ratio("floor", false), Some(0.5));
            assert_eq!(report.ratio("redis", false), None);
            assert_eq!(report.ratio("floor", true), Some(0.25));
            assert_eq!(report.exit(), Exit::Done);
        }
        result.contenders[1].not_found = 1;
        assert_eq!(report(&plan, &result).exit(), Exit::Wrong);
    }

    #[test]
    fn json_has_peers_by_name() {
        let (plan, result) = (plan(), result());
        let text = report(&plan, &result).json().to_text();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["throughput_ops_per_s"], 2e6);
        assert_eq!(json["peers"]["dashmap"]["ratio"], 2.0);
        assert_eq!(json["peers"]["floor"]["ratio"], 0.5);
        assert_eq!(json["peers"]["floor"]["throughput_ops_per_s"], 2e6);
        assert_eq!(json["peers"]["dashmap"]["serial_throughput_ops_per_s"], 1e6);
        assert_eq!(json["ops"]["read"]["count"], 3000);
        assert_eq!(json["puts"]["ratio_p50"], 6.0);
        assert_eq!(json["schema"], "kv-bench/1");
    }

    #[test]
    fn the_table_shows_every_contender() {
        let (plan, result) = (plan(), result());
        let text = report(&plan, &result).text();
        for part in
            ["1000 keys of 24 bytes", "store", "dashmap", "floor", "PUT / ping-pong: p50 6.00, mean 5.00"]
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let after_table = text.lines().skip_while(|line| !line.starts_with("floor")).nth(1).unwrap();
        assert_eq!(
            after_table,
            "one after the other: the processor overlaps neighbouring reads; serial: each read needs the value \
             before, one read in flight"
        );
    }
}
