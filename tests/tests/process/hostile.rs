//! Clients that do what the library never does, and the others, who must not notice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kv_client::{Error, Refusal};
use kv_common::hash::KeyHash;
use kv_common::layout::superblock;
use kv_common::limits::{ANSWER_MAX_BYTES, OVERFLOW_CHAIN_MAX, REPLY_CHUNK_BYTES};
use kv_common::wire::{self, Malformed, Op, Reply, Request, Status};

use crate::live::bystander::{assert_unharmed, good};
use crate::live::peer::Peer;
use crate::live::server::Transport;
use crate::live::{PATIENCE, Random, procfs, value_of};

const WORD: usize = 8;
/// Where the request ring and the reply ring's control lines begin, as the channel's layout has it.
const REQUEST_RING: usize = 4096 / WORD;
const REPLY_PROGRESS: usize = 256 / WORD;

#[test]
fn a_large_value_is_answered_by_the_server_in_parts() {
    let (site, _server, mut client) = good(Transport::Shm, "32MiB");
    for len_bytes in
        [0, REPLY_CHUNK_BYTES, REPLY_CHUNK_BYTES + 1, ANSWER_MAX_BYTES, ANSWER_MAX_BYTES + 1, 1 << 21]
    {
        let value = value_of(1, len_bytes);
        let version = client.put(b"large", &value).unwrap();
        let mut peer = Peer::connect(&site.socket());
        let mut found = Vec::new();
        for answer in 1.. {
            // The client says how much it has already.
            let from = (found.len() as u64).to_le_bytes();
            let from = if found.is_empty() { &[][..] } else { &from };
            let seq = peer.try_send(Op::Get, b"large", from).unwrap();
            let (before, mut parts, mut has_more) = (found.len(), 0, true);
            while has_more {
                let message = peer.receive();
                let reply = Reply::decode(&message).unwrap();
                assert_eq!((reply.seq, reply.status, reply.version), (seq, Status::Done, version));
                assert_eq!(reply.total_bytes as usize, len_bytes);
                found.extend_from_slice(reply.chunk);
                (parts, has_more) = (parts + 1, reply.has_more);
            }
            let expected = (len_bytes - before).min(ANSWER_MAX_BYTES);
            assert_eq!(
                (found.len() - before, parts),
                (expected, expected.div_ceil(REPLY_CHUNK_BYTES).max(1))
            );
            if found.len() == len_bytes {
                assert_eq!(answer, len_bytes.div_ceil(ANSWER_MAX_BYTES).max(1));
                break;
            }
        }
        assert!(found == value);
        // From beyond the end there is nothing.
        let seq = peer.try_send(Op::Get, b"large", &u64::MAX.to_le_bytes()).unwrap();
        let message = peer.receive();
        let reply = Reply::decode(&message).unwrap();
        assert_eq!((reply.seq, reply.chunk, reply.total_bytes as usize), (seq, &b""[..], len_bytes));
    }
}

#[test]
fn an_upload_whose_client_dies_gives_its_memory_back() {
    let (site, server, mut client) = good(Transport::Shm, "64MiB");
    let before = server.footprint_of_one(&mut client);
    let keys = client.server_stat().unwrap().counters["keys"];
    for round in 1..=3 {
        let mut peer = Peer::connect(&site.socket());
        let done = |peer: &mut Peer, seq| {
            let message = peer.receive();
            let reply = Reply::decode(&message).unwrap();
            assert_eq!((reply.seq, reply.status), (seq, Status::Done));
        };
        let seq = peer.try_send(Op::PutBegin, b"large", &(40u64 << 20).to_le_bytes()).unwrap();
        done(&mut peer, seq);
        let seq = peer.try_send(Op::PutPart, b"", &[7; 8192]).unwrap();
        done(&mut peer, seq);
        // Nothing of that size fits beside it.
        let refused = client.put(b"other", &value_of(round, 20 << 20));
        assert!(matches!(refused, Err(Error::Refused(Refusal::NoRun { .. }))), "{refused:?}");
        drop(peer);
        server.wait_for_footprint(before, &mut client);
        let counters = client.server_stat().unwrap().counters;
        assert_eq!((counters["uploads_abandoned"], counters["keys"]), (round, keys));
        assert_eq!(client.get(b"large"), Ok(None));
        let value = value_of(round, 40 << 20);
        client.put(b"large", &value).unwrap();
        assert!(client.get(b"large").unwrap().unwrap().bytes == value);
        client.delete(b"large").unwrap();
    }
}

#[test]
fn clients_that_never_read_their_replies_harm_nobody_and_cost_a_bounded_amount() {
    const DEAF: usize = 10;
    let (site, server, mut client) = good(Transport::Shm, "32MiB");
    client.put(b"large", &value_of(1, 1 << 20)).unwrap();
    let before = server.footprint_of_one(&mut client);
    let resident_before = procfs::resident_bytes(server.pid());
    let mut deaf: Vec<Peer> = (0..DEAF).map(|_| Peer::connect(&site.socket())).collect();
    for round in 0..50 {
        for peer in &mut deaf {
            // As often as the ring takes it.
            while peer.try_send(Op::Get, b"large", b"").is_ok() {}
        }
        assert_unharmed(&mut client, round);
    }
    // Its whole channel, and the replies to one request that wait for it.
    let bound = DEAF as u64 * (deaf[0].layout.len_bytes() + 2 * ANSWER_MAX_BYTES as u64) + (4 << 20);
    let grown = procfs::resident_bytes(server.pid()).saturating_sub(resident_before);
    assert!(grown < bound, "{grown} bytes for {DEAF} clients, at most {bound} expected");
    drop(deaf);
    server.wait_for_footprint(before, &mut client);
    assert_unharmed(&mut client, 50);
}

/// Forges something in a fresh channel. What the server sees first, it must not accept.
type Forgery = fn(&mut Peer);

/// Stores a record at the start of the request ring, its header last.
fn forge_record(peer: &Peer, header: u64, payload: &[u64]) {
    peer.channel.copy_in(REQUEST_RING + 1, payload);
    peer.channel.store_release(REQUEST_RING, header);
}

const PRESENT: u64 = 1 << 31;

const FORGERIES: [(&str, Malformed, Forgery); 9] = [
    ("all bits of a header", Malformed::Ring, |peer| forge_record(peer, u64::MAX, &[])),
    ("one bit that no header has", Malformed::Ring, |peer| forge_record(peer, 8 | PRESENT | 1 << 24, &[0])),
    ("a header without its mark", Malformed::Ring, |peer| forge_record(peer, 8, &[0])),
    ("a sequence number ahead", Malformed::Ring, |peer| forge_record(peer, 1 << 32 | PRESENT | 8, &[0])),
    ("a length above the ring", Malformed::Ring, |peer| forge_record(peer, PRESENT | 0xff_ffff, &[0])),
    ("a message of nothing", Malformed::Short, |peer| forge_record(peer, PRESENT, &[])),
    ("a truncated message", Malformed::Short, |peer| forge_record(peer, PRESENT | 5, &[0])),
    ("a request that is longer than it says", Malformed::Length, |peer| {
        let request = peer_request(peer, wire::Value::Inline(b"value"));
        peer.end.requests.try_push(&[request.as_slice(), &[0; 8]]).unwrap();
    }),
    ("progress that nobody made", Malformed::Ring, |peer| {
        peer.channel.store_release(REPLY_PROGRESS, u64::MAX);
        // It shows when the ring of replies seems full.
        while peer.try_send(Op::Get, &4_u64.to_le_bytes(), b"").is_ok() {}
    }),
];

fn peer_request(peer: &Peer, value: wire::Value<'_>) -> Vec<u8> {
    let session = peer.welcome.session;
    let request = Request::new(1, session, Op::Put, b"forged", value);
    request.parts(&request.header()).concat()
}

#[test]
fn forged_and_truncated_messages_end_their_session_and_no_other() {
    let (site, server, mut client) = good(Transport::Shm, "32MiB");
    let before = server.footprint_of_one(&mut client);
    for (round, (name, reason, forge)) in FORGERIES.into_iter().enumerate() {
        let mut peer = Peer::connect(&site.socket());
        forge(&mut peer);
        peer.ring();
        peer.wait_for_end();
        if name != "progress that nobody made" {
            let message = peer.receive();
            let status = Reply::decode(&message).unwrap().status;
            assert_eq!(status, Status::Refused(Refusal::Malformed { reason }), "{name}");
        }
        assert_unharmed(&mut client, round as u64);
        assert_eq!(client.get(b"forged"), Ok(None), "{name}");
    }
    server.wait_for_footprint(before, &mut client);
}

#[test]
fn staged_values_that_are_not_what_was_announced_are_refused() {
    let (site, _server, mut client) = good(Transport::Shm, "32MiB");
    let mut peer = Peer::connect(&site.socket());
    let area_bytes = peer.layout.staging_bytes();
    let mut refusal_of = |offset_bytes, len_bytes, hash| {
        let request = peer_request(&peer, wire::Value::Staged { offset_bytes, len_bytes, hash });
        peer.end.requests.try_push(&[&request]).unwrap();
        peer.ring();
        let message = peer.receive();
        match Reply::decode(&message).unwrap().status {
            Status::Refused(refusal) => refusal,
            status => panic!("{status:?}"),
        }
    };
    for (offset_bytes, len_bytes) in
        [(area_bytes, 1), (area_bytes - 8, 16), (u64::MAX, 1 << 20), (u64::MAX - 7, 16)]
    {
        let refusal = refusal_of(offset_bytes, len_bytes, 0);
        assert!(matches!(refusal, Refusal::StagedOutside { .. }), "{offset_bytes}: {refusal:?}");
    }
    assert!(matches!(refusal_of(0, 1 << 20, 1), Refusal::StagedChanged { .. }));
    let too_large = Refusal::ValueTooLarge { found_bytes: (1 << 30) + 1, limit_bytes: 1 << 30 };
    assert_eq!(refusal_of(0, (1 << 30) + 1, 0), too_large);
    assert_eq!(client.get(b"forged"), Ok(None));
    assert_unharmed(&mut client, 1);
}

#[test]
fn garbage_scribbled_over_channels_harms_nobody() {
    let (site, server, mut client) = good(Transport::Shm, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let mut random = Random::new(3);
    for round in 0..60 {
        let mut peer = Peer::connect(&site.socket());
        let is_over = AtomicBool::new(false);
        let (channel, seed) = (peer.channel.clone(), random.next());
        thread::scope(|scope| {
            // Garbage in control lines, rings and staging area, while the server takes requests from there.
            scope.spawn(|| {
                let mut random = Random::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    let at = match random.below(4) {
                        0 => random.below(64),
                        1 => REQUEST_RING as u64 + random.below(200),
                        _ => random.below(channel.len_words() as u64),
                    };
                    let word = match random.below(3) {
                        0 => random.next(),
                        1 => PRESENT | random.below(1 << 15) | random.below(8) << 32,
                        _ => random.below(1 << 16),
                    };
                    channel.store(at as usize, word);
                }
            });
            for i in 0..20_u64 {
                let key = [b'g', i as u8];
                if peer.try_send([Op::Put, Op::Get, Op::Delete][i as usize % 3], &key, &[]).is_err() {
                    break;
                }
                peer.ring();
            }
            assert_unharmed(&mut client, round);
            is_over.store(true, Ordering::Relaxed);
        });
    }
    server.wait_for_footprint(before, &mut client);
    let lines = server.log().lines().count();
    assert!(lines < 60, "complaints are rate-limited: {lines} lines");
}

#[test]
fn keys_chosen_to_share_a_home_are_refused_and_others_are_not() {
    let (site, _server, mut client) = good(Transport::Shm, "32MiB");
    // The seed is known to every client.
    let seed = Peer::connect(&site.socket()).region.load(superblock::HASH_SEED);
    let home = KeyHash::new(seed, b"victim").home();
    let mut chosen = (0_u64..).map(u64::to_le_bytes).filter(|key| KeyHash::new(seed, key).home() == home);
    client.put(b"victim", b"value").unwrap();
    let mut stored = Vec::new();
    let error = loop {
        let key = chosen.next().unwrap();
        match client.put(&key, &key) {
            Ok(_) => stored.push(key),
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::Refused(Refusal::HomeFull { chain_lines: OVERFLOW_CHAIN_MAX as u64 }));
    assert!(stored.len() >= 7 * OVERFLOW_CHAIN_MAX, "{} keys", stored.len());
    let mut other = site.connect(PATIENCE);
    for key in &stored {
        assert_eq!(other.get(key).unwrap().unwrap().bytes, key);
    }
    assert_eq!(other.get(&chosen.next().unwrap()), Ok(None));
    assert_eq!(other.get(b"victim").unwrap().unwrap().bytes, b"value");
    assert_unharmed(&mut other, 1);
    client.delete(&stored[0]).unwrap();
    client.put(&chosen.next().unwrap(), b"value").unwrap();
}
