//! The `kv` command: what it prints, and its exit codes, which are a contract: 0 done, 1 not found or differs, 2 usage,
//! 3 no connection, 4 refused by the server.

mod support;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use support::{Store, bytes, config, kv, run};

const NO_ARGS: [&str; 0] = [];

#[test]
fn get_writes_exactly_the_bytes() {
    let store = Store::new();
    let mut client = store.client();
    let values =
        [&b""[..], b"text", b"line\n", b"\n", b"\0\xff\r\n\0", &bytes(1, 1 << 20)].map(<[u8]>::to_vec);
    for value in values {
        client.put(b"key", &value).unwrap();
        let ran = store.kv(&["get", "key"]);
        ran.assert(0, "");
        assert!(
            ran.out == value && ran.err.is_empty(),
            "{} bytes of {}: {}",
            ran.out.len(),
            value.len(),
            ran.err
        );
    }
    let ran = store.kv(&["get", "absent"]);
    assert_eq!((ran.code, ran.out.len()), (Some(1), 0));
}

#[test]
fn put_takes_a_value_from_the_command_line_a_file_or_standard_input() {
    let store = Store::new();
    let mut client = store.client();
    let first = store.kv(&["put", "key", "value"]).number();
    let found = client.get(b"key").unwrap().unwrap();
    assert_eq!((found.bytes.as_slice(), found.version), (&b"value"[..], first));
    let second = store.kv(&["put", "key", ""]).number();
    assert!(second > first);
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"");
    // Values and keys are bytes, not text.
    let odd = OsStr::from_bytes(b"\xff\n\xfe");
    store.kv(&[OsStr::new("put"), odd, odd]).number();
    assert_eq!(client.get(odd.as_bytes()).unwrap().unwrap().bytes, odd.as_bytes());
    for value in [bytes(2, 0), bytes(3, 100_000), bytes(4, 1 << 20)] {
        let path = store.dir.path().join("file");
        std::fs::write(&path, &value).unwrap();
        store.kv(&["put", "from file", "--file", path.to_str().unwrap()]).number();
        assert!(client.get(b"from file").unwrap().unwrap().bytes == value);
        store.kv_with(&["put", "from input", "--file", "-"], &value).number();
        assert!(client.get(b"from input").unwrap().unwrap().bytes == value);
    }
    store.kv(&["put", "key", "--", "--value"]).number();
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"--value");
}

#[test]
fn del_cas_and_exists_say_by_their_code_what_they_found() {
    let store = Store::new();
    store.kv(&["del", "key"]).assert(1, "");
    store.kv(&["exists", "key"]).assert(1, "");
    store.kv(&["cas", "key", "1", "value"]).assert(1, "");
    let first = store.kv(&["put", "key", "one"]).number();
    assert_eq!(store.kv(&["exists", "key"]).number(), first);
    let second = store.kv(&["cas", "key", &first.to_string(), "two"]).number();
    assert!(second > first);
    let ran = store.kv(&["cas", "key", &first.to_string(), "three"]);
    ran.assert(1, &second.to_string());
    assert_eq!(store.kv(&["get", "key"]).out, b"two");
    store.kv(&["del", "key"]).assert(0, "");
    store.kv(&["get", "key"]).assert(1, "");
    store.kv(&["cas", "key", &second.to_string(), "four"]).assert(1, "");
}

#[test]
fn conditions_counters_and_appends() {
    let store = Store::new();
    let first = store.kv(&["put", "key", "one", "--if-absent"]).number();
    store.kv(&["put", "key", "no", "--if-absent"]).assert(1, &format!("there, with version {first}"));
    store.kv(&["put", "absent", "no", "--if-present"]).assert(1, "");
    let second = store.kv(&["put", "key", "two", "--if-present"]).number();
    store.kv(&["put", "key", "no", "--if-version", &first.to_string()]).assert(1, &format!("is {second}"));
    let third = store.kv(&["put", "key", "three", "--if-version", &second.to_string()]).number();
    store.kv(&["delete", "key", "--if-version", &first.to_string()]).assert(1, &format!("is {third}"));
    assert_eq!(store.kv(&["get", "key"]).out, b"three");
    store.kv(&["append", "key", " and more", "--if-version", &first.to_string()]).assert(1, "");
    assert_eq!(store.kv(&["append", "key", " and more"]).out, b"14\n");
    assert_eq!(store.kv_with(&["append", "key", "--file", "-"], b"!").out, b"15\n");
    assert_eq!(store.kv(&["get", "key"]).out, b"three and more!");
    store.kv(&["add", "key"]).assert(4, "no counter");
    store.kv(&["del", "key"]).assert(0, "");
    assert_eq!(store.kv(&["add", "count"]).out, b"1\n");
    assert_eq!(store.kv(&["add", "count", "-8"]).out, b"-7\n");
    assert_eq!(store.kv(&["get", "count"]).out, b"-7");
    store.kv(&["add", "count", "1", "--if-absent"]).assert(1, "");
    store.kv(&["add", "absent", "1", "--if-present"]).assert(1, "");
    store.kv(&["add", "count", "-9223372036854775808"]).assert(4, "more than 64 bits");
    let shell = store.kv_with(&["shell"], b"add count 10\nadd count x\nappend count 0\nget count\n");
    assert_eq!(shell.out, b"3\nerror: add wants a key and a number of 64 bits with sign\n2 bytes\n30\n");
}

#[test]
fn times_to_live() {
    let store = Store::new();
    store.kv(&["ttl", "key"]).assert(1, "");
    store.kv(&["touch", "key", "5s"]).assert(1, "");
    let first = store.kv(&["put", "key", "value", "--ttl", "2h"]).number();
    let left = String::from_utf8(store.kv(&["ttl", "key"]).out).unwrap();
    let seconds: f64 = left.trim_end().strip_suffix('s').unwrap().parse().unwrap();
    assert!((7000.0..=7200.0).contains(&seconds), "{left}");
    assert!(store.kv(&["touch", "key"]).number() > first);
    assert_eq!(store.kv(&["ttl", "key"]).out, b"forever\n");
    let shell = store.kv_with(&["shell"], b"ttl key\nttl absent\ntouch absent 5s\ntouch key soon\n");
    assert_eq!(
        shell.text(),
        "forever\n(not found)\n(not found)\nerror: touch wants a key and a time, for instance 30s, or none\n"
    );
    store.kv(&["put", "key", "no", "--ttl", "0"]).assert(4, "a time to live of 0 ns");
    store.kv(&["touch", "key", "40000d"]).assert(4, "100 years");
    assert_eq!(store.kv(&["get", "key"]).out, b"value");
    store.kv(&["touch", "key", "1ms"]).assert(0, "");
    for _ in 0..1000 {
        if store.kv(&["get", "key"]).code == Some(1) {
            return store.kv(&["exists", "key"]).assert(1, "");
        }
    }
    panic!("it is over");
}

#[test]
fn wrong_usage_ends_with_2_and_a_reason() {
    let store = Store::new();
    let long_key = "k".repeat(1025);
    let file = store.dir.path().join("too large");
    std::fs::write(&file, vec![0; (1 << 20) + 1]).unwrap();
    let file = file.to_str().unwrap();
    let missing = store.dir.path().join("missing");
    let missing = missing.to_str().unwrap();
    for (args, reason) in [
        (&["frobnicate"][..], "frobnicate"),
        (&["get"], "<KEY>"),
        (&["get", "a", "b"], "unexpected argument"),
        (&["get", ""], "keys have 1 to 1024 bytes"),
        (&["get", &long_key], "the key has 1025 bytes"),
        (&["put", "", "value"], "keys have 1 to 1024 bytes"),
        (&["put", "key"], "<VALUE>"),
        (&["put", "key", "value", "--file", "-"], "cannot be used with"),
        (&["put", "key", "--file", missing], missing),
        (&["put", "key", "--file", file], "the value has 1048577 bytes"),
        (&["cas", "key", "one", "value"], "one"),
        (&["put", "key", "value", "--if-absent", "--if-present"], "cannot be used with"),
        (&["add", "key", "1.5"], "1.5"),
        (&["put", "key", "value", "--ttl", "soon"], "500ms, 30s, 2h"),
        (&["load", missing], missing),
        (&["verify", missing], missing),
        (&["--timeout-ms", "soon", "ping"], "soon"),
    ] {
        let ran = store.kv(args);
        ran.assert(2, reason);
        assert!(ran.out.is_empty(), "{args:?}");
    }
    run(kv().args(NO_ARGS), b"").assert(2, "Usage");
    for (url, reason) in [
        ("kv+pigeon://loft", "kv+shm:///path/of/socket"),
        ("kv+shm://relative", "three slashes"),
        ("nothing", "kv+shm:///path/of/socket"),
        ("", "kv+shm:///path/of/socket"),
    ] {
        run(kv().args(["--url", url, "ping"]), b"").assert(2, reason);
    }
    assert_eq!(store.client().server_stat().unwrap().counters["puts"], 0);
}

#[test]
fn the_server_is_found_by_flag_environment_or_default() {
    let (store, other) = (Store::new(), Store::new());
    store.client().put(b"which", b"store").unwrap();
    other.client().put(b"which", b"other").unwrap();
    assert_eq!(store.kv(&["get", "which"]).out, b"store");
    let url = other.url();
    assert_eq!(store.kv(&["--url", &url, "get", "which"]).out, b"other");
    assert_eq!(store.kv(&["get", "which", "--url", &url]).out, b"other");
    let path = other.dir.path().join("kv.sock");
    assert_eq!(run(kv().args(["get", "which", "--url"]).arg(path), b"").out, b"other");
    // The default socket is kv.sock in the user's runtime directory.
    let ran = run(kv().env("XDG_RUNTIME_DIR", store.dir.path()).args(["get", "which"]), b"");
    assert_eq!(ran.out, b"store");
}

#[test]
fn without_a_server_commands_end_with_3() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kv.sock");
    let url = format!("kv+shm://{}", socket.display());
    let commands: [&[&str]; 6] =
        [&["get", "key"], &["put", "key", "value"], &["ping"], &["stat"], &["shell"], &["load", "/"]];
    for args in commands {
        run(kv().args(["--url", &url]).args(args), b"").assert(3, "start kv-server");
    }
    // A socket that somebody left, and a file that is none.
    drop(UnixListener::bind(&socket).unwrap());
    run(kv().args(["--url", &url, "ping"]), b"").assert(3, "nobody listens");
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "mine").unwrap();
    run(kv().args(["--url", &url, "ping"]), b"").assert(3, "is not a server's socket");
    let too_long = format!("kv+shm:///{}", "x".repeat(200));
    run(kv().args(["--url", &too_long, "ping"]), b"").assert(2, "107");
}

#[test]
fn a_full_region_ends_with_4_and_names_itself() {
    let store = Store::with_memory(16 << 20);
    let mut client = store.client();
    for i in 0_u32.. {
        if client.put(i.to_string().as_bytes(), &[7; 500_000]).is_err() {
            break;
        }
    }
    store.kv(&["put", "key", "value"]).assert(4, "region full");
    store.kv(&["get", "key"]).assert(1, "");
    assert_eq!(store.kv(&["get", "0"]).out, [7; 500_000]);
    store.kv(&["del", "0"]).assert(0, "");
    store.kv_with(&["put", "key", "--file", "-"], &[8; 500_000]).number();
}

#[test]
fn stat_and_ping_answer() {
    let store = Store::new();
    store.client().put(b"key", b"value").unwrap();
    let ran = store.kv(&["stat", "--json"]);
    let stat: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!(stat["transport"], "shm");
    assert_eq!(stat["url"], store.url());
    assert_eq!(stat["server"]["server_pid"], std::process::id());
    assert_eq!(stat["server"]["region_bytes"], 32 << 20);
    assert_eq!(stat["server"]["counters"]["keys"], 1);
    assert_eq!(stat["server"]["counters"]["data_bytes"], 8);
    assert_eq!(stat["server"]["segments"]["blocks"], 1);
    let text = store.kv(&["stat"]);
    assert_eq!(text.code, Some(0));
    for row in ["transport ", "keys  ", "region ", "workers "] {
        assert!(text.text().lines().any(|line| line.starts_with(row)), "{row}: {}", text.text());
    }
    let ping = store.kv(&["ping"]);
    assert!(
        ping.code == Some(0) && ping.text().ends_with("us by shm (the URL names a Unix socket)\n"),
        "{}",
        ping.text()
    );
}

#[test]
fn a_shell_takes_commands_over_one_connection() {
    let store = Store::new();
    let script =
        b"put key a value with  spaces\nget key\n\nget absent\nexists key\nput empty\nget empty\ndel key\n\
        del key\nexists key\nget\nput \xff\xfe \xff\xfe\nget \xff\xfe\nfly away\nping\nhelp";
    let ran = store.kv_with(&["shell"], script);
    ran.assert(0, "");
    let lines: Vec<&[u8]> = ran.out.split(|&byte| byte == b'\n').collect();
    assert!(lines[0].starts_with(b"version "));
    assert_eq!(lines[1..4], [&b"a value with  spaces"[..], b"(not found)", b"yes"]);
    assert!(lines[4].starts_with(b"version "));
    assert_eq!(lines[5..8], [&b""[..], b"deleted", b"(not found)"]);
    assert_eq!(lines[8], b"no");
    assert!(lines[9].starts_with(b"error: the key is empty"));
    assert_eq!(lines[11], b"\xff\xfe");
    assert!(lines[12].starts_with(b"error: no command \"fly\""));
    assert!(lines[13].ends_with(b" us") && lines[14].starts_with(b"get KEY"));
    assert_eq!(lines.len(), 16);
    assert_eq!(store.client().get(b"empty").unwrap().unwrap().bytes, b"");
}

const SOCKET_OF_HELPER: &str = "KV_TEST_HELPER_SOCKET";

/// Not a test of its own: a server in a process that can be stopped.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn helper_serves() {
    let Some(socket) = std::env::var_os(SOCKET_OF_HELPER) else { return };
    let running = kv_server::start(config(socket.into(), 16 << 20)).unwrap();
    println!("@ready");
    // Until the parent ends it, or ends.
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(running);
}

/// A server in another process; killed when dropped.
struct Server(Child);

impl Server {
    fn start(socket: &std::path::Path) -> Server {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "helper_serves", "--nocapture"]).env(SOCKET_OF_HELPER, socket);
        let mut server = Server(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("@ready")), "the helper serves");
        server
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops all threads of the process, and returns when they have stopped.
    fn freeze(&self) {
        self.signal(Signal::STOP);
        let (_, status) = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_stopped_server_ends_commands_with_3_by_their_deadline_and_a_killed_one_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kv.sock");
    let server = Server::start(&socket);
    let mut shell = kv()
        .args(["--timeout-ms", "300", "shell", "--url"])
        .arg(&socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut answers) =
        (shell.stdin.take().unwrap(), BufReader::new(shell.stdout.take().unwrap()).lines());
    let mut ask = |line: &str| {
        writeln!(input, "{line}").unwrap();
        let mut answer = answers.next().unwrap().unwrap();
        // A check has several lines; the last one says what came of it.
        while line == "check" && !answer.starts_with("result") {
            assert!(!answer.starts_with("FINDING") && !answer.starts_with("not judged"), "{answer}");
            answer = answers.next().unwrap().unwrap();
        }
        answer
    };
    assert!(ask("put key value").starts_with("version "));
    server.freeze();
    let began = std::time::Instant::now();
    for args in [&["get", "key"][..], &["put", "key", "other"], &["stat"]] {
        run(kv().args(["--timeout-ms", "300", "--url"]).arg(&socket).args(args), b"")
            .assert(3, "no connection");
    }
    assert!(began.elapsed().as_millis() >= 3 * 300);
    // Who is connected reads on, and checks.
    assert_eq!(ask("get key"), "value");
    assert!(ask("check").ends_with(" sound"));
    assert!(ask("put key other").starts_with("error: the outcome of the write is unknown"));
    assert_eq!(ask("get key"), "value");
    server.signal(Signal::CONT);
    server.signal(Signal::KILL);
    let mut server = server;
    server.0.wait().unwrap();
    writeln!(input, "get key").unwrap();
    let ended = shell.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(3), "{}", String::from_utf8_lossy(&ended.stderr));
    run(kv().args(["get", "key", "--url"]).arg(&socket), b"").assert(3, "nobody listens");
}

#[test]
fn top_shows_what_the_server_publishes() {
    let store = Store::new();
    let mut client = store.client();
    for i in 0..7 {
        client.put(format!("key {i}").as_bytes(), &bytes(i, 4000)).unwrap();
    }
    let ran = store.kv(&["top", "--count", "2", "--interval", "0.1"]);
    ran.assert(0, "");
    let shown = String::from_utf8(ran.out).unwrap();
    let lines_of = |what: &str| shown.lines().filter(|line| line.starts_with(what)).count();
    assert_eq!(
        ["server", "state", "clients", "keys", "index", "rates", "map"].map(lines_of),
        [2; 7],
        "{shown}"
    );
    assert!(shown.contains("\nclients     2\nkeys        7, "), "{shown}");
    assert!(shown.contains("0 requests/s: 0 puts"), "{shown}");
    for interval in ["0", "nan", "-1", "1e9", "x"] {
        let arguments = format!("--interval={interval}");
        assert_eq!(store.kv(&["top", &arguments]).code, Some(2), "{interval}");
    }
}

#[test]
fn scan_prints_all_keys_and_clear_deletes_them() {
    let store = Store::new();
    let mut client = store.client();
    store.kv(&["scan"]).assert(0, "");
    for key in ["a/1", "a/2", "b/1"] {
        client.put(key.as_bytes(), b"value").unwrap();
    }
    let lines = |ran: &support::Ran, end: u8| {
        let mut keys: Vec<Vec<u8>> =
            ran.out.split(|&byte| byte == end).map(<[u8]>::to_vec).filter(|key| !key.is_empty()).collect();
        keys.sort();
        keys
    };
    assert_eq!(lines(&store.kv(&["scan"]), b'\n'), [&b"a/1"[..], b"a/2", b"b/1"]);
    assert_eq!(lines(&store.kv(&["scan", "--prefix", "a/", "-0"]), 0), [&b"a/1"[..], b"a/2"]);
    assert_eq!(store.kv(&["scan", "--count"]).number(), 3);
    assert_eq!(store.kv(&["scan", "--prefix", "c", "--count"]).number(), 0);
    assert_eq!(store.kv(&["clear"]).code, Some(2), "not without --yes");
    let cleared = store.kv(&["clear", "--yes"]);
    cleared.assert(0, "");
    assert_eq!(cleared.out, b"3 keys deleted\n");
    assert_eq!(store.kv(&["scan", "--count"]).number(), 0);
}
