//! `kv-bench` against a real server: every value verified, and a report whose numbers add up.

use crate::live::programs::bench_report;
use crate::live::server::{Site, Transport};

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

fn workloads_find_nothing_wrong_and_their_numbers_add_up(transport: Transport) {
    let site = Site::over(transport);
    let _server = site.serve();
    // By an emulated device each takes a millisecond or more.
    let operations: u64 = if transport.is_rdma() { 601 } else { 3001 };
    let size = ["--recordcount", "500", "--fieldlength", "20"];
    bench_report(&site.url(), &[&["load"], &size[..], &["--workload", "a"]].concat());
    for (workload, more) in [
        ("a", &["--threads", "2"][..]),
        ("b", &["--depth", "8"]),
        ("c", &["--batch", "16"]),
        ("d", &[]),
        ("f", &["--depth", "4", "--threads", "2"]),
    ] {
        let count = operations.to_string();
        let run = ["run", "--workload", workload, "--operationcount", &count, "--verify"];
        let report = bench_report(&site.url(), &[&run[..], &size, more].concat());
        for name in NAMES {
            assert!(!report[name].is_null() || name == "server_cpu_s", "{workload}: {name} is missing");
        }
        for cause in ["torn", "stale", "dead", "asked_server"] {
            assert!(report["retries"][cause].is_u64(), "{workload}: retries.{cause}");
        }
        assert_eq!(report["operations"], operations, "{workload}");
        assert_eq!(report["wrong"], 0, "{workload}");
        assert_eq!(report["transport"], transport.name());
        let why = report["store"]["chosen_because"].as_str().unwrap();
        assert!(why.contains("the URL names"), "{why}");
        let ops = ["read", "update", "insert", "rmw"].map(|op| &report["ops"][op]);
        assert_eq!(ops.iter().map(|op| op["count"].as_u64().unwrap()).sum::<u64>(), operations, "{workload}");
        assert!(ops.iter().all(|op| op["errors"] == 0 && op["not_found"] == 0), "{workload}");
        let hit_ratio = report["index_cache_hit_ratio"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&hit_ratio), "{workload}: {hit_ratio}");
    }
}

over_each_transport!(workloads_find_nothing_wrong_and_their_numbers_add_up);
