//! The binary as scripts use it: arguments, output, exit codes.

use std::process::{Command, Output};

fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv-bench"));
    command.args(line.split_whitespace()).env_remove("KV_URL");
    command
}

fn bench(line: &str) -> Output {
    command(line).output().expect("the binary was built for this test")
}

fn json(line: &str) -> serde_json::Value {
    let output = bench(&format!("{line} --json -"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{line}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[test]
fn every_workload_runs_verified_on_a_map() {
    for workload in ["a", "b", "c", "d", "f"] {
        for way in ["--depth 1", "--depth 16", "--batch 16", "--threads 3 --update-mode whole"] {
            let line = format!(
                "run --url mem:dashmap --workload {workload} --recordcount 1000 --operationcount 5003 --verify {way}"
            );
            let found = json(&line);
            assert_eq!(found["operations"], 5003, "{line}");
            assert_eq!(found["wrong"], 0, "{line}");
            assert!(found["verified"].as_u64().unwrap() > 2000, "{line}");
            let counts: u64 = ["read", "update", "insert", "rmw"]
                .iter()
                .map(|kind| found["ops"][kind]["count"].as_u64().unwrap())
                .sum();
            assert_eq!(counts, 5003, "{line}");
        }
    }
}

#[test]
fn output_has_the_lines_of_ycsb() {
    let output = bench("run --url mem:dashmap --workload f --recordcount 100 --operationcount 1000");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let value = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is not in\n{text}")).parse().unwrap()
    };
    assert!(value("[OVERALL], Throughput(ops/sec), ") > 0.0);
    // As in YCSB, a read-modify-write is also a read and an update.
    assert_eq!(value("[READ], Operations, "), 1000.0);
    assert_eq!(value("[UPDATE], Operations, "), value("[READ-MODIFY-WRITE], Operations, "));
    assert_eq!(value("[READ], Return=OK, "), 1000.0);
    assert!(text.contains("null store"));
}

#[test]
fn a_duration_ends_the_run() {
    let found = json("run --url mem:null --workload c --duration 100ms --warmup 10ms");
    let seconds = found["seconds"].as_f64().unwrap();
    assert!(seconds >= 0.1, "{seconds}");
    assert!(found["operations"].as_u64().unwrap() > 0);
}

#[test]
fn a_target_rate_reports_both_latencies() {
    let found = json("run --url mem:dashmap --workload c --operationcount 100 --target 10k");
    assert_eq!(found["target_ops_per_s"], 10_000.0);
    assert!(found["ops"]["read"]["intended_latency_ns"]["p99"].is_number());
    assert!(found["seconds"].as_f64().unwrap() >= 0.0099, "100 operations at 10,000 a second take 10 ms");
}

#[test]
fn load_stores_and_reads_back() {
    let found = json("load --url mem:dashmap --recordcount 3000 --value-size 1KiB --threads 2 --verify");
    assert_eq!(found["workload"], "load");
    assert_eq!(found["ops"]["insert"]["count"], 3000);
    assert_eq!((&found["verified"], &found["wrong"]), (&3000.into(), &0.into()));
}

#[test]
fn compare_prints_ratios_and_keeps_limits() {
    let line = "compare --url mem:dashmap --recordcount 2000 --rounds 7 --slice 2000 --floor-pages ordinary";
    for way in ["--puts", "--batch 16", "--threads 2"] {
        let found = json(&format!("{line} {way}"));
        for peer in ["dashmap", "floor"] {
            assert!(found["peers"][peer]["ratio"].as_f64().unwrap() > 0.0, "{way} {peer}");
            assert!(found["peers"][peer]["throughput_ops_per_s"].as_f64().unwrap() > 0.0, "{way} {peer}");
        }
        assert_eq!(found["wrong"], 0);
        assert_eq!(found["puts"].is_object(), way == "--puts");
    }
    let missed = bench(&format!("{line} --require dashmap=1000"));
    assert_eq!(missed.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&missed.stderr).contains("below the required 1000"));
    let reached = bench(&format!("{line} --require dashmap=0.001 --require floor=0.0001"));
    assert_eq!(reached.status.code(), Some(0));
}

#[test]
fn what_makes_no_sense_is_exit_code_2_with_the_reason() {
    for (line, reason) in [
        ("run --workload e --url mem:null", "no order"),
        ("run --workload z --url mem:null", "--workload"),
        ("run --workload a --url mem:null --threads 0", "--threads"),
        ("run --workload a --url gopher://x", "gopher://x"),
        ("run --workload a --url mem:null --verify", "stores nothing"),
        ("run --workload a --url mem:null --json /nonexistent/dir/out.json", "/nonexistent/dir/out.json"),
        ("run --workload a --url mem:null --value-size 64XB", "64XB"),
        ("compare --url mem:null", "stores nothing"),
        ("compare --url mem:dashmap --rounds 3", "--rounds"),
        ("raw --operation read --connection uc", "UC has no READ"),
        ("raw --operation write --connection ud", "UD has no WRITE"),
        ("raw --connection rc", "--operation"),
        ("raw --size 64,0", "--size"),
        ("raw --iterations 4", "--iterations"),
        ("raw --listen 127.0.0.1:0 --connect 127.0.0.1:1", "--connect"),
        ("raw --listen 127.0.0.1:0 --operation read", "--operation"),
        ("", "Usage"),
    ] {
        let output = bench(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {errors}");
        assert!(errors.contains(reason), "{line}: {errors}");
    }
}

#[test]
fn json_goes_to_a_file_and_replaces_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.json");
    std::fs::write(&path, "x".repeat(100_000)).unwrap();
    let line = format!("run --url mem:null --workload c --operationcount 10 --json {}", path.display());
    assert_eq!(bench(&line).status.code(), Some(0));
    let text = std::fs::read_to_string(&path).unwrap();
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["operations"], 10);
}

#[test]
fn a_full_standard_output_is_an_error_and_the_file_is_written_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.json");
    for json in ["-", path.to_str().unwrap()] {
        let line = format!("run --url mem:null --workload c --operationcount 10 --json {json}");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(&line).stdout(full).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{json}: {errors}");
        assert!(errors.contains("cannot write to standard output"), "{json}: {errors}");
    }
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(found["operations"], 10);
}

#[test]
fn a_full_standard_error_does_not_end_the_run() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let line = "run --url mem:null --workload c --operationcount 10";
    assert_eq!(command(line).stderr(full).output().unwrap().status.code(), Some(0));
}

#[test]
fn a_full_disk_still_shows_the_table() {
    let output = bench("run --url mem:null --workload c --operationcount 10 --json /dev/full");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/full"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("[OVERALL], Throughput(ops/sec), "));
}

#[test]
fn without_a_server_the_json_file_is_as_before() {
    let dir = tempfile::tempdir().unwrap();
    let (new, old) = (dir.path().join("new.json"), dir.path().join("old.json"));
    std::fs::write(&old, "an old result").unwrap();
    for command in ["run --workload c", "load", "compare"] {
        for path in [&new, &old] {
            let url = format!("kv+shm://{}/kv.sock", dir.path().display());
            let output = bench(&format!("{command} --url {url} --json {}", path.display()));
            assert_eq!(output.status.code(), Some(3), "{command}");
        }
        assert!(!new.exists(), "{command}");
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "an old result", "{command}");
    }
}

#[test]
fn what_does_not_fit_into_memory_is_refused() {
    let huge = "--url mem:dashmap --recordcount 1G --value-size 1MiB";
    for line in [format!("run --workload c {huge}"), format!("compare {huge}"), format!("load {huge}")] {
        let output = bench(&line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{line}: {errors}");
        assert!(errors.contains("--recordcount"), "{errors}");
    }
}

#[test]
fn no_server_is_exit_code_3() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("kv+shm://{}/kv.sock", dir.path().display());
    for command in ["run --workload c", "load", "compare"] {
        let output = bench(&format!("{command} --url {url}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{command}: {errors}");
        assert!(errors.contains(&url), "{command}: {errors}");
    }
}
