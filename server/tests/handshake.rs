//! Peers that are no clients: silent, garbled, of another version, not permitted.

mod support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use kv_common::hello::{Answer, Hello, HelloRefusal, WELCOME_DESCRIPTORS, Wanted};
use kv_common::limits::{HANDSHAKE_TIMEOUT_NS, HANDSHAKES_MAX};
use kv_common::transport::handshake::receive_hello;
use kv_common::transport::shm::socket::connect;
use kv_common::wire::{Op, PROTOCOL_VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use support::{Peer, Site, deadline, knock, not_run, wait_for};

fn refusal_of(hello: &[u8], site: &Site) -> HelloRefusal {
    match knock(&site.socket(), hello).1 {
        Answer::Refused(refusal) => refusal,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn what_is_no_hello_of_this_version_is_refused_with_the_reason() {
    let site = Site::new();
    let server = site.serve(&[]);
    let client = PROTOCOL_VERSION + 1;
    let wrong = HelloRefusal::WrongVersion { server: PROTOCOL_VERSION, client };
    assert_eq!(refusal_of(&Hello { version: client, wanted: Wanted::Shm }.encode(), &site), wrong);
    assert_eq!(refusal_of(b"hello", &site), HelloRefusal::Garbage);
    assert_eq!(refusal_of(&[0; 4096], &site), HelloRefusal::Garbage);
    Peer::connect(&site.socket()).call(Op::Ping, b"", b"");
    let log = server.log();
    assert!(log.contains("turned a peer away") && log.contains("use programs of one release"), "{log}");
}

#[test]
fn random_bytes_are_refused_and_others_go_on() {
    let site = Site::new();
    let _server = site.serve(&[]);
    let mut peer = Peer::connect(&site.socket());
    // A multiplicative generator, so that a failure repeats itself.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..100 {
        let bytes: Vec<u8> = (0..round * 7)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        let mut stream = connect(&site.socket(), deadline()).unwrap();
        // The server may close before it has taken all.
        let _ = stream.write_all(&bytes);
        if bytes.len() >= 4 && u32::from_le_bytes(bytes[..4].try_into().unwrap()) > 4096 {
            let answer = receive_hello(&stream, WELCOME_DESCRIPTORS, deadline()).unwrap();
            assert_eq!(Answer::decode(&answer.bytes), Ok(Answer::Refused(HelloRefusal::Garbage)));
        }
        peer.call(Op::Ping, b"", b"");
    }
}

#[test]
fn silent_peers_keep_nobody_waiting_and_are_dropped() {
    let site = Site::new();
    let server = site.serve(&[]);
    let before = server.descriptors();
    let silent: Vec<_> = (0..200).map(|_| connect(&site.socket(), deadline()).unwrap()).collect();
    // Half a hello is as silent as none.
    for stream in silent.iter().step_by(2) {
        (&*stream).write_all(&[16, 0, 0]).unwrap();
    }
    wait_for("all are accepted", || (server.descriptors() >= before + 200).then_some(()));
    let mut peer = Peer::connect(&site.socket());
    peer.call(Op::Put, b"key", b"value");
    assert!(
        server.descriptors() > before + 200,
        "the good one was not kept waiting until the others were dropped"
    );
    for stream in &silent {
        let answer = receive_hello(stream, WELCOME_DESCRIPTORS, deadline()).unwrap();
        let answer = Answer::decode(&answer.bytes).unwrap();
        assert!(matches!(answer, Answer::Refused(HelloRefusal::TooLate { .. })), "{answer:?}");
    }
    drop(peer);
    wait_for("all descriptors are closed", || (server.descriptors() == before).then_some(()));
}

#[test]
fn more_silent_peers_than_there_are_places_keep_nobody_out() {
    let site = Site::new();
    let server = site.serve(&[]);
    let before = server.descriptors();
    let silent: Vec<_> = (0..300).map(|_| connect(&site.socket(), deadline()).unwrap()).collect();
    Peer::connect(&site.socket()).call(Op::Ping, b"", b"");
    // Of 301 peers, 256 could stay: so 45 had to go, the oldest, and the good one waited for none of the others.
    let (gone, waiting) = silent.split_at(300 + 1 - HANDSHAKES_MAX);
    let is_answered = |stream: &&UnixStream| {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(*stream, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    };
    assert_eq!(waiting.iter().filter(is_answered).count(), 0, "of those who may stay nobody is dropped");
    for stream in gone {
        let answer = receive_hello(stream, WELCOME_DESCRIPTORS, deadline()).unwrap();
        let answer = Answer::decode(&answer.bytes).unwrap();
        let Answer::Refused(HelloRefusal::TooLate { waited_ms }) = answer else { panic!("{answer:?}") };
        assert!(waited_ms * 1_000_000 < HANDSHAKE_TIMEOUT_NS, "dropped because others came");
    }
    drop(silent);
    wait_for("all descriptors are closed", || (server.descriptors() == before).then_some(()));
}

#[test]
fn a_thousand_failed_handshakes_leave_nothing() {
    let site = Site::new();
    let server = site.serve(&[]);
    let before = (server.descriptors(), server.channels());
    for round in 0..1000 {
        match round % 4 {
            0 => drop(connect(&site.socket(), deadline()).unwrap()),
            1 => assert_eq!(refusal_of(b"garbage", &site), HelloRefusal::Garbage),
            2 => {
                let _ = connect(&site.socket(), deadline()).unwrap().write_all(&[16, 0, 0, 0, b'K']);
            }
            _ => {
                // Gone before the welcome, or right after it.
                let mut stream = connect(&site.socket(), deadline()).unwrap();
                stream.write_all(&[&[16, 0, 0, 0], &Hello::ours(Wanted::Shm).encode()[..]].concat()).unwrap();
            }
        }
    }
    wait_for("descriptors and rings are as before", || {
        ((server.descriptors(), server.channels()) == before).then_some(())
    });
    Peer::connect(&site.socket()).call(Op::Ping, b"", b"");
    let log = server.log();
    assert!(log.lines().count() < 100, "complaints are rate-limited: {} lines", log.lines().count());
}

const OTHER_UID: u32 = 65534;
const SOCKET_OF_HELPER: &str = "KV_TEST_HELPER_SOCKET";
const EXPECTED_OF_HELPER: &str = "KV_TEST_HELPER_EXPECTED";

/// Not a test of its own: what `other_users_are_refused_unless_allowed` runs as another user.
#[test]
#[ignore = "run by another test, as another user"]
fn helper_knocks() {
    let Some(socket) = std::env::var_os(SOCKET_OF_HELPER) else { return };
    let answer = knock(socket.as_ref(), &Hello::ours(Wanted::Shm).encode()).1;
    let what = match answer {
        Answer::Welcome(_) => "welcome".to_owned(),
        Answer::Refused(refusal) => refusal.to_string(),
        Answer::Offer(_) => "offer".to_owned(),
    };
    assert_eq!(what, std::env::var(EXPECTED_OF_HELPER).unwrap());
}

#[test]
fn other_users_are_refused_unless_allowed() {
    if !rustix::process::geteuid().is_root() {
        return not_run("other_users_are_refused_unless_allowed", "only root can be another user");
    }
    let refused = format!(
        "user {OTHER_UID} may not connect; the server has to be started with --allow-uid {OTHER_UID}"
    );
    for (allowed, expected) in [("65534", "welcome"), ("any", "welcome"), ("12345", refused.as_str())] {
        let site = Site::new();
        let _server = site.serve(&["--allow-uid", allowed]);
        // The other user must reach the socket and this program.
        std::fs::set_permissions(site.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = site.path("helper");
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        let output = Command::new(&program)
            .args(["--ignored", "--exact", "helper_knocks"])
            .env(SOCKET_OF_HELPER, site.socket())
            .env(EXPECTED_OF_HELPER, expected)
            .uid(OTHER_UID)
            .gid(OTHER_UID)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{allowed}: {text}");
    }
    let site = Site::new();
    let _server = site.serve(&[]);
    let mode = std::fs::metadata(site.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "without --allow-uid nobody else can even open the socket");
}
