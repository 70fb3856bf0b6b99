//! Which transport a client on another machine takes, and why.

use kv_client::Client;

use super::hand::on_two_machines;
use crate::live::programs::bench_report;

#[test]
#[ignore = "needs two machines with RDMA devices"]
fn the_choice_between_two_machines_is_rdma_and_says_why() {
    on_two_machines("choice", |hand| {
        let url = format!("kv://{}", hand.serve());
        let mut client = Client::connect(&url).unwrap();
        assert_eq!(client.transport(), "verbs");
        let why = client.connection().why.clone();
        assert!(why.contains("no shared memory") && why.contains("both have RDMA"), "{why}");
        client.put(b"key", b"value").unwrap();
        assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"value");

        let bench = |arguments: &[&str]| {
            bench_report(&url, &[arguments, &["--recordcount", "200", "--value-size", "100"]].concat())
        };
        bench(&["load"]);
        let report = bench(&["run", "--workload", "a", "--operationcount", "500", "--verify"]);
        assert_eq!((&report["transport"], &report["wrong"]), (&"verbs".into(), &0.into()), "{report}");
        assert_eq!(report["store"]["chosen_because"].as_str(), Some(why.as_str()), "{report}");
        println!("{why}");
    });
}
