//! The result as JSON. Names are stable: they are added to, never changed, within one `schema`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{LatencyNs, Report};
use crate::runner::Verify;
use crate::runner::tally::KindTally;
use crate::store::Retries;
use crate::workload::mix::OpKind;
use crate::workload::skew::Skew;

/// Name and version of the format.
pub const SCHEMA: &str = "kv-bench/1";

/// One run.
#[derive(Debug, Serialize)]
pub struct RunJson {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Letter of the workload, or `load`.
    pub workload: &'static str,
    /// How the store was reached.
    pub transport: String,
    /// Popularity of the records.
    pub distribution: &'static str,
    /// Threads.
    pub threads: usize,
    /// Operations in flight per thread.
    pub depth: usize,
    /// Reads of one `multi_read`; 1 for none.
    pub batch: usize,
    /// Records before the run.
    pub recordcount: u64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// What an update writes: `field` or `whole`.
    pub update_mode: &'static str,
    /// All random numbers follow from it.
    pub seed: u64,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Operations, whatever came of them.
    pub operations: u64,
    /// Operations per second.
    pub throughput_ops_per_s: f64,
    /// The rate that was asked for.
    pub target_ops_per_s: Option<f64>,
    /// Processor time of the server during the measurement; null if its process is not known,
    /// or if it or one of its threads ended meanwhile.
    pub server_cpu_s: Option<f64>,
    /// READs per GET; null if the store does not count them.
    pub reads_per_get: Option<f64>,
    /// Bytes that these READs fetched, per GET.
    pub bytes_per_get: Option<f64>,
    /// Bare READs between the GETs, of as many bytes, on the same queue pair; null if there were none.
    pub raw_read_ns: Option<LatencyNs>,
    /// Median GET divided by median bare READ.
    pub get_p50_per_raw_read_p50: Option<f64>,
    /// Hits per lookup in the index cache.
    pub index_cache_hit_ratio: Option<f64>,
    /// Repeated reads by cause; null if the store does not count them.
    pub retries: Option<Retries>,
    /// Whether values were checked byte by byte.
    pub verify: bool,
    /// Values that were checked byte by byte and were right.
    pub verified: u64,
    /// Values that cannot be what was stored.
    pub wrong: u64,
    /// The harness's own cost per operation.
    pub null_ns_per_op: f64,
    /// Measured skew of the distribution.
    pub skew: Option<Skew>,
    /// By kind of operation. All kinds are there; those that the run did not use have `count` 0 and `latency_ns`
    /// null.
    pub ops: BTreeMap<&'static str, OpJson>,
    /// What else is known about the store.
    pub store: BTreeMap<&'static str, String>,
    /// What ended the run before its time.
    pub error: Option<String>,
    /// Where the times come from.
    pub clock: &'static str,
    /// With `compare`: throughput when every read needs the value of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial_throughput_ops_per_s: Option<f64>,
    /// Results of others in the same run, with `compare`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peers: Option<BTreeMap<&'static str, PeerJson>>,
    /// Round trips of PUTs, with `compare --puts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub puts: Option<PutsJson>,
}

/// One kind of operation.
#[derive(Debug, Serialize)]
pub struct OpJson {
    /// All operations of this kind.
    pub count: u64,
    /// Those whose key was not there.
    pub not_found: u64,
    /// Those that failed.
    pub errors: u64,
    /// Of those that succeeded; null if there were none, and so for every kind that the run did not use.
    pub latency_ns: Option<LatencyNs>,
    /// The same from the moment when the operation should have started; only with a target rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intended_latency_ns: Option<LatencyNs>,
}

/// Another contender of the same run.
#[derive(Debug, Serialize)]
pub struct PeerJson {
    /// Median over the rounds.
    pub throughput_ops_per_s: f64,
    /// The store's throughput divided by this one's, median over the rounds.
    pub ratio: f64,
    /// Smallest of these ratios.
    pub ratio_min: f64,
    /// Largest of these ratios.
    pub ratio_max: f64,
    /// Throughput when every read needs the value of the one before, median over the rounds.
    pub serial_throughput_ops_per_s: f64,
    /// The store's serial throughput divided by this one's, median over the rounds.
    pub serial_ratio: f64,
    /// Latency of sampled operations.
    pub latency_ns: Option<LatencyNs>,
}

/// Round trips of PUTs and of a cache line between two cores, medians over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PutsJson {
    /// Median PUT.
    pub p50_ns: f64,
    /// Mean PUT.
    pub mean_ns: f64,
    /// Median round trip of a cache line between two spinning threads; null on a machine with one core.
    pub ping_pong_p50_ns: Option<f64>,
    /// Its mean.
    pub ping_pong_mean_ns: Option<f64>,
    /// Median PUT divided by median ping-pong.
    pub ratio_p50: Option<f64>,
    /// Mean PUT divided by mean ping-pong.
    pub ratio_mean: Option<f64>,
}

impl OpJson {
    fn of(tally: &KindTally) -> Self {
        Self {
            count: tally.count(),
            not_found: tally.not_found,
            errors: tally.errors,
            latency_ns: LatencyNs::of(tally.service.histogram()),
            intended_latency_ns: tally.intended.as_ref().and_then(|all| LatencyNs::of(all.histogram())),
        }
    }
}

impl RunJson {
    /// The JSON of `report`.
    pub fn of(report: &Report<'_>) -> Self {
        let (plan, result) = (report.plan, report.result);
        let tally = &result.tally;
        let per_get = report.per_get();
        Self {
            schema: SCHEMA,
            workload: plan.workload.name,
            transport: report.transport.clone(),
            distribution: plan.workload.distribution.name(),
            threads: plan.threads,
            depth: plan.depth,
            batch: plan.batch,
            recordcount: plan.workload.records,
            value_bytes: plan.shape.value_bytes(),
            update_mode: plan.update_mode.name(),
            seed: plan.workload.seed,
            seconds: result.seconds,
            operations: tally.operations(),
            throughput_ops_per_s: result.throughput_ops_per_s(),
            target_ops_per_s: plan.target_ops_per_s,
            server_cpu_s: result.server_cpu_s,
            reads_per_get: per_get.map(|(reads, _)| reads),
            bytes_per_get: per_get.map(|(_, bytes)| bytes),
            raw_read_ns: report.raw_read(),
            get_p50_per_raw_read_p50: report.get_per_raw_read(),
            index_cache_hit_ratio: report.index_cache_hit_ratio(),
            retries: tally.counters.map(|counters| counters.retries),
            verify: plan.verify != Verify::Length,
            verified: tally.verified,
            wrong: tally.wrong,
            null_ns_per_op: report.null_ns_per_op,
            skew: report.skew,
            ops: OpKind::ALL.into_iter().map(|kind| (kind.name(), OpJson::of(tally.kind(kind)))).collect(),
            store: report.facts.iter().cloned().collect(),
            error: tally.fatal.as_ref().map(ToString::to_string),
            clock: report.clock,
            serial_throughput_ops_per_s: None,
            peers: None,
            puts: None,
        }
    }

    /// The text of the file, one object and a newline.
    pub fn to_text(&self) -> String {
        let mut text =
            serde_json::to_string_pretty(self).expect("only strings and numbers, no maps with other keys");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, report, result};
    use super::*;
    use crate::workload::mix::Workload;

    #[test]
    fn has_the_stable_names() {
        let (plan, result) = (plan(Workload::F), result());
        let text = RunJson::of(&report(&plan, &result)).to_text();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = serde_json::json!({
            "schema": "kv-bench/1", "workload": "f", "transport": "shm", "distribution": "zipfian",
            "threads": 1, "depth": 1, "seconds": 2.0, "operations": 10, "throughput_ops_per_s": 5.0,
            "server_cpu_s": 0.25, "reads_per_get": 1.5, "bytes_per_get": 100.0, "index_cache_hit_ratio": 0.9,
            "retries": {"torn": 1, "stale": 2, "dead": 3, "asked_server": 4},
            "verified": 0, "wrong": 0, "null_ns_per_op": 33.25,
        });
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&json[name], value, "{name}");
        }
        for kind in ["read", "update", "insert", "rmw"] {
            for name in ["count", "not_found", "errors", "latency_ns"] {
                assert!(json["ops"][kind].get(name).is_some(), "{kind} {name}");
            }
        }
        assert_eq!(json["ops"]["read"]["count"], 9);
        assert_eq!(json["ops"]["read"]["not_found"], 1);
        assert!(json["ops"]["update"]["latency_ns"].is_null());
        for name in ["min", "mean", "p50", "p90", "p99", "p99_9", "max"] {
            assert!(json["ops"]["read"]["latency_ns"][name].is_number(), "{name}");
        }
        assert!(json.get("peers").is_none());
        assert!(json["raw_read_ns"].is_null() && json["get_p50_per_raw_read_p50"].is_null());
        let mut result = result;
        result.tally.raw_read.record(3_200);
        let text = RunJson::of(&report(&plan, &result)).to_text();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(json["raw_read_ns"]["p50"].as_u64().unwrap().abs_diff(3_200) < 4);
        assert!((json["get_p50_per_raw_read_p50"].as_f64().unwrap() - 1.25).abs() < 0.01);
    }
}
