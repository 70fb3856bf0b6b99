//! Several clients at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kv_client::{Conditional, Value};

use crate::live::server::{Needs, Start};
use crate::live::value_of;

pub(crate) fn clients_see_each_others_writes(start: Start) {
    // Each size class takes a segment of its own.
    let server = start(Needs { memory: "192MiB", workers: 2, ..Needs::default() });
    let mut clients = [server.connect(), server.connect(), server.connect()];
    for round in 0..300_usize {
        let key = [b'k', (round % 7) as u8];
        // Sizes that make the block stay, move, and come back; and the key go.
        let value = value_of(round as u64, round * 37 % 9000);
        if round % 5 == 4 {
            clients[round % 3].delete(&key).unwrap();
            for client in &mut clients {
                assert_eq!(client.get(&key), Ok(None), "round {round}");
            }
        } else {
            let version = clients[round % 3].put(&key, &value).unwrap();
            for client in &mut clients {
                let found = client.get(&key).unwrap().unwrap();
                assert!(found.bytes == value && found.version == version, "round {round}");
            }
        }
    }
}

pub(crate) fn increments_by_compare_and_set_are_never_lost(start: Start) {
    const THREADS: u64 = 4;
    const INCREMENTS: u64 = 300;
    let server = start(Needs { workers: 2, ..Needs::default() });
    server.connect().put(b"counter", &0_u64.to_le_bytes()).unwrap();
    let together = Barrier::new(THREADS as usize);
    let increment = || {
        let mut client = server.connect();
        together.wait();
        let (mut done, mut lost) = (0, 0);
        while done < INCREMENTS {
            let found = client.get(b"counter").unwrap().unwrap();
            let next = u64::from_le_bytes(found.bytes.try_into().unwrap()) + 1;
            match client.compare_and_set(b"counter", found.version, &next.to_le_bytes()).unwrap() {
                Conditional::Done(version) => {
                    assert!(version > found.version);
                    done += 1;
                }
                Conditional::Mismatch(version) => {
                    assert!(version > found.version);
                    lost += 1;
                }
                Conditional::NotFound => panic!("nobody deletes it"),
            }
        }
        lost
    };
    let lost: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(increment)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let mut client = server.connect();
    let found = client.get(b"counter").unwrap().unwrap().bytes;
    assert_eq!(u64::from_le_bytes(found.try_into().unwrap()), THREADS * INCREMENTS);
    let counters = client.server_stat().unwrap().counters;
    assert_eq!(counters["conditional_writes"], THREADS * INCREMENTS + lost);
    assert_eq!(counters["conditions_unmet"], lost);
}

pub(crate) fn adds_and_appends_of_many_are_never_lost(start: Start) {
    const THREADS: i64 = 4;
    const ROUNDS: i64 = 300;
    // A value that grows takes a segment of each class that it goes through.
    let server = start(Needs { memory: "256MiB", workers: 2, ..Needs::default() });
    let together = Barrier::new(THREADS as usize);
    let play = |thread: i64| {
        let mut client = server.connect();
        together.wait();
        let mut last = None;
        for round in 0..ROUNDS {
            let count = client.add(b"sum", round + thread).unwrap();
            assert!(last.is_none_or(|last| count.version > last), "versions rise");
            last = Some(count.version);
            client.append(b"log", format!("{thread}:{round};").as_bytes()).unwrap();
        }
    };
    thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || play(thread)))));
    let mut client = server.connect();
    let sum: i64 = (0..THREADS).map(|thread| (0..ROUNDS).map(|round| round + thread).sum::<i64>()).sum();
    assert_eq!(client.get(b"sum").unwrap().unwrap().bytes, sum.to_string().as_bytes());
    // All that was appended is there once, and what one client appended is in its order.
    let log = String::from_utf8(client.get(b"log").unwrap().unwrap().bytes).unwrap();
    let mut next = [0; THREADS as usize];
    for entry in log.split_terminator(';') {
        let (thread, round) = entry.split_once(':').unwrap();
        let thread: usize = thread.parse().unwrap();
        assert_eq!(round.parse(), Ok(next[thread]), "thread {thread}");
        next[thread] += 1;
    }
    assert_eq!(next, [ROUNDS; THREADS as usize]);
    let counters = client.server_stat().unwrap().counters;
    assert_eq!((counters["adds"], counters["appends"]), (1200, 1200));
}

/// A value that names itself and proves that it is whole.
fn numbered(number: u64) -> Vec<u8> {
    // Mostly written in place, where readers are in the way most often.
    let len_bytes = if number.is_multiple_of(16) { 6000 } else { 3800 };
    [&number.to_le_bytes()[..], &value_of(number, len_bytes)].concat()
}

pub(crate) fn readers_of_a_key_under_fire_get_whole_values(start: Start) {
    let server = start(Needs { workers: 2, memory: "64MiB", ..Needs::default() });
    server.connect().put(b"hot", &numbered(0)).unwrap();
    let is_over = AtomicBool::new(false);
    let write = |writer: u64| {
        let mut client = server.connect();
        let mut number = writer;
        while !is_over.load(Ordering::Relaxed) {
            number += 2;
            client.submit_put(b"hot", &numbered(number)).unwrap();
            while client.pending() >= 32 {
                client.wait().unwrap();
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| write(0));
        scope.spawn(|| write(1));
        let mut client = server.connect();
        let (mut newest, began) = (0, Instant::now());
        let mut buffer = client.register(10_000).unwrap();
        // Until reading alone was hopeless at least once and the server was asked, or for a while.
        let seen = loop {
            let found = if client.stats().gets.is_multiple_of(2) {
                client.get(b"hot").unwrap()
            } else {
                let found = client.get_into(b"hot", &mut buffer).unwrap();
                found.map(|found| Value { bytes: found.bytes.to_vec(), version: found.version })
            };
            let found = found.expect("it is never deleted");
            let number = u64::from_le_bytes(found.bytes[..8].try_into().unwrap());
            if found.bytes != numbered(number) || found.version < newest {
                break Err(format!("value {number} of version {}, after {newest}", found.version));
            }
            newest = found.version;
            let stats = client.stats();
            if stats.gets > 2000 && (stats.asked_server > 0 || began.elapsed() > Duration::from_secs(4)) {
                break Ok(stats);
            }
        };
        is_over.store(true, Ordering::Relaxed);
        let stats = seen.unwrap();
        println!(
            "{} GETs: {} torn, {} dead, {} asked",
            stats.gets, stats.retries_torn, stats.retries_dead, stats.asked_server
        );
        assert!(stats.retries_torn + stats.retries_dead > 0, "{stats:?}");
    });
}
