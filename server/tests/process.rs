//! The `kv-server` command: options, readiness, signals, sockets.

mod support;

use kv_common::hello::{Answer, Hello, HelloRefusal, Wanted};
use kv_common::layout::superblock;
use kv_common::transport::shm::owner::OwnerState;
use kv_common::wire::{Op, Refusal, Reply, Status};
use rustix::process::Signal;
use support::{Peer, Server, Site, knock, wait_for};

#[test]
fn the_printed_configuration_can_be_fed_back() {
    let site = Site::new();
    let file = site.path("kv.toml");
    let args =
        ["--print-config", "--memory", "64GiB", "--workers", "3", "--allow-uid", "7", "--log-format", "json"];
    let (code, first, _) = site.run(&args);
    assert_eq!(code, Some(0));
    assert!(first.contains("memory = \"64GiB\"") && first.contains("# --memory"), "{first}");
    std::fs::write(&file, &first).unwrap();
    let (code, second, _) = site.run(&["--print-config", "--config", file.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split(" # ").next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(values(&first), values(&second));
    assert!(second.contains(&format!("# {}", file.display())), "{second}");
}

#[test]
fn wrong_options_end_with_code_2_and_a_reason() {
    let site = Site::new();
    let file = site.path("kv.toml");
    std::fs::write(&file, "max_client = 3\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, reason) in [
        (&["--memroy", "1GiB"][..], "--memory"),
        (&["--memory", "lots"], "expected a size as 64GiB"),
        (&["--memory", "4096"], "too small; expected 16MiB to 16TiB"),
        (&["--memory", "99TiB"], "too large; expected 16MiB to 16TiB"),
        (&["--memory", "64GB"], "did you mean 64GiB?"),
        (&["--workers", "0"], "expected a number from 1 to 64"),
        (&["--config", file], "unknown key \"max_client\"; did you mean max-clients?"),
        (&["--config", "/nonexistent/kv.toml"], "cannot read the configuration file"),
        (&["extra"], "unexpected argument"),
    ] {
        let (code, out, error) = site.run(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}");
        assert!(error.contains(reason), "{args:?}: {error}");
    }
    let output = site.command(&["--print-config"]).env("KV_MEMRY", "1GiB").output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("KV_MEMRY") && error.contains("did you mean KV_MEMORY?"), "{error}");
}

#[test]
fn rdma_that_cannot_be_had_ends_with_code_3_if_it_is_wanted() {
    let site = Site::new();
    for (args, reason) in [
        // With other devices and without any.
        (&["--rdma", "on", "--rdma-device", "no_such_device"][..], "RDMA"),
        (&["--rdma-device", "no_such_device"], "--rdma off does without"),
        (&["--rdma", "on", "--listen", "none"], "clients by RDMA say hello by TCP"),
    ] {
        let flags = site.flags();
        let own = if args.contains(&"--listen") { &flags[..6] } else { &flags };
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let (code, out, error) = site.run(&[&own, args].concat());
        assert_eq!((code, out.as_str()), (Some(3), ""), "{args:?}: {error}");
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn what_the_machine_does_not_have_ends_with_code_3() {
    let site = Site::new();
    let socket = site.socket();
    let socket = socket.to_str().unwrap();
    let (code, out, error) =
        site.run(&["--listen", "none", "--socket", socket, "--memory", "15TiB", "--hugepages", "off"]);
    assert_eq!((code, out.as_str()), (Some(3), ""));
    assert!(error.contains("no memory for the region") && error.contains("are available"), "{error}");
    let (code, _, error) =
        site.run(&["--listen", "none", "--socket", socket, "--memory", "15TiB", "--hugepages", "require"]);
    assert_eq!(code, Some(3));
    assert!(error.contains("missing; as root: sysctl vm.nr_hugepages="), "{error}");
    let (code, _, error) = site.run(&[
        "--listen",
        "none",
        "--socket",
        socket,
        "--memory",
        "16MiB",
        "--hugepages",
        "off",
        "--expected-keys",
        "9000000",
    ]);
    assert_eq!(code, Some(3));
    assert!(error.contains("more --memory or fewer --expected-keys"), "{error}");
    assert_eq!(std::fs::read_dir(site.dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn sockets_that_cannot_be_are_errors_with_code_3() {
    let site = Site::new();
    std::fs::write(site.path("file"), "mine").unwrap();
    let try_path = |path: &str| {
        let (code, _, error) =
            site.run(&["--memory", "16MiB", "--hugepages", "off", "--listen", "none", "--socket", path]);
        assert_eq!(code, Some(3), "{error}");
        error
    };
    let error = try_path(site.path("file").to_str().unwrap());
    assert!(error.contains("is not a socket; remove it or choose another path"), "{error}");
    assert_eq!(std::fs::read_to_string(site.path("file")).unwrap(), "mine");
    let error = try_path(site.path("missing/kv.sock").to_str().unwrap());
    assert!(error.contains("does not exist") && error.contains("create it first"), "{error}");
    let too_long = site.path(&"x".repeat(120));
    let (code, _, error) = site.run(&["--socket", too_long.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(error.contains("at most 107 are possible"), "{error}");
}

#[test]
fn the_readiness_line_says_where_and_how_much() {
    let site = Site::new();
    let server = site.serve(&[]);
    let listen = server.ready.split(' ').find_map(|word| word.strip_prefix("listen=")).unwrap();
    assert!(
        listen.starts_with("127.0.0.1:") && !listen.ends_with(":0"),
        "the port that the system chose: {listen}"
    );
    let expected = format!(
        "ready socket={} listen={listen} memory_bytes={} pid={}\n",
        site.socket().display(),
        16 << 20,
        server.pid()
    );
    assert_eq!(server.ready, expected);
    let log = server.log();
    for part in
        ["kv-server version=", "index_segments=1", "who=users 0", "value_max_bytes=67108864", "started"]
    {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert_eq!(log.matches("pages instead of hugepages").count(), 0, "nobody asked for hugepages");
}

#[test]
fn too_few_hugepages_are_said_once_with_the_command() {
    let site = Site::new();
    let socket = site.socket();
    let args = ["--memory", "16MiB", "--listen", "none", "--socket", socket.to_str().unwrap()];
    let server = Server::start(site.command(&args), &site.path("log"));
    let log = server.log();
    let warnings = log.matches("missing; as root: sysctl vm.nr_hugepages=").count();
    // This machine may happen to have eight.
    let has_hugepages = log.contains("pages=2 MiB hugepages");
    assert_eq!(warnings, usize::from(!has_hugepages), "{log}");
}

#[test]
fn logs_can_be_json() {
    let site = Site::new();
    let mut server = site.serve(&["--log-format", "json"]);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    for line in server.log().lines() {
        assert!(line.starts_with("{\"timestamp\":") && line.ends_with('}'), "{line}");
    }
}

#[test]
fn sigterm_and_sigint_end_an_idle_server_with_code_0_and_leave_nothing() {
    for signal in [Signal::TERM, Signal::INT] {
        let site = Site::new();
        let mut server = site.serve(&[]);
        assert!(site.socket().exists());
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
        let left: Vec<_> =
            std::fs::read_dir(site.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["log"], "socket and lock file are gone");
    }
}

#[test]
fn a_server_that_stops_answers_what_was_asked_and_tells_its_clients() {
    let site = Site::new();
    let mut server = site.serve(&[]);
    let mut peer = Peer::connect(&site.socket());
    peer.call(Op::Put, b"key", b"value");
    let region = peer.region.clone();
    server.signal(Signal::TERM);
    // Whatever comes before the end is answered: served or refused, in order, nothing else.
    let mut refused = 0;
    while peer.try_send(Op::Get, b"key", b"").is_ok() {
        let Some(reply) = peer.receive() else { break };
        let reply = Reply::decode(&reply).unwrap();
        assert_eq!(reply.seq, peer.seq);
        match reply.status {
            Status::Done => assert_eq!((reply.chunk, refused), (&b"value"[..], 0)),
            Status::Refused(Refusal::ShuttingDown) => refused += 1,
            status => panic!("{status:?}"),
        }
    }
    assert!(refused > 0, "a client that goes on asking is refused before the end");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert_eq!(OwnerState::load(&region, superblock::OWNER * 8), OwnerState::Died);
}

#[test]
fn a_client_that_does_not_read_delays_the_end_for_a_second_and_a_second_signal_ends_at_once() {
    for (signals, code) in [(1, 0), (2, 143)] {
        let site = Site::new();
        let mut server = site.serve(&[]);
        let mut peer = Peer::connect(&site.socket());
        peer.call(Op::Put, b"key", &[7; 8192]);
        // More replies than the ring has room for.
        for _ in 0..20 {
            peer.try_send(Op::Get, b"key", b"").unwrap();
        }
        server.signal(Signal::TERM);
        server.wait_for_log("stopping");
        if signals == 2 {
            server.signal(Signal::TERM);
        }
        assert_eq!(server.wait().code(), Some(code), "{}", server.log());
    }
}

#[test]
fn of_two_servers_on_one_socket_the_second_is_refused() {
    let site = Site::new();
    let mut server = site.serve(&[]);
    let flags = site.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (code, _, error) = site.run(&flags);
    assert_eq!(code, Some(3));
    let reason =
        format!("another server is running on {} (process {})", site.socket().display(), server.pid());
    assert!(error.contains(&reason), "{error}");
    Peer::connect(&site.socket()).call(Op::Ping, b"", b"");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn the_socket_of_a_killed_server_is_taken_over() {
    let site = Site::new();
    let mut server = site.serve(&[]);
    let peer = Peer::connect(&site.socket());
    server.signal(Signal::KILL);
    server.wait();
    assert_eq!(OwnerState::load(&peer.region, superblock::OWNER * 8), OwnerState::Died);
    peer.wait_for_end();
    assert!(site.socket().exists());
    let _server = site.serve(&[]);
    let successor = Peer::connect(&site.socket());
    assert_ne!(successor.welcome.incarnation, peer.welcome.incarnation);
    assert_ne!(successor.welcome.table_id, peer.welcome.table_id);
}

#[test]
fn the_limit_of_clients_holds_and_is_said() {
    let site = Site::new();
    let server = site.serve(&["--max-clients", "2"]);
    let peers = [Peer::connect(&site.socket()), Peer::connect(&site.socket())];
    let (_, answer, _) = knock(&site.socket(), &Hello::ours(Wanted::Shm).encode());
    assert_eq!(answer, Answer::Refused(HelloRefusal::TooManyClients { limit: 2 }));
    drop(peers);
    wait_for("the places are free again", || (server.channels() == 0).then_some(()));
    Peer::connect(&site.socket()).call(Op::Ping, b"", b"");
}
