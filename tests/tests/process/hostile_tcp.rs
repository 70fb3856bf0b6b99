//! Clients by TCP that do what the library never does, and the others, who must not notice.

use std::io::Write;
use std::net::Shutdown;

use kv_client::Refusal;
use kv_common::wire::{Malformed, Op, Reply, Status, Value};

use crate::live::bystander::{assert_unharmed, good};
use crate::live::server::Transport;
use crate::live::tcp_peer::{READ, READ_REPLY, REPLY, REQUEST, STAGE, TcpPeer, frame, words};
use crate::live::{Random, procfs, value_of};

#[test]
fn reads_are_answered_in_order_with_the_words_asked_for() {
    let (site, _server, _client) = good(Transport::Tcp, "32MiB");
    let mut peer = TcpPeer::connect(&site.listen);
    let last_word = peer.welcome.region_bytes / 8 - 1;
    let largest = (2 << 20) / 8;
    let reads = [(7, 0, 2), (8, last_word, 1), (9, 0, largest), (7, 5, 1), (u64::MAX, 0, 1)];
    let frames: Vec<u8> =
        reads.iter().flat_map(|&(token, at, len)| frame(READ, &words(&[token, at, len]))).collect();
    peer.send(&frames);
    for (token, at_word, len_words) in reads {
        let (kind, body) = peer.receive().unwrap();
        assert_eq!((kind, body.len() as u64), (READ_REPLY, 8 + 8 * len_words));
        assert_eq!(body[..8], token.to_le_bytes());
        if at_word == 0 {
            assert_eq!(&body[8..16], b"KVONESID", "a region begins with its magic");
        }
    }
}

/// Bytes that no server accepts, and what it says to them.
fn forgeries(peer: &mut TcpPeer) -> Vec<(&'static str, Malformed, Vec<u8>)> {
    let head = |body_bytes: u32, kind: u32| [body_bytes.to_le_bytes(), kind.to_le_bytes()].concat();
    let read = |at_word, len_words| frame(READ, &words(&[1, at_word, len_words]));
    let region_words = peer.welcome.region_bytes / 8;
    let area_words = peer.welcome.staging_bytes / 8;
    let mut other_session = peer.request(Op::Put, b"forged", Value::Inline(b"value"));
    other_session[8 + 8] ^= 1;
    let mut longer = peer.request(Op::Put, b"forged", Value::Inline(b"value"));
    longer.push(0);
    longer[0] += 1;
    let frames = [
        ("a kind that is none", head(24, 0)),
        ("a server's READ_REPLY", frame(READ_REPLY, &words(&[1, 2]))),
        ("a server's REPLY", frame(REPLY, &[0; 48])),
        ("an unknown kind", head(24, u32::MAX)),
        ("another protocol", b"GET / HTTP/1.1\r\nHost: kv\r\n\r\n".to_vec()),
        ("a short READ", frame(READ, &words(&[1, 2]))),
        ("a long READ", frame(READ, &words(&[1, 2, 3, 4]))),
        ("a request of four gigabytes", head(u32::MAX, REQUEST)),
        ("a request above the limit", head(16 * 1024 + 513, REQUEST)),
        ("a STAGE of four gigabytes", head(u32::MAX - 7, STAGE)),
        ("a STAGE of nothing", frame(STAGE, &words(&[0]))),
        ("a STAGE that is no words", frame(STAGE, &[0; 17])),
        ("a STAGE beyond the area", frame(STAGE, &words(&[area_words, 1]))),
        ("a STAGE far beyond the area", frame(STAGE, &words(&[u64::MAX, 1]))),
        ("a READ beyond the region", read(region_words, 1)),
        ("a READ across the region's end", read(region_words - 1, 2)),
        ("a READ far beyond the region", read(u64::MAX, 1)),
        ("a READ of everything", read(0, u64::MAX)),
        ("a READ of more than may be read at once", read(0, (2 << 20) / 8 + 1)),
        ("a READ of nothing", read(0, 0)),
    ];
    let frames = frames.into_iter().map(|(name, bytes)| (name, Malformed::Frame, bytes));
    let requests = [
        ("a request of nothing", Malformed::Short, frame(REQUEST, b"")),
        ("a truncated request", Malformed::Short, frame(REQUEST, &[0; 5])),
        ("a request of another session", Malformed::Session, other_session),
        ("a request that is longer than it says", Malformed::Length, longer),
    ];
    frames.chain(requests).collect()
}

#[test]
fn forged_and_truncated_frames_end_their_session_and_no_other() {
    let (site, server, mut client) = good(Transport::Tcp, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let count = forgeries(&mut TcpPeer::connect(&site.listen)).len();
    for round in 0..count {
        let mut peer = TcpPeer::connect(&site.listen);
        let (name, reason, bytes) = forgeries(&mut peer).swap_remove(round);
        // What came before it is answered, and what comes behind it is not looked at.
        let good = peer.request(Op::Ping, b"", Value::Inline(b""));
        let behind = peer.request(Op::Put, b"forged", Value::Inline(b"value"));
        peer.send(&[good, bytes, behind.repeat(2000)].concat());
        let statuses: Vec<Status> = std::iter::from_fn(|| {
            let (kind, body) = peer.receive()?;
            assert_eq!(kind, REPLY, "{name}");
            Some(Reply::decode(&body).unwrap().status)
        })
        .collect();
        assert_eq!(statuses, [Status::Done, Status::Refused(Refusal::Malformed { reason })], "{name}");
        assert_unharmed(&mut client, round as u64);
        assert_eq!(client.get(b"forged"), Ok(None), "{name}");
    }
    server.wait_for_footprint(before, &mut client);
}

#[test]
fn frames_that_never_end_wait_and_harm_nobody() {
    let (site, server, mut client) = good(Transport::Tcp, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let mut peers = Vec::new();
    for cut in [1, 4, 7, 8, 9, 31] {
        let mut peer = TcpPeer::connect(&site.listen);
        peer.send(&frame(READ, &words(&[1, 0, 1]))[..cut]);
        peers.push((cut, peer));
    }
    assert_unharmed(&mut client, 1);
    for (i, (cut, mut peer)) in peers.into_iter().enumerate() {
        match i % 3 {
            // The rest comes after all, byte by byte; or it never does.
            0 => {
                for &byte in &frame(READ, &words(&[1, 0, 1]))[cut..] {
                    peer.send(&[byte]);
                }
                assert_eq!(peer.receive().unwrap().0, READ_REPLY);
            }
            1 => peer.stream.shutdown(Shutdown::Write).unwrap(),
            _ => drop(peer),
        }
    }
    server.wait_for_footprint(before, &mut client);
    assert_unharmed(&mut client, 2);
}

#[test]
fn clients_that_never_read_their_replies_harm_nobody_and_cost_a_bounded_amount() {
    const DEAF: usize = 10;
    let (site, server, mut client) = good(Transport::Tcp, "32MiB");
    client.put(b"large", &value_of(1, 1 << 20)).unwrap();
    let before = server.footprint_of_one(&mut client);
    let resident_before = procfs::resident_bytes(server.pid());
    let mut deaf: Vec<TcpPeer> = (0..DEAF).map(|_| TcpPeer::connect(&site.listen)).collect();
    for round in 0..50 {
        for (i, peer) in deaf.iter_mut().enumerate() {
            peer.stream.set_nonblocking(true).unwrap();
            let frame = match i % 2 {
                0 => frame(READ, &words(&[1, 0, (2 << 20) / 8])),
                _ => peer.request(Op::Get, b"large", Value::Inline(b"")),
            };
            // As often as the connection takes it; a frame that it takes a part of is the last.
            while matches!(peer.stream.write(&frame), Ok(sent) if sent == frame.len()) {}
        }
        assert_unharmed(&mut client, round);
    }
    // What is unsent, the replies to one request on top of it, and the buffers of a connection.
    let bound = DEAF as u64 * (2 * (1 << 20) + (256 << 10)) + (4 << 20);
    let grown = procfs::resident_bytes(server.pid()).saturating_sub(resident_before);
    assert!(grown < bound, "{grown} bytes for {DEAF} clients, at most {bound} expected");
    drop(deaf);
    server.wait_for_footprint(before, &mut client);
    assert_unharmed(&mut client, 50);
}

#[test]
fn staged_values_that_are_not_what_was_announced_are_refused() {
    let (site, _server, mut client) = good(Transport::Tcp, "32MiB");
    let mut peer = TcpPeer::connect(&site.listen);
    let area_bytes = peer.welcome.staging_bytes;
    let mut refusal_of = |offset_bytes, len_bytes, hash| {
        let request = peer.request(Op::Put, b"forged", Value::Staged { offset_bytes, len_bytes, hash });
        peer.send(&request);
        let (_, body) = peer.receive().unwrap();
        match Reply::decode(&body).unwrap().status {
            Status::Refused(refusal) => refusal,
            status => panic!("{status:?}"),
        }
    };
    for (offset_bytes, len_bytes) in [(area_bytes, 1), (area_bytes - 8, 16), (u64::MAX, 1 << 20)] {
        let refusal = refusal_of(offset_bytes, len_bytes, 0);
        assert!(matches!(refusal, Refusal::StagedOutside { .. }), "{offset_bytes}: {refusal:?}");
    }
    assert!(matches!(refusal_of(0, 1 << 20, 1), Refusal::StagedChanged { .. }));
    // What was staged before it, in any pieces, is what it is compared with.
    let value = value_of(1, 20_000);
    let mut pieces = value.chunks(7992).enumerate().collect::<Vec<_>>();
    pieces.reverse();
    for (i, piece) in pieces {
        peer.send(&frame(STAGE, &[&words(&[i as u64 * 999]), piece].concat()));
    }
    let hash = kv_common::hash::payload_hash(&value);
    let value_at = Value::Staged { offset_bytes: 0, len_bytes: 20_000, hash };
    let request = peer.request(Op::Put, b"staged", value_at);
    peer.send(&request);
    assert_eq!(Reply::decode(&peer.receive().unwrap().1).unwrap().status, Status::Done);
    assert!(client.get(b"staged").unwrap().unwrap().bytes == value);
    assert_eq!(client.get(b"forged"), Ok(None));
}

#[test]
fn garbage_after_the_hello_harms_nobody() {
    let (site, server, mut client) = good(Transport::Tcp, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let mut random = Random::new(5);
    for round in 0..100 {
        let mut peer = TcpPeer::connect(&site.listen);
        let len_bytes = random.below(3000) as usize;
        let mut bytes = value_of(random.next(), len_bytes);
        if round % 2 == 0 && len_bytes >= 8 {
            // A head that is right, so that the garbage is a body.
            let kind = 1 + random.below(3) as u32;
            let body_bytes = if kind == READ { 24 } else { 8 * (2 + random.below(100)) as u32 };
            bytes[..8].copy_from_slice(&[body_bytes.to_le_bytes(), kind.to_le_bytes()].concat());
        }
        peer.send(&bytes);
        if round % 10 == 0 {
            assert_unharmed(&mut client, round);
        }
    }
    server.wait_for_footprint(before, &mut client);
    let lines = server.log().lines().count();
    assert!(lines < 60, "complaints are rate-limited: {lines} lines");
}
