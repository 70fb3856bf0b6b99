//! `kv devices` and `kv doctor` where there is a device.
#![cfg(feature = "verbs")]

mod support;

use serde_json::Value;
use support::{Store, kv, run};

#[test]
#[ignore = "needs an RDMA device"]
fn devices_shows_ports_and_marks_one_gid_of_each() {
    let ran = run(kv().args(["devices", "--json"]), b"");
    ran.assert(0, "");
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    let devices = report["devices"].as_array().unwrap();
    // The kernel's own list is the other source.
    let listed = std::fs::read_dir("/sys/class/infiniband").unwrap().count();
    assert_eq!(devices.len(), listed);
    for device in devices {
        let by = &device["connected_by"];
        let is_iwarp = device["protocol"] == "Iwarp";
        assert_eq!(
            *by,
            if is_iwarp { serde_json::json!(["rdma"]) } else { serde_json::json!(["tcp", "rdma"]) }
        );
    }
    for port in devices.iter().flat_map(|device| device["ports"].as_array().unwrap()) {
        let gids = port["gids"].as_array().unwrap();
        let chosen = gids.iter().filter(|gid| gid["chosen"] == true).count();
        assert_eq!(chosen, 1, "{port:#}");
        assert!(gids.iter().all(|gid| gid["why"].as_str().is_some_and(|why| !why.is_empty())), "{port:#}");
    }
    let text = run(kv().arg("devices"), b"");
    text.assert(0, "");
    assert!(text.text().contains("-> GID"), "{}", text.text());
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_gid_for_a_peer_is_the_one_whose_address_reaches_it() {
    let gids = |arguments: &[&str]| {
        let ran = run(kv().args(["devices", "--json"]).args(arguments), b"");
        ran.assert(0, "");
        serde_json::from_slice::<Value>(&ran.out).unwrap()["devices"][0]["ports"][0]["gids"].clone()
    };
    for gid in gids(&[]).as_array().unwrap() {
        // To reach itself, an address leaves from itself.
        let address = gid["gid"].as_str().unwrap().trim_start_matches("::ffff:").to_owned();
        if address.starts_with("fe80") {
            continue;
        }
        let for_peer = gids(&["--peer", &address]);
        let chosen = for_peer.as_array().unwrap().iter().find(|one| one["chosen"] == true).unwrap();
        assert_eq!(chosen["gid"], gid["gid"], "{for_peer:#}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn doctor_reads_from_the_device_to_itself() {
    let store = Store::new();
    let ran = store.kv(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    for check in ["rdma device", "max_mr_size", "port", "GID", "loopback READ", "rdma_cm"] {
        let finding = findings.iter().find(|one| one["check"] == check);
        assert_eq!(finding.map(|one| &one["level"]), Some(&Value::from("ok")), "{check} in {report:#}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn doctor_finds_the_way_that_rdma_cm_takes() {
    let dir = tempfile::tempdir().unwrap();
    let host = std::env::var("KV_RIG_ADDRESS").expect("the address of the device's interface");
    let running = kv_server::start(kv_server::config::Config {
        listen: Some(kv_common::endpoint::Address { host, port: 0 }),
        rdma: kv_server::config::RdmaChoice::On,
        ..support::config(dir.path().join("kv.sock"), 32 << 20)
    });
    let running = running.unwrap();
    let url = format!("kv+rdma://{}?cm=rdma", running.listen_address().unwrap());
    let ran = run(kv().args(["--url", &url, "doctor", "--json"]), b"");
    let report: Value = serde_json::from_slice(&ran.out).unwrap();
    let findings = report["findings"].as_array().unwrap();
    for (check, part) in [
        ("rdma_cm", "reaches"),
        ("server", "connected by rdma_cm, as asked"),
        ("probe READ", "64 bytes"),
        ("large READ", "65536 bytes"),
    ] {
        let finding = findings.iter().find(|one| one["check"] == check).unwrap();
        assert_eq!(finding["level"], "ok", "{report:#}");
        assert!(finding["found"].as_str().unwrap().contains(part), "{finding:#}");
    }
}
