//! What a GET costs, in READs of the region.

use kv_client::{Client, GetMode, Options, Outcome, Stats};

use crate::live::server::{Live, Needs, Start};

/// As many keys as one index segment, which has 32,768 lines of seven slots, holds without a split.
const KEYS: u64 = 32_768 * 7 * 58 / 100;

/// 24 bytes, as many keys in practice have.
fn key_of(i: u64) -> [u8; 24] {
    let mut key = *b"user-0000000000000000000";
    key[8..16].copy_from_slice(&i.to_le_bytes());
    key
}

fn load(server: &Live) {
    let mut client = server.connect_for_setup();
    for i in 0..KEYS {
        client.submit_put(&key_of(i), &i.to_le_bytes()).unwrap();
        while client.pending() >= 256 {
            let done = client.wait().unwrap().unwrap();
            assert!(matches!(done.outcome, Outcome::Put(Ok(_))), "{:?}", done.outcome);
        }
    }
    while client.wait().unwrap().is_some() {}
}

/// GETs of keys in an order that is not that of their lines.
fn get_all(client: &mut Client, step: usize) -> Stats {
    let before = client.stats();
    for i in (0..KEYS).step_by(step) {
        let found = client.get_with(&key_of(i), |bytes, _| bytes == i.to_le_bytes()).unwrap();
        assert_eq!(found, Some(true), "key {i}");
    }
    let after = client.stats();
    Stats {
        gets: after.gets - before.gets,
        reads: after.reads - before.reads,
        read_bytes: after.read_bytes - before.read_bytes,
        other_keys: after.other_keys - before.other_keys,
        index_cache_hits: after.index_cache_hits - before.index_cache_hits,
        ..after
    }
}

pub(crate) fn warm_gets_take_one_read_and_cold_ones_two(start: Start) {
    let server = start(Needs { memory: "24MiB", expected_keys: KEYS, ..Needs::default() });
    load(&server);
    let mut warm = server.connect();
    assert_eq!(warm.server_stat().unwrap().segments.index, 1);
    let filled = warm.warm_up().unwrap();
    assert!(filled.is_complete && filled.lines == 32_768, "{filled:?}");
    let stats = get_all(&mut warm, server.one_in);
    assert_eq!(stats.gets, KEYS.div_ceil(server.one_in as u64));
    assert_eq!((stats.asked_server, stats.retries_torn, stats.retries_dead), (0, 0, 0));
    // A second READ only where the fingerprint of 16 bits was another key's too.
    let more = stats.reads - stats.gets;
    assert!(stats.retries_stale <= stats.other_keys);
    // Or where this process was stopped for so long that it had to start over.
    let allowed = 2 * stats.other_keys + stats.leases_expired;
    assert!(more <= allowed, "{more} READs beside one per GET, {} other keys", stats.other_keys);
    assert_eq!(format!("{:.2}", stats.reads as f64 / stats.gets as f64), "1.00");
    // Block of 56 bytes in a class of 64.
    assert!(stats.read_bytes < stats.gets * 65, "{} bytes", stats.read_bytes);

    // A cache of one line: each GET finds nothing in it.
    let mut cold = server.connect_with(&Options { index_cache_bytes: 64, ..Options::default() });
    let stats = get_all(&mut cold, 3 * server.one_in);
    let reads_per_get = stats.reads as f64 / stats.gets as f64;
    assert!((2.0..=2.02).contains(&reads_per_get), "{reads_per_get} READs per GET");
    assert_eq!(stats.asked_server, 0);

    // Half a cache is used for what it holds, and believed in nothing.
    let mut half = server.connect_with(&Options { index_cache_bytes: 1 << 20, ..Options::default() });
    assert!(!half.warm_up().unwrap().is_complete);
    let stats = get_all(&mut half, 3 * server.one_in);
    let reads_per_get = stats.reads as f64 / stats.gets as f64;
    assert!((1.0..=2.02).contains(&reads_per_get), "{reads_per_get} READs per GET");
    let counters = cold.server_stat().unwrap().counters;
    assert_eq!((counters["gets_by_server"], counters["keys"]), (0, KEYS));
}

pub(crate) fn hits_and_misses_are_counted(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    for i in 0..100 {
        client.put(&key_of(i), b"value").unwrap();
    }
    for i in 0..300 {
        assert_eq!(client.exists(&key_of(i)), Ok(i < 100));
    }
    let stats = client.stats();
    assert_eq!((stats.gets, stats.hits, stats.misses, stats.writes), (300, 100, 200, 100));
    assert_eq!((stats.asked_server, stats.timeouts), (0, 0));
    assert!(stats.reads >= 300 && stats.index_cache_bytes > 0 && stats.index_cache_lookups == 300);
    // A writer's own cache follows its writes: one READ each.
    for i in 0..100 {
        client.put(&key_of(i), b"another value of another size").unwrap();
    }
    let before = client.stats();
    for i in 0..100 {
        assert_eq!(client.exists(&key_of(i)), Ok(true));
    }
    let after = client.stats();
    assert_eq!(after.reads - before.reads, 100 + after.other_keys - before.other_keys);
}

/// GETs that the server answers, by a client that was told so: the same answers, and no READ.
pub(crate) fn gets_by_the_server_read_nothing(start: Start) {
    let server = start(Needs::default());
    let options = Options { get_mode: GetMode::Server, ..Options::default() };
    let (mut client, mut other) = (server.connect_with(&options), server.connect());
    client.put(b"key", b"value").unwrap();
    other.put(b"large", &[7; 100_000]).unwrap();
    let reads_before = client.stats().reads;
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"value");
    assert_eq!(client.get(b"large").unwrap().unwrap().bytes, [7; 100_000]);
    assert_eq!(client.get(b"absent"), Ok(None));
    let found = client.multi_get(&[&b"key"[..], b"absent", b"large"]);
    let lengths: Vec<usize> =
        found.into_iter().map(|found| found.unwrap().map_or(0, |value| value.bytes.len())).collect();
    assert_eq!(lengths, [5, 0, 100_000]);
    // Behind a write of its own.
    client.submit_put(b"key", b"newer").unwrap();
    let ticket = client.submit_get(b"key").unwrap();
    while let Some(done) = client.wait().unwrap() {
        if done.ticket == ticket {
            let Outcome::Get(Ok(Some(value))) = done.outcome else { panic!("{:?}", done.outcome) };
            assert_eq!(value.bytes, b"newer");
        }
    }
    let stats = client.stats();
    assert_eq!((stats.gets, stats.asked_server, stats.reads), (7, 7, reads_before));
    let counters = other.server_stat().unwrap().counters;
    assert!(counters["gets_by_server"] >= 7);
}
