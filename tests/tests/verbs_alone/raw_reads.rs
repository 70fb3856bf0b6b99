//! Bare READs between the GETs of a benchmark: on the same queue pair, in nobody's counters.

use serde_json::Value;

use crate::live::PATIENCE;
use crate::live::programs::bench_report;
use crate::live::server::{Site, Transport};

const GETS: u64 = 2000;

fn run(site: &Site, more: &[&str]) -> Value {
    let gets = GETS.to_string();
    let line = ["run", "--workload", "c", "--recordcount", "200", "--value-size", "1000", "--warm-index"];
    bench_report(&site.url(), &[&line[..], &["--operationcount", &gets, "--verify"], more].concat())
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_run_says_how_a_get_compares_with_a_bare_read() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    bench_report(&site.url(), &["load", "--recordcount", "200", "--value-size", "1000"]);

    let with = run(&site, &["--raw-every", "2"]);
    let (get, raw) = (&with["ops"]["read"]["latency_ns"], &with["raw_read_ns"]);
    let ratio = get["p50"].as_f64().unwrap() / raw["p50"].as_f64().unwrap();
    assert!((with["get_p50_per_raw_read_p50"].as_f64().unwrap() - ratio).abs() < 1e-9, "{with}");
    assert_eq!(with["reads_per_get"], 1.0, "bare READs are not counted: {with}");
    assert_eq!((&with["wrong"], &with["verified"]), (&0.into(), &GETS.into()));

    for without in [&["--raw-every", "0"][..], &["--depth", "8"], &["--batch", "8"]] {
        let run = run(&site, without);
        assert!(run["raw_read_ns"].is_null() && run["get_p50_per_raw_read_p50"].is_null(), "{run}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn bare_reads_mix_with_operations_and_change_nothing() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let mut server = site.serve();
    let mut client = site.connect(PATIENCE);
    let before = client.stats();
    for i in 0..200_u64 {
        client.put(&i.to_le_bytes(), &(!i).to_le_bytes()).unwrap();
        // Whatever the place and length: inside the region.
        for (at, bytes) in [(0, 0), (i * 999, 1), (u64::MAX - i, 4096), (1 << 40, usize::MAX)] {
            assert_eq!(client.raw_read(at, bytes), Ok(true));
        }
        let ticket = client.submit_get(&i.to_le_bytes()).unwrap();
        // The READ of a GET may be in flight now; then this one is not made.
        client.raw_read(0, 64).unwrap();
        let kv_client::Completion { ticket: ended, outcome } = client.wait().unwrap().unwrap();
        assert_eq!(ended, ticket);
        let kv_client::Outcome::Get(Ok(Some(value))) = outcome else { panic!("{outcome:?}") };
        assert_eq!(value.bytes, (!i).to_le_bytes());
    }
    let now = client.stats();
    assert_eq!(now.gets - before.gets, 200);
    assert!(now.reads - before.reads <= 3 * 200, "bare READs are not counted: {now:?}");
    server.kill();
    assert!(matches!(client.raw_read(0, 64), Err(kv_client::Error::Broken(_))));

    let tcp = Site::over(Transport::Tcp);
    let _server = tcp.serve();
    assert_eq!(tcp.connect(PATIENCE).raw_read(0, 64), Ok(false), "not over this transport");
}
