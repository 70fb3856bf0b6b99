//! `kv doctor` and `kv devices` on whatever host this is.

mod support;

use serde_json::Value;
use support::{Store, kv, run};

/// The findings by name of the check.
fn level<'a>(report: &'a Value, check: &str) -> Option<&'a str> {
    let findings = report["findings"].as_array().unwrap();
    findings.iter().find(|one| one["check"] == check).map(|one| one["level"].as_str().unwrap())
}

#[test]
fn a_server_that_is_there_passes() {
    let store = Store::new();
    let ran = store.kv(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    for check in ["server", "probe READ", "large READ"] {
        assert_eq!(level(&report, check), Some("ok"), "{check} in {report:#}");
    }
    for check in ["memlock", "hugepages", "rdma device"] {
        assert!(level(&report, check).is_some(), "{check} is missing in {report:#}");
    }
    let text = store.kv(&["doctor"]);
    assert!(text.text().contains("probe READ"), "{}", text.text());
    assert_eq!(text.code, ran.code, "both forms end the same");
}

#[test]
fn a_server_that_is_not_there_fails_with_the_remedy_and_everything_else_is_still_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("kv+shm://{}", dir.path().join("none.sock").display());
    let ran = run(kv().args(["doctor", "--json", "--url", &url]), b"");
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!(level(&report, "server"), Some("failed"));
    assert_eq!(level(&report, "large READ"), Some("skipped"));
    assert!(level(&report, "hugepages").is_some());
    let findings = report["findings"].as_array().unwrap();
    for one in findings.iter().filter(|one| one["level"] == "failed") {
        assert!(one["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{one}");
    }
}

#[cfg(feature = "verbs")]
#[test]
fn rdma_that_is_asked_for_and_not_there_is_a_failure_that_says_what_is_missing() {
    if !kv_common::verbs::devices().unwrap().is_empty() {
        // The tests on a device look at the rest.
        return;
    }
    let ran =
        run(kv().args(["doctor", "--json", "--url", "kv+rdma://127.0.0.1:1", "--timeout-ms", "500"]), b"");
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!(level(&report, "rdma device"), Some("failed"));
    let ran = run(kv().arg("devices"), b"");
    ran.assert(1, "RDMA device");
}
