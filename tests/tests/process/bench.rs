//! `kv-bench` as a program: what its exit codes say, and what it compares with.

use crate::live::programs::{bench_report, run_kv_bench};
use crate::live::server::Site;

#[test]
fn exit_codes_tell_what_was_wrong() {
    let site = Site::new();
    let code = |arguments: &[&str]| run_kv_bench(&site.url(), arguments).status.code();
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
    let report = bench_report(&site.url(), &[&["compare", "--peer", "dashmap"], &few[..]].concat());
    for peer in ["dashmap", "floor"] {
        for figure in ["throughput_ops_per_s", "ratio"] {
            assert!(report["peers"][peer][figure].as_f64().unwrap() > 0.0, "{peer}.{figure}");
        }
    }
}
