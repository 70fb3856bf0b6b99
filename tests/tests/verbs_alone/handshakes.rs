//! Connections by RDMA that fail half-way leave nothing, and nobody notices them.

use std::net::TcpStream;

use kv_client::{Client, Error};
use kv_common::endpoint::Address;
use kv_common::hello::{Answer, Hello, Wanted};
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::tcp::socket::connect;

use super::device;
use crate::live::server::{Site, Transport};
use crate::live::{PATIENCE, deadline, not_run, procfs, try_wait_for, value_of, wait_for};

/// A peer that said hello; it has the server's half.
fn invited(address: &Address) -> (TcpStream, Vec<u8>) {
    let stream = connect(address, deadline()).unwrap();
    send_hello(&stream, &Hello::ours(Wanted::Rdma).encode(), &[], deadline()).unwrap();
    let answer = Answer::decode(&receive_hello(&stream, 0, deadline()).unwrap().bytes).unwrap();
    assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
    let half = receive_hello(&stream, 0, deadline()).unwrap().bytes;
    (stream, half)
}

/// A client's half, made of the server's: the same port, and a queue pair that there is not.
pub(crate) fn half_of(server: &[u8]) -> Vec<u8> {
    let mut half = server.to_vec();
    half[0] = 2;
    half[24..28].copy_from_slice(&(1_u32 << 14).to_le_bytes());
    half[32..36].copy_from_slice(&0x00ff_fffe_u32.to_le_bytes());
    half
}

fn verdict(stream: &TcpStream) -> Vec<u8> {
    receive_hello(stream, 0, deadline()).unwrap().bytes
}

/// One connection that fails, in one of several ways.
fn fail(address: &Address, how: usize) {
    let (stream, half) = invited(address);
    match how % 4 {
        // It goes without a word.
        0 => {}
        1 => {
            send_hello(&stream, b"not what was asked for", &[], deadline()).unwrap();
            assert_eq!(verdict(&stream)[..8], [3, 0, 0, 0, 1, 0, 0, 0]);
        }
        2 => {
            // An MTU that is none.
            let mut half = half_of(&half);
            half[42] = 77;
            send_hello(&stream, &half, &[], deadline()).unwrap();
            assert_eq!(verdict(&stream)[..8], [3, 0, 0, 0, 1, 0, 0, 0]);
        }
        _ => {
            // The server connects to nobody, and learns that its client is gone.
            send_hello(&stream, &half_of(&half), &[], deadline()).unwrap();
            assert_eq!(verdict(&stream), [3, 0, 0, 0, 0, 0, 0, 0]);
        }
    }
}

/// An emulated machine takes 20 ms for each.
fn failures() -> usize {
    std::env::var("KV_TESTS_HANDSHAKES").map_or(2000, |count| count.parse().unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn failed_handshakes_leave_nothing() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    assert_failures_leave_nothing(&site, 400, failures(), |how| fail(&site.listen, how));
}

/// A server's client is not harmed by `count` connections that `fail` in one of several ways, and neither the server nor the
/// device has more than after the first ones.
pub(crate) fn assert_failures_leave_nothing(site: &Site, first: usize, count: usize, fail: impl Fn(usize)) {
    let server = site.serve();
    let mut client = site.connect(PATIENCE);
    client.put(b"key", &value_of(1, 100_000)).unwrap();
    // The first ones make what stays: receives for a few clients at once.
    for how in 0..first {
        fail(how);
    }
    let before = server.footprint_of_one(&mut client);
    wait_for("queue pairs of the first failures are gone", || is_alone().then_some(()));
    let (objects, resident) = (device::objects(), procfs::resident_bytes(server.pid()));
    for how in 0..count {
        fail(how);
    }
    server.wait_for_footprint(before, &mut client);
    if objects.is_none() {
        not_run("objects of the device", "there is no `rdma resource`");
    }
    let mut now = None;
    let is_as_before = || {
        now = device::objects();
        let pairs = now.iter().flatten().zip(objects.iter().flatten());
        // Memory for messages of some clients more may have been registered: it stays, for those to come.
        let is_few = |name: &str| if name == "mr" { 16 } else { 0 };
        let mut pairs = pairs.map(|((name, now), (_, then))| *now <= *then + is_few(name));
        pairs.all(|is_as_before| is_as_before).then_some(())
    };
    if try_wait_for(is_as_before).is_none() {
        panic!("{now:?} now, {objects:?} before");
    }
    let grown = procfs::resident_bytes(server.pid()).saturating_sub(resident);
    assert!(grown < 8 << 20, "{grown} bytes for {count} failures");
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, value_of(1, 100_000));
    client.put(b"key", b"value").unwrap();
    println!("{count} failed handshakes: {before:?}, {objects:?}, {grown} bytes more");
}

/// True if the one client and its server have the only queue pairs, or nobody knows.
fn is_alone() -> bool {
    let Some(objects) = device::objects() else { return true };
    objects.iter().any(|(name, count)| name == "qp" && *count <= 2 + system_pairs())
}

/// Queue pairs that the kernel has on each port for itself.
fn system_pairs() -> u64 {
    1
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    let url = format!("{}?device=no_such_device", site.url());
    let Err(Error::Connect { reason, .. }) = Client::connect(&url) else { panic!("connected") };
    assert!(reason.contains("no_such_device") && reason.contains("there are: "), "{reason}");
    let url = format!("{}?gid=250", site.url());
    let Err(Error::Connect { reason, .. }) = Client::connect(&url) else { panic!("connected") };
    assert!(reason.contains("no GID at index 250"), "{reason}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_choice_is_rdma_if_there_is_no_shared_memory() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    // Another file in the socket's place: the server is then not on this host, as far as a client can see.
    std::fs::rename(site.socket(), site.dir.path().join("elsewhere")).unwrap();
    let mut client = Client::connect(&format!("kv://{}", site.listen)).unwrap();
    assert_eq!(client.connection().transport, "verbs");
    assert!(client.connection().why.contains("both have RDMA"), "{}", client.connection().why);
    client.put(b"key", b"value").unwrap();
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"value");
}
