//! What becomes of peers that come by TCP: those who say hello, those who say something else, and those who say nothing.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use kv_common::hello::{Answer, Hello, HelloRefusal, SocketFile, WELCOME_DESCRIPTORS, Wanted};
use kv_common::limits::HANDSHAKES_MAX;
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::wire::PROTOCOL_VERSION;
use support::{PATIENCE, Server, Site, deadline, knock};

/// Where a server listens, from its readiness line.
fn address(server: &Server) -> SocketAddr {
    let listen = server.ready.split(' ').find_map(|word| word.strip_prefix("listen="));
    listen.expect("the line says where").parse().unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(address(server)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn answer_to(server: &Server, hello: &[u8]) -> (TcpStream, Answer) {
    let stream = connect(server);
    send_hello(&stream, hello, &[], deadline()).unwrap();
    let answer = receive_hello(&stream, 0, deadline()).unwrap();
    (stream, Answer::decode(&answer.bytes).unwrap())
}

fn is_closed(mut stream: TcpStream) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

#[test]
fn who_says_hello_is_welcomed_without_descriptors_and_rings() {
    let site = Site::new();
    let server = site.serve(&[]);
    let (_stream, answer) = answer_to(&server, &Hello::ours(Wanted::Tcp).encode());
    let Answer::Welcome(welcome) = answer else { panic!("{answer:?}") };
    assert_eq!((welcome.ring_bytes, welcome.server_pid), (0, server.pid()));
    assert!(welcome.session > 0 && welcome.staging_bytes >= 1 << 20 && welcome.region_bytes == 16 << 20);
}

#[test]
fn who_asks_is_told_what_there_is() {
    let site = Site::new();
    let server = site.serve(&["--max-clients", "1"]);
    let (_client, _) = answer_to(&server, &Hello::ours(Wanted::Tcp).encode());
    // Asking takes no client's place.
    let (stream, answer) = answer_to(&server, &Hello::ours(Wanted::Offer).encode());
    let Answer::Offer(offer) = answer else { panic!("{answer:?}") };
    assert_eq!(offer.socket, SocketFile::at(&site.socket()).unwrap());
    assert!(!offer.has_rdma && is_closed(stream));
    let (_, answer) = answer_to(&server, &Hello::ours(Wanted::Tcp).encode());
    assert_eq!(answer, Answer::Refused(HelloRefusal::TooManyClients { limit: 1 }));
}

#[test]
fn what_is_not_offered_on_a_socket_is_refused() {
    let site = Site::new();
    let server = site.serve(&[]);
    for wanted in [Wanted::Shm, Wanted::Rdma, Wanted::RdmaCm] {
        let (stream, answer) = answer_to(&server, &Hello::ours(wanted).encode());
        assert_eq!(answer, Answer::Refused(HelloRefusal::NotOffered { wanted }));
        assert!(is_closed(stream));
    }
    for wanted in [Wanted::Tcp, Wanted::Rdma, Wanted::RdmaCm, Wanted::Offer] {
        let (_, answer, _) = knock(&site.socket(), &Hello::ours(wanted).encode());
        assert_eq!(answer, Answer::Refused(HelloRefusal::NotOffered { wanted }));
    }
}

#[test]
fn what_is_no_hello_is_answered_with_the_reason_and_closed() {
    let site = Site::new();
    let server = site.serve(&[]);
    let refusal = |hello: &[u8]| match answer_to(&server, hello).1 {
        Answer::Refused(refusal) => refusal,
        answer => panic!("{answer:?}"),
    };
    let client = PROTOCOL_VERSION + 1;
    let wrong = HelloRefusal::WrongVersion { server: PROTOCOL_VERSION, client };
    assert_eq!(refusal(&Hello { version: client, wanted: Wanted::Tcp }.encode()), wrong);
    assert_eq!(refusal(b"hello"), HelloRefusal::Garbage);
    assert_eq!(refusal(&[0; 4096]), HelloRefusal::Garbage);
    // Other protocols announce a huge length; the answer arrives although more was sent than is read.
    for other in [&b"GET / HTTP/1.1\r\nHost: kv\r\n\r\n"[..], &[0xff; 20_000], &[0; 4]] {
        let mut stream = connect(&server);
        stream.write_all(other).unwrap();
        let answer = receive_hello(&stream, WELCOME_DESCRIPTORS, deadline()).unwrap();
        assert_eq!(Answer::decode(&answer.bytes), Ok(Answer::Refused(HelloRefusal::Garbage)));
        assert!(is_closed(stream));
    }
    assert!(server.log().contains("turned a peer away peer=127.0.0.1:"), "{}", server.log());
}

#[test]
fn peers_that_keep_silent_are_dropped_and_keep_nobody_out() {
    let site = Site::new();
    let server = site.serve(&["--allow-uid", "any"]);
    let silent: Vec<TcpStream> = (0..HANDSHAKES_MAX + 20).map(|_| connect(&server)).collect();
    // Also one that is slow, and one by the other socket.
    let mut slow = connect(&server);
    slow.write_all(&[16, 0, 0]).unwrap();
    let (_stream, answer) = answer_to(&server, &Hello::ours(Wanted::Tcp).encode());
    assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
    let (_stream, answer, _) = knock(&site.socket(), &Hello::ours(Wanted::Shm).encode());
    assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
    for stream in silent.into_iter().chain([slow]) {
        let answer = receive_hello(&stream, 0, deadline()).unwrap();
        let answer = Answer::decode(&answer.bytes).unwrap();
        assert!(matches!(answer, Answer::Refused(HelloRefusal::TooLate { .. })), "{answer:?}");
        assert!(is_closed(stream));
    }
}

#[test]
fn failed_handshakes_leave_no_descriptor() {
    let site = Site::new();
    let server = site.serve(&[]);
    let before = server.descriptors();
    for round in 0..2000 {
        let mut stream = connect(&server);
        match round % 4 {
            0 => {}
            1 => stream.write_all(&[0; 4]).unwrap(),
            2 => stream.write_all(&[16, 0, 0, 0, b'K']).unwrap(),
            _ => drop(answer_to(&server, &Hello::ours(Wanted::Rdma).encode())),
        }
    }
    support::wait_for("the descriptors of before", || (server.descriptors() <= before).then_some(()));
    assert!(matches!(answer_to(&server, &Hello::ours(Wanted::Tcp).encode()).1, Answer::Welcome(_)));
}

#[test]
fn other_addresses_than_loopback_are_warned_of_and_none_is_none() {
    let site = Site::new();
    let server = site.serve(&["--listen", "0.0.0.0:0"]);
    assert!(server.log().contains("there is no authentication yet"), "{}", server.log());
    let site = Site::new();
    let server = site.serve(&["--listen", "none"]);
    assert!(server.ready.contains(" listen=none "), "{}", server.ready);
    let site = Site::new();
    let server = site.serve(&[]);
    assert!(!server.log().contains("authentication"), "{}", server.log());
    // A port that is taken is an error that names the remedy.
    let other = Site::new();
    let taken = address(&server).to_string();
    let socket = other.socket();
    let flags = ["--memory", "16MiB", "--socket", socket.to_str().unwrap(), "--listen", &taken];
    let (code, _, error) = other.run(&flags);
    assert_eq!(code, Some(3));
    assert!(error.contains(&format!("{taken} is taken")) && error.contains("--listen HOST:PORT"), "{error}");
}
