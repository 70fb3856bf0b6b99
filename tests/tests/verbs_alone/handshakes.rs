//! Connections by RDMA that fail half-way leave nothing, and nobody notices them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use kv_client::{Client, Error};
use kv_common::endpoint::Address;
use kv_common::hello::{Answer, Hello, Wanted};
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::tcp::socket::connect;

use crate::live::server::{Site, Transport};
use crate::live::{PATIENCE, deadline, device, not_run, procfs, try_wait_for, value_of, wait_for};

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

/// What a server says to a peer that it turns away, to the end.
fn last_words(mut stream: TcpStream) -> Vec<u8> {
    let mut words = Vec::new();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // What it had not read yet resets the connection.
    match stream.read_to_end(&mut words) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => words,
    }
}

/// A name for people, and what is done.
type Failure = (&'static str, fn(&Address));

/// Ways in which a connection fails; the last five of them when the server has a queue pair for it.
const FAILURES: [Failure; 9] = [
    ("closed before a word", |address| drop(connect(address, deadline()).unwrap())),
    ("half a hello", |address| {
        let mut stream = connect(address, deadline()).unwrap();
        let mut hello = Vec::new();
        // As it goes over the wire.
        hello.extend_from_slice(&(Hello::ours(Wanted::Rdma).encode().len() as u32).to_le_bytes());
        hello.extend_from_slice(&Hello::ours(Wanted::Rdma).encode()[..8]);
        stream.write_all(&hello).unwrap();
    }),
    ("another protocol", |address| {
        let mut stream = connect(address, deadline()).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: kv\r\n\r\n").unwrap();
        let _ = last_words(stream);
    }),
    ("a hello of another version", |address| {
        let stream = connect(address, deadline()).unwrap();
        let mut hello = Hello::ours(Wanted::Rdma).encode();
        hello[8] ^= 0x7f;
        send_hello(&stream, &hello, &[], deadline()).unwrap();
        let answer = Answer::decode(&receive_hello(&stream, 0, deadline()).unwrap().bytes).unwrap();
        assert!(matches!(answer, Answer::Refused(_)), "{answer:?}");
    }),
    ("gone without a word", |address| drop(invited(address))),
    ("half of its half", |address| {
        let (mut stream, half) = invited(address);
        stream.write_all(&(half.len() as u32).to_le_bytes()).unwrap();
        stream.write_all(&half_of(&half)[..half.len() / 2]).unwrap();
    }),
    ("no half", |address| {
        let (stream, _) = invited(address);
        send_hello(&stream, b"not what was asked for", &[], deadline()).unwrap();
        assert_eq!(verdict(&stream)[..8], [3, 0, 0, 0, 1, 0, 0, 0]);
    }),
    ("an MTU that is none", |address| {
        let (stream, half) = invited(address);
        let mut half = half_of(&half);
        half[42] = 77;
        send_hello(&stream, &half, &[], deadline()).unwrap();
        assert_eq!(verdict(&stream)[..8], [3, 0, 0, 0, 1, 0, 0, 0]);
    }),
    ("connected to nobody", |address| {
        let (stream, half) = invited(address);
        send_hello(&stream, &half_of(&half), &[], deadline()).unwrap();
        assert_eq!(verdict(&stream), [3, 0, 0, 0, 0, 0, 0, 0]);
    }),
];

/// So many connections that fail, in all ways, several at once. The time that each way took, for people.
fn fail(address: &Address, count: usize) -> Vec<(&'static str, Duration)> {
    const AT_ONCE: usize = 4;
    let times = Mutex::new([Duration::ZERO; FAILURES.len()]);
    thread::scope(|scope| {
        for first in 0..AT_ONCE {
            let times = &times;
            scope.spawn(move || {
                for i in (first..count).step_by(AT_ONCE) {
                    let (how, began) = (i % FAILURES.len(), Instant::now());
                    FAILURES[how].1(address);
                    times.lock().unwrap()[how] += began.elapsed();
                }
            });
        }
    });
    let per_one = |time: Duration| time / (count / FAILURES.len()) as u32;
    FAILURES.iter().zip(times.into_inner().unwrap()).map(|((name, _), time)| (*name, per_one(time))).collect()
}

/// Fewer for development.
fn failures() -> usize {
    std::env::var("KV_TESTS_HANDSHAKES").map_or(10_000, |count| count.parse().unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn failed_handshakes_leave_nothing() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    assert_failures_leave_nothing(&site, 450, failures(), |count| {
        println!("each of a kind took {:?}", fail(&site.listen, count));
    });
}

/// A server's client is not harmed by `count` connections that fail, and neither the server nor the device has more than
/// after the first ones. `fail` makes so many of them, in all ways.
pub(crate) fn assert_failures_leave_nothing(site: &Site, first: usize, count: usize, fail: impl Fn(usize)) {
    let server = site.serve();
    let mut client = site.connect(PATIENCE);
    client.put(b"key", &value_of(1, 100_000)).unwrap();
    // The first ones make what stays: receives for a few clients at once.
    fail(first);
    let before = server.footprint_of_one(&mut client);
    wait_for("queue pairs of the first failures are gone", || is_alone().then_some(()));
    let (objects, resident) = (device::objects(), procfs::resident_bytes(server.pid()));
    let began = Instant::now();
    fail(count);
    println!("{count} failures took {:?}", began.elapsed());
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
