//! Clients that misbehave, and those beside them that must not notice.

mod support;

use std::time::Duration;

use kv_common::layout::{Counter, superblock};
use kv_common::region::ReadWords;
use kv_common::wire::{Malformed, Op, Refusal, Reply, Request, Status, Value};
use support::{Peer, Server, Site, wait_for};

fn counter(region: &ReadWords, counter: Counter) -> u64 {
    let workers = region.load(superblock::WORKERS) as usize;
    (0..workers)
        .map(|worker| {
            region.load(superblock::COUNTERS + worker * superblock::COUNTER_WORDS + counter as usize)
        })
        .fold(0, u64::wrapping_add)
}

fn value_of(peer: &mut Peer, key: &[u8]) -> Vec<u8> {
    let reply = peer.call(Op::Get, key, b"");
    Reply::decode(&reply).unwrap().chunk.to_vec()
}

/// The reply that says why a session is over, and its end.
fn farewell(peer: &mut Peer) -> Malformed {
    let message = peer.receive().expect("the reason comes before the end");
    let reply = Reply::decode(&message).unwrap();
    let Status::Refused(Refusal::Malformed { reason }) = reply.status else { panic!("{reply:?}") };
    peer.wait_for_end();
    reason
}

#[test]
fn requests_of_many_clients_are_answered_each_with_its_own() {
    let site = Site::new();
    let _server = site.serve(&["--workers", "2"]);
    let mut peers: Vec<Peer> = (0..40).map(|_| Peer::connect(&site.socket())).collect();
    for round in 0..20_u8 {
        for (i, peer) in peers.iter_mut().enumerate() {
            peer.call(Op::Put, &[i as u8], &[round, i as u8]);
        }
        for (i, peer) in peers.iter_mut().enumerate() {
            assert_eq!(value_of(peer, &[i as u8]), [round, i as u8]);
        }
    }
    assert_eq!(counter(&peers[0].region, Counter::Sessions), 40);
    peers.drain(1..);
    wait_for("sessions follow", || (counter(&peers[0].region, Counter::Sessions) == 1).then_some(()));
    assert_eq!(value_of(&mut peers[0], &[39]), [19, 39], "what a client wrote outlives it");
}

#[test]
fn a_ring_that_is_broken_ends_its_session_and_no_other() {
    let site = Site::new();
    let server = site.serve(&[]);
    let (mut bad, mut good) = (Peer::connect(&site.socket()), Peer::connect(&site.socket()));
    bad.call(Op::Ping, b"", b"");
    // Records that no producer makes: out of sequence.
    bad.end.requests.try_push(&[b"skipped"]).unwrap();
    let (number, mut forger) = (bad.welcome.session, Peer::connect(&site.socket()));
    assert_ne!(number, forger.welcome.session);
    assert_eq!(farewell_after_wake(&mut bad), Malformed::Short);
    // A message of another session.
    let forged = Request::new(1, number, Op::Put, b"k", Value::Inline(b"v"));
    forger.end.requests.try_push(&forged.parts(&forged.header())).unwrap();
    assert_eq!(farewell_after_wake(&mut forger), Malformed::Session);
    good.call(Op::Put, b"key", b"value");
    assert_eq!(Reply::decode(&good.call(Op::Get, b"k", b"")).unwrap().status, Status::NotFound);
    let log = server.log();
    assert!(
        log.contains("closed a client that broke the protocol") && log.contains("shorter than its header"),
        "{log}"
    );
}

fn farewell_after_wake(peer: &mut Peer) -> Malformed {
    peer.wake_server();
    farewell(peer)
}

#[test]
fn arbitrary_messages_are_answered_or_end_their_session() {
    let site = Site::new();
    let _server = site.serve(&[]);
    let mut good = Peer::connect(&site.socket());
    good.call(Op::Put, b"key", b"value");
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 33
    };
    for _ in 0..200 {
        let mut bad = Peer::connect(&site.socket());
        let mut message: Vec<u8> = (0..random() % 80).map(|_| random() as u8).collect();
        if message.len() >= 32 && random() % 2 == 0 {
            // Plausible up to its lengths.
            message[8..16].copy_from_slice(&bad.welcome.session.to_le_bytes());
            message[24] = (random() % 6) as u8;
            message[25] = (random() % 2) as u8;
        }
        bad.end.requests.try_push(&[&message]).unwrap();
        bad.wake_server();
        let reply = bad.receive().expect("a reply, or the reason of the end");
        Reply::decode(&reply).unwrap();
        assert_eq!(value_of(&mut good, b"key"), b"value");
    }
}

#[test]
fn a_client_that_never_reads_costs_nothing_and_harms_nobody() {
    let site = Site::new();
    let server = site.serve(&[]);
    let mut deaf = Peer::connect(&site.socket());
    let mut good = Peer::connect(&site.socket());
    good.call(Op::Put, b"large", &[7; 8192]);
    // Fills the ring of replies, the outbox, then the ring of requests.
    let mut asked = 0;
    wait_for("its ring stays full", || match deaf.try_send(Op::Get, b"large", b"") {
        Ok(_) => {
            asked += 1;
            None
        }
        Err(_) => Some(()),
    });
    for i in 0..1000_u32 {
        good.call(Op::Put, b"key", &i.to_le_bytes());
    }
    // When it does read, every reply is there, in order.
    for seq in 1..=asked {
        let reply = deaf.receive().unwrap();
        let reply = Reply::decode(&reply).unwrap();
        assert_eq!((reply.seq, reply.status, reply.chunk), (seq, Status::Done, &[7; 8192][..]));
    }
    deaf.call(Op::Ping, b"", b"");
    drop(server);
}

#[test]
fn clients_that_vanish_leave_nothing() {
    let site = Site::new();
    let server = site.serve(&[]);
    let before = (server.descriptors(), server.channels());
    let mut good = Peer::connect(&site.socket());
    good.call(Op::Ping, b"", b"");
    for round in 0..200 {
        let mut peer = Peer::connect(&site.socket());
        for _ in 0..round % 20 {
            peer.try_send(Op::Put, b"key", &[1; 2000]).unwrap();
        }
        drop(peer);
    }
    let with_one = (before.0 + 1, before.1 + 1);
    wait_for("descriptors and rings of one client are left", || {
        ((server.descriptors(), server.channels()) == with_one).then_some(())
    });
    assert_eq!(counter(&good.region, Counter::Sessions), 1);
    good.call(Op::Ping, b"", b"");
}

#[test]
fn a_server_with_a_hundred_idle_clients_uses_next_to_no_processor() {
    let site = Site::new();
    let server = site.serve(&["--workers", "2"]);
    let mut peers: Vec<Peer> = (0..100).map(|_| Peer::connect(&site.socket())).collect();
    for peer in &mut peers {
        peer.call(Op::Ping, b"", b"");
    }
    let mut deaf = Peer::connect(&site.socket());
    deaf.call(Op::Put, b"large", &[7; 8192]);
    while deaf.try_send(Op::Get, b"large", b"").is_ok() {}
    let used = idle_cpu_time(&server);
    assert!(used <= Duration::from_millis(50), "{used:?} of processor time in a second of idleness");
    for peer in &mut peers {
        peer.call(Op::Ping, b"", b"");
    }
}

/// Processor time of the server over a second, after it came to rest.
fn idle_cpu_time(server: &Server) -> Duration {
    // There is no event for "has come to rest": a second in which little is used is the observation itself, and on a
    // busy machine the first may still see the end of the work before.
    (0..5)
        .map(|_| {
            let before = server.cpu_time();
            std::thread::sleep(Duration::from_secs(1));
            server.cpu_time() - before
        })
        .find(|used| *used <= Duration::from_millis(50))
        .unwrap_or(Duration::MAX)
}
