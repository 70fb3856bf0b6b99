//! `kv-bench` against a real server: every value verified, and a report whose numbers add up.

use std::process::{Command, Output};

use serde_json::Value;

use crate::live::programs;
use crate::live::server::Site;

/// Names that users' scripts rely on.
const NAMES: [&str; 18] = [
    "schema",
    "workload",
    "transport",
    "distribution",
    "threads",
    "depth",
    "seconds",
    "operations",
    "throughput_ops_per_s",
    "server_cpu_s",
    "reads_per_get",
    "bytes_per_get",
    "index_cache_hit_ratio",
    "retries",
    "verified",
    "wrong",
    "null_ns_per_op",
    "ops",
];

fn kv_bench(site: &Site, arguments: &[&str]) -> Output {
    let run = Command::new(programs::kv_bench()).args(arguments).env("KV_URL", site.url()).output();
    run.expect("kv-bench can be run")
}

/// The JSON that a run prints, after it ended well.
fn report(site: &Site, arguments: &[&str]) -> Value {
    let output = kv_bench(site, &[arguments, &["--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object and nothing else")
}

#[test]
fn workloads_find_nothing_wrong_and_their_numbers_add_up() {
    let site = Site::new();
    let _server = site.serve();
    let size = ["--recordcount", "500", "--fieldlength", "20"];
    report(&site, &[&["load"], &size[..], &["--workload", "a"]].concat());
    for (workload, more) in [
        ("a", &["--threads", "2"][..]),
        ("b", &["--depth", "8"]),
        ("c", &["--batch", "16"]),
        ("d", &[]),
        ("f", &["--depth", "4", "--threads", "2"]),
    ] {
        let run = ["run", "--workload", workload, "--operationcount", "3001", "--verify"];
        let report = report(&site, &[&run[..], &size, more].concat());
        for name in NAMES {
            assert!(!report[name].is_null() || name == "server_cpu_s", "{workload}: {name} is missing");
        }
        for cause in ["torn", "stale", "dead", "asked_server"] {
            assert!(report["retries"][cause].is_u64(), "{workload}: retries.{cause}");
        }
        assert_eq!(report["operations"], 3001, "{workload}");
        assert_eq!(report["wrong"], 0, "{workload}");
        assert_eq!(report["transport"], "shm");
        let ops = ["read", "update", "insert", "rmw"].map(|op| &report["ops"][op]);
        assert_eq!(ops.iter().map(|op| op["count"].as_u64().unwrap()).sum::<u64>(), 3001, "{workload}");
        assert!(ops.iter().all(|op| op["errors"] == 0 && op["not_found"] == 0), "{workload}");
        let hit_ratio = report["index_cache_hit_ratio"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&hit_ratio), "{workload}: {hit_ratio}");
    }
}

#[test]
fn exit_codes_tell_what_was_wrong() {
    let site = Site::new();
    let code = |arguments: &[&str]| kv_bench(&site, arguments).status.code();
    assert_eq!(code(&["run", "--workload", "c"]), Some(3), "nobody serves");
    assert_eq!(code(&["run", "--workload", "e"]), Some(2), "a hash table has no ordered scan");
    let _server = site.serve();
    assert_eq!(code(&["run", "--workload", "c", "--operationcount", "10"]), Some(1), "nothing was loaded");
}

#[test]
fn a_comparison_names_its_peers() {
    let site = Site::new();
    let _server = site.serve();
    let few = ["--recordcount", "1000", "--value-size", "64", "--slice", "1000", "--rounds", "7"];
    let report = report(&site, &[&["compare", "--peer", "dashmap"], &few[..]].concat());
    for peer in ["dashmap", "floor"] {
        for figure in ["throughput_ops_per_s", "ratio"] {
            assert!(report["peers"][peer][figure].as_f64().unwrap() > 0.0, "{peer}.{figure}");
        }
    }
}
