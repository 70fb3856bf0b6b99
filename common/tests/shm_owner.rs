//! The owner word tells clients that the server's process is gone, however it ended, on either kind of pages.
//!
//! The server is this test binary, started again: it makes a region, keeps its owner word, listens, and hands the region out.

mod support;

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kv_common::region::ReadWords;
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::shm::doorbell::{Doorbell, PeerGone};
use kv_common::transport::shm::mapping::{HUGEPAGE_BYTES, PagePolicy, create_region, map_region};
use kv_common::transport::shm::owner::{OwnerKeeper, OwnerState};
use kv_common::transport::shm::socket::{ConnectError, DEFAULT_MODE, Listener, connect};
use rustix::event::{PollFd, PollFlags, poll};
use support::Hugepages;

const SERVE: &str = "KV_TEST_SERVE";
/// Some place in the middle of a line of the region.
const OWNER_BYTE: usize = 4096 + 20;

/// How a server ends. The byte tells the server; none is needed for a kill.
#[derive(Clone, Copy, Debug)]
enum End {
    Killed,
    /// The keeper is dropped.
    Clean,
    /// `exit` while the keeper's thread runs.
    Exits,
    /// Another program takes the process.
    Execs,
}

const ENDS: [End; 4] = [End::Killed, End::Clean, End::Exits, End::Execs];

#[test]
fn every_end_is_marked_on_ordinary_pages() {
    for end in ENDS {
        observe(PagePolicy::Off, end);
    }
}

#[test]
fn every_end_is_marked_on_hugepages() {
    let Some(_pages) = Hugepages::take("every_end_is_marked_on_hugepages", 1) else { return };
    for end in ENDS {
        observe(PagePolicy::Require, end);
    }
}

/// As soon as nobody can connect any more, the word is marked. Many rounds, since it is about the order of two events.
#[test]
fn the_mark_comes_before_the_socket_refuses() {
    for _ in 0..30 {
        observe(PagePolicy::Off, End::Killed);
    }
}

fn observe(policy: PagePolicy, end: End) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("kv.sock");
    let mut server = start(&path, policy);
    let (region, bell) = region_of(&path, &mut server);
    assert_eq!(OwnerState::load(&region, OWNER_BYTE), OwnerState::Alive);
    match end {
        End::Killed => server.kill().unwrap(),
        End::Clean => server.stdin.take().unwrap().write_all(b"c").unwrap(),
        End::Exits => server.stdin.take().unwrap().write_all(b"e").unwrap(),
        End::Execs => server.stdin.take().unwrap().write_all(b"x").unwrap(),
    }
    if matches!(end, End::Execs) {
        // The process lives on; its descriptors are closed at the exec, after the threads are gone.
        assert_eq!(bell.wait(Duration::MAX), Err(PeerGone));
    } else {
        wait_until_refused(&path);
    }
    assert_eq!(OwnerState::load(&region, OWNER_BYTE), OwnerState::Died, "{end:?}");
    assert_eq!(region.load(0), 7, "the memory itself is still there");
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(bell.ring(), Err(PeerGone));
}

fn start(path: &Path, policy: PagePolicy) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server", "--nocapture", "--test-threads=1"])
        .env(SERVE, path)
        .env("KV_TEST_HUGE", if policy == PagePolicy::Require { "1" } else { "0" })
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Connects as soon as the server listens, and gets its region.
fn region_of(path: &Path, server: &mut Child) -> (ReadWords, Doorbell) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let stream = loop {
        match connect(path, deadline) {
            Ok(stream) => break stream,
            Err(ConnectError::NoServer { .. }) if Instant::now() < deadline => {
                assert!(server.try_wait().unwrap().is_none(), "the server ended early");
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    };
    let hello = receive_hello(&stream, 1, deadline).unwrap();
    let region = map_region(hello.descriptors[0].as_fd(), HUGEPAGE_BYTES).unwrap();
    (region, Doorbell::new(stream))
}

fn wait_until_refused(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while connect(path, deadline).is_ok() {
        assert!(Instant::now() < deadline, "the server did not end");
    }
}

/// The server's process; does nothing when the tests run as usual.
#[test]
fn server() {
    let Some(path) = std::env::var_os(SERVE) else { return };
    let policy =
        if std::env::var("KV_TEST_HUGE").unwrap() == "1" { PagePolicy::Require } else { PagePolicy::Off };
    let region = create_region(1, policy, &mut |_| ()).unwrap();
    region.words.store(0, 7);
    let keeper = OwnerKeeper::start(&region.words, OWNER_BYTE).unwrap();
    let listener = Listener::bind(Path::new(&path), DEFAULT_MODE).unwrap();
    let mut clients = Vec::new();
    let task = loop {
        let stdin = std::io::stdin();
        let mut ready = [PollFd::new(&listener, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
        poll(&mut ready, None).unwrap();
        if !ready[1].revents().is_empty() {
            let mut task = [0];
            rustix::io::read(&stdin, &mut task).unwrap();
            break task[0];
        }
        if let Some(accepted) = listener.accept().unwrap() {
            // Who only wants to know whether somebody listens does not wait for the answer.
            let deadline = Instant::now() + Duration::from_secs(60);
            let _ = send_hello(&accepted.stream, b"region", &[region.fd.as_fd()], deadline);
            clients.push(accepted.stream);
        }
    };
    match task {
        b'c' => {
            // The mapping goes first on purpose: the keeper must not need it from us.
            drop(region);
            drop(keeper);
        }
        b'x' => {
            use std::os::unix::process::CommandExt;
            let error = Command::new("sleep").arg("60").exec();
            panic!("{error}");
        }
        _ => std::process::exit(0),
    }
}
