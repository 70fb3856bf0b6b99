//! `kv-bench raw` on a real (or soft-RoCE) device, as a user runs it: in one process, and in two.
#![cfg(feature = "verbs")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use kv_bench::raw::plan::{Connection, Measure, Operation, Test};
use kv_bench::raw::wire::{Ends, HEAD_BYTES, Message, decode_head};
use kv_common::verbs::{Endpoint, Gid, Mtu, RemoteMemory};

fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv-bench"));
    command.arg("raw").args(line.split_whitespace());
    command
}

fn raw(line: &str) -> Output {
    command(line).output().expect("the binary was built for this test")
}

/// False, and a loud note, if this machine has no device.
fn has_device(test: &str) -> bool {
    match kv_common::verbs::devices() {
        Ok(devices) if devices.is_empty() => {
            let why = kv_common::verbs::absence();
            eprintln!("\n*** NOT RUN: {test}: {why} ***\n");
            if let Some(path) = std::env::var_os("KV_TESTS_NOT_RUN") {
                let mut list = File::options().create(true).append(true).open(path).unwrap();
                writeln!(list, "{test}: no RDMA device: {why}").unwrap();
            }
            false
        }
        devices => {
            devices.unwrap();
            true
        }
    }
}

fn results(output: &Output) -> Vec<serde_json::Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "kv-bench-raw/1");
    json["results"].as_array().unwrap().clone()
}

/// What must be so whatever the machine's speed.
fn check(row: &serde_json::Value) {
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{row}"));
    if row["measure"] == "latency" {
        let ns = &row["latency_ns"];
        let points = ["min", "typical", "p99", "p99_9", "max"].map(|name| number(&ns[name]));
        assert!(points[0] > 0.0 && points.is_sorted(), "{row}");
        assert!(number(&ns["avg"]) >= points[0] && number(&ns["avg"]) <= points[4], "{row}");
        assert_eq!(row["half_round_trip"], row["operation"] != "read", "{row}");
    } else {
        let rates = &row["bandwidth"];
        let (peak, average) = (number(&rates["peak_bytes_per_s"]), number(&rates["average_bytes_per_s"]));
        assert!(average > 0.0 && peak >= average * 0.999, "{row}");
        let bytes = number(&rates["messages_per_s"]) * number(&row["bytes"]);
        assert!((bytes - average).abs() < 1e-6 * average, "{row}");
        if row["operation"] == "send" && row["connection"] == "rc" {
            assert_eq!(row["lost"], 0, "{row}");
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn every_operation_on_every_connection_that_has_it() {
    if !has_device("every_operation_on_every_connection_that_has_it") {
        return;
    }
    let ways =
        [("read", "rc"), ("write", "rc"), ("write", "uc"), ("send", "rc"), ("send", "uc"), ("send", "ud")];
    for (operation, connection) in ways {
        // One byte, not inline, and on connections more than one packet.
        let large = if connection == "ud" { "1000" } else { "20000" };
        let output = raw(&format!(
            "-o {operation} -c {connection} --size 1,64,{large} --iterations 40 --depth 8 --queue-pairs 2 --json -"
        ));
        let rows = results(&output);
        let found: Vec<_> =
            rows.iter().map(|row| (&row["measure"], row["bytes"].as_u64().unwrap())).collect();
        let (latency, bandwidth) = ("latency".into(), "bandwidth".into());
        let large = large.parse().unwrap();
        let expected: Vec<(&serde_json::Value, u64)> = [&latency, &bandwidth]
            .into_iter()
            .flat_map(|measure| [1, 64, large].map(|size| (measure, size)))
            .collect();
        assert_eq!(found, expected, "{operation} {connection}");
        for row in &rows {
            assert_eq!((&row["operation"], &row["connection"]), (&operation.into(), &connection.into()));
            assert_eq!(row["iterations"], 40);
            check(row);
        }
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn without_arguments_there_is_a_table_of_the_usual() {
    if !has_device("without_arguments_there_is_a_table_of_the_usual") {
        return;
    }
    let output = raw("--iterations 20");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "READ latency, RC, round trip",
        "WRITE latency, RC, half of a ping-pong",
        "SEND latency, RC, half of a ping-pong",
        "READ bandwidth, RC, 1 queue pair(s), 128 request(s) in flight",
        "t_typical[usec]",
        "MsgRate[Mpps]",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with(" 128 ")).count(), 4, "{text}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_this_device_does_not_have_is_refused() {
    if !has_device("what_this_device_does_not_have_is_refused") {
        return;
    }
    for (line, code, reason) in [
        ("-o send -c ud -s 5000", 2, "one packet"),
        ("-d mlx9_9", 4, "there is no RDMA device \"mlx9_9\"; there are: "),
        ("-x 200", 4, "no GID at index 200"),
        ("-i 77", 4, ":77"),
        ("--connect 127.0.0.1:1", 3, "--listen 127.0.0.1:1"),
        ("--connect nobody.invalid:1", 3, "nobody.invalid"),
        ("--listen 127.0.0.1:99999", 3, "cannot listen"),
    ] {
        let output = raw(line);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{line}: {errors}");
        assert!(errors.contains(reason), "{line}: {errors}");
    }
}

/// A process that listens, ended when this is dropped.
struct Listener {
    child: Child,
    errors: BufReader<std::process::ChildStderr>,
    address: String,
}

impl Listener {
    fn start() -> Listener {
        let mut child = command("--listen 127.0.0.1:0").stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Listener { child, errors, address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// How it ended, and what else it printed.
    fn end(mut self) -> (ExitStatus, String) {
        let mut text = String::new();
        self.errors.read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap(), text)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn two_processes_measure_and_strangers_are_turned_away() {
    if !has_device("two_processes_measure_and_strangers_are_turned_away") {
        return;
    }
    let listener = Listener::start();
    // Another program, one that ends at once, and one that begins a message and ends.
    listener.connect().write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    drop(listener.connect());
    listener.connect().write_all(b"kvr1\x01\0").unwrap();
    let output = raw(&format!("--connect {} --size 64,4KiB --iterations 30 --json -", listener.address));
    let rows = results(&output);
    assert_eq!(rows.len(), 8);
    rows.iter().for_each(check);
    let (status, text) = listener.end();
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(text.matches("still waiting").count(), 3, "{text}");
    assert!(text.contains("no `kv-bench raw` of this version"), "{text}");
    assert!(text.contains("8 measurement(s) for 127.0.0.1"), "{text}");
}

/// A peer whose numbers are of the right form and wrong gets a reason, and the listener ends.
#[test]
#[ignore = "needs an RDMA device"]
fn a_peer_that_lends_too_little_memory_is_refused() {
    if !has_device("a_peer_that_lends_too_little_memory_is_refused") {
        return;
    }
    let context = kv_common::verbs::Context::open(None).unwrap();
    let (port, _) = kv_common::verbs::LocalPort::choose(&context, 1, None, None).unwrap();
    let test = Test {
        operation: Operation::Write,
        connection: Connection::Rc,
        measure: Measure::Latency,
        size_bytes: 64,
        depth: 1,
        queue_pairs: 1,
        iterations: 10,
    };
    let endpoint = Endpoint {
        queue_pair: 0x1234,
        sequence: 5,
        lid: 0,
        gid: Gid(port.gid().gid.0),
        mtu: Mtu::B1024,
        reads_started_max: 1,
        reads_served_max: 1,
    };
    let ends =
        Ends { memory: RemoteMemory { address: 0x1000, len_bytes: 8, rkey: 1 }, endpoints: vec![endpoint] };
    let listener = Listener::start();
    let mut stream = listener.connect();
    stream.write_all(&Message::Setup(test, ends).to_frame()).unwrap();
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).unwrap();
    let (kind, len_bytes) = decode_head(&head).unwrap();
    let mut body = vec![0; len_bytes];
    stream.read_exact(&mut body).unwrap();
    let Message::Refused(text) = Message::decode(kind, &body).unwrap() else { panic!("not refused: {kind}") };
    assert!(text.contains("lends less memory"), "{text}");
    let (status, text) = listener.end();
    assert_eq!(status.code(), Some(4), "{text}");
}
