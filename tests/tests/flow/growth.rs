//! The index grows while it is read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use kv_client::{Client, Options, Outcome, Stats};

use crate::live::server::{Needs, Start};
use crate::live::{Random, wait_for};

/// From one index segment to some more, through four sizes of the directory.
const KEYS: u64 = 600_000;
const BATCH: u64 = 250;

fn key_of(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// Keys that were never stored.
fn absent(i: u64) -> [u8; 8] {
    key_of(1 << 32 | i)
}

/// Stores all keys, and tells how many are acknowledged.
fn store(client: &mut Client, stored: &AtomicU64) {
    for first in (0..KEYS).step_by(BATCH as usize) {
        for i in first..first + BATCH {
            client.submit_put(&key_of(i), &[i as u8]).unwrap();
        }
        while let Some(done) = client.wait().unwrap() {
            assert!(matches!(done.outcome, Outcome::Put(Ok(_))), "{:?}", done.outcome);
        }
        stored.store(first + BATCH, Ordering::Release);
    }
}

fn read(client: &mut Client, seed: u64, stored: &AtomicU64, is_over: &AtomicBool) -> Stats {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Acquire) {
        let count = stored.load(Ordering::Acquire);
        let i = random.next();
        if count > 0 {
            let i = i % count;
            let found = client.get_with(&key_of(i), |bytes, _| bytes == [i as u8]).unwrap();
            assert_eq!(found, Some(true), "key {i} of {count}");
        }
        assert_eq!(client.exists(&absent(i >> 40)), Ok(false));
    }
    client.stats()
}

pub(crate) fn an_index_grows_and_no_reader_misses_a_key(start: Start) {
    let server = start(Needs { memory: "128MiB", expected_keys: 1, workers: 2, ..Needs::default() });
    let (mut writer, mut other) = (server.connect_for_setup(), server.connect());
    assert_eq!(other.server_stat().unwrap().segments.index, 1);
    let (stored, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let options = Options { index_cache_bytes: 64, ..Options::default() };
    let mut readers = [server.connect(), server.connect_with(&options)];
    thread::scope(|scope| {
        let (stored, is_over) = (&stored, &is_over);
        let running: Vec<_> = readers
            .iter_mut()
            .zip(1..)
            .map(|(client, seed)| scope.spawn(move || read(client, seed, stored, is_over)))
            .collect();
        let writing = scope.spawn(|| store(&mut writer, stored)).join();
        is_over.store(true, Ordering::Release);
        writing.unwrap();
        for reader in running {
            let stats = reader.join().unwrap();
            assert_eq!(stats.misses + stats.hits, stats.gets);
        }
    });
    // What a split moves after a warm-up takes two READs again.
    let stat = wait_for("the end of the splits", || {
        let stat = other.server_stat().unwrap();
        (stat.counters["splits_under_way"] == 0).then_some(stat)
    });
    let counter = |name: &str| stat.counters[name];
    println!(
        "{} index segments, {} splits, {} keys moved, {} inserts waited",
        stat.segments.index,
        counter("splits"),
        counter("keys_moved"),
        counter("inserts_waited")
    );
    assert_eq!(counter("keys"), KEYS);
    assert_eq!(stat.segments.index, 1 + counter("splits"));
    assert!(stat.segments.index >= 4 && counter("keys_moved") > 0);
    // A client that comes now has all of it; one that was there with one segment learns of the others.
    for client in [&mut server.connect(), &mut other] {
        let filled = client.warm_up().unwrap();
        assert!(filled.is_complete, "{filled:?}");
        let before = client.stats();
        for i in (0..KEYS).step_by(7 * server.one_in) {
            assert_eq!(client.get_with(&key_of(i), |bytes, _| bytes == [i as u8]), Ok(Some(true)), "key {i}");
        }
        let after = client.stats();
        let (reads, gets) = (after.reads - before.reads, after.gets - before.gets);
        println!("{reads} READs, {gets} GETs after a warm-up");
        assert!(reads <= gets * 11 / 10, "{reads} READs, {gets} GETs");
    }
}
