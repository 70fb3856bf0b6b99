//! Real threads: workers on the same few keys, and readers that only read the region, while the writes go on.

mod table_support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use kv_common::check;
use kv_common::hash::payload_hash;
use kv_common::layout::{Counter, SEGMENT_WORDS, superblock};
use kv_common::region::{ReadWords, Words};
use kv_common::wire::Status;
use kv_server::table::{Table, TableConfig};
use table_support::{Client, Look, config, keys_of_one_home, look};

const WORKERS: usize = 3;
const READERS: usize = 2;
const WRITES: u64 = 30_000;
/// Few, so that writes and reads meet; all of one home, and more than its two lines hold, so that overflow lines come
/// and go. Those with an even number are never deleted.
const KEYS: u64 = 24;

/// Numbers that look random, the same in every run.
fn mix(n: u64) -> u64 {
    payload_hash(&n.to_le_bytes())
}

fn key(i: u64) -> [u8; 8] {
    static ALL: LazyLock<Vec<[u8; 8]>> = LazyLock::new(|| keys_of_one_home(KEYS as usize));
    ALL[i as usize]
}

/// A value that proves itself: the key, a number, filler made of both. Up to 6 KiB, so that updates in place, moved
/// updates and other classes mix.
fn value(i: u64, n: u64) -> Vec<u8> {
    let len = 16 + (mix(n) % 8 * 8) as usize * if mix(n + 1).is_multiple_of(10) { 96 } else { 1 };
    let mut bytes = [i.to_le_bytes(), n.to_le_bytes()].concat();
    bytes.resize(len, mix(i ^ n << 8) as u8);
    bytes
}

fn assert_is_value(i: u64, bytes: &[u8]) {
    let n = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert!(bytes == value(i, n), "a value of key {i} that nobody wrote");
}

/// A clock of all threads: it goes on whenever somebody looks at it.
fn clock_ns() -> u64 {
    static NOW_NS: AtomicU64 = AtomicU64::new(1_800_000_000_000_000_000);
    NOW_NS.fetch_add(2_000_000, Ordering::Relaxed)
}

/// The highest version of each key that was acknowledged. Only for keys that are never deleted.
type Acknowledged = [AtomicU64; KEYS as usize];

fn write(client: &mut Client, worker: u64, acknowledged: &Acknowledged) {
    for n in (0..WRITES).map(|n| n * WORKERS as u64 + worker) {
        let i = mix(n ^ 0xabcd) % KEYS;
        let answer = match mix(n ^ 0x1234) % 8 {
            0 | 1 if i % 2 == 1 => client.delete(&key(i)),
            5 | 6 if i % 2 == 1 => {
                client.ttl_ns = Some(1 + mix(n) % 100_000_000);
                client.put(&key(i), &value(i, n))
            }
            2 => {
                let current = client.get(&key(i));
                client.compare_and_set(&key(i), current.version, &value(i, n))
            }
            3 => {
                let answer = client.get(&key(i));
                if answer.status == Status::Done {
                    assert_is_value(i, &answer.value);
                }
                assert!(i % 2 == 1 || answer.status == Status::Done, "key {i} is never deleted");
                continue;
            }
            4 if n % 64 == 0 => {
                client.worker.idle();
                continue;
            }
            _ => client.put(&key(i), &value(i, n)),
        };
        client.worker.sweep_expired();
        assert!(answer.refusal().is_none(), "{:?}", answer.status);
        if answer.status == Status::Done {
            acknowledged[i as usize].fetch_max(answer.version, Ordering::Release);
        }
    }
    client.worker.idle();
}

/// Looks until `is_over`; returns how many looks found, missed, and have to be repeated.
fn read(region: &ReadWords, acknowledged: &Acknowledged, is_over: &AtomicBool, seed: u64) -> [u64; 3] {
    let view = check::view_of(region).expect("a table");
    let mut looks = [0; 3];
    for n in seed.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let i = mix(n) % KEYS;
        let oldest = acknowledged[i as usize].load(Ordering::Acquire);
        match look(region, &view, &key(i)) {
            Look::Found { version, value } => {
                assert_is_value(i, &value);
                assert!(
                    i % 2 == 1 || version >= oldest,
                    "key {i}: {version} after {oldest} was acknowledged"
                );
                looks[0] += 1;
            }
            Look::Absent => {
                assert!(i % 2 == 1, "key {i} is never deleted");
                looks[1] += 1;
            }
            Look::Unclear => looks[2] += 1,
        }
    }
    looks
}

fn start(table: &Arc<Table>, acknowledged: &Acknowledged) {
    let mut client = Client::new(table, 0);
    for i in 0..KEYS {
        let version = client.put(&key(i), &value(i, i)).version;
        acknowledged[i as usize].store(version, Ordering::Relaxed);
    }
}

#[test]
fn workers_and_readers_on_the_same_few_keys() {
    let config = TableConfig { clock_ns, ..config(WORKERS, None) };
    let table = Table::create(Words::zeroed(64 * SEGMENT_WORDS), &config).unwrap();
    let acknowledged = Acknowledged::default();
    start(&table, &acknowledged);
    let is_over = AtomicBool::new(false);
    let looks = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS as u64)
            .map(|reader| {
                let (region, acknowledged, is_over) = (table.region().read_only(), &acknowledged, &is_over);
                scope.spawn(move || read(region, acknowledged, is_over, reader << 32))
            })
            .collect();
        let writers: Vec<_> = (0..WORKERS)
            .map(|worker| {
                let (table, acknowledged) = (&table, &acknowledged);
                scope.spawn(move || write(&mut Client::new(table, worker), worker as u64, acknowledged))
            })
            .collect();
        // A writer that failed must not leave the readers waiting for the end.
        let results: Vec<_> = writers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("a writer failed"));
        readers
            .into_iter()
            .map(|reader| reader.join().expect("a reader failed"))
            .fold([0; 3], |sum, looks| [sum[0] + looks[0], sum[1] + looks[1], sum[2] + looks[2]])
    });
    println!("looks that found, missed, have to be repeated: {looks:?}");
    let mut client = Client::new(&table, 0);
    while table.has_expiring_keys() {
        client.worker.sweep_expired();
    }
    // Workers that ended at the same moment may have held each other's blocks up.
    client.worker.idle();
    let expired = (0..WORKERS).map(|worker| {
        let page = superblock::COUNTERS + worker * superblock::COUNTER_WORDS;
        table.region().load(page + Counter::Expired as usize)
    });
    let expired: Vec<u64> = expired.collect();
    println!("keys removed because their time was over, by worker: {expired:?}");
    assert!(expired.iter().sum::<u64>() > 10, "{expired:?}");
    let report = table.check().expect("the table is sound");
    assert!(report.keys >= KEYS / 2, "the keys that are never deleted are there");
    assert_eq!(report.waiting_blocks, 0, "every worker has given its blocks back");
    assert!(looks[0] > 0 && looks[1] > 0, "the readers saw keys come and go");
}
