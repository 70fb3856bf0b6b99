//! Walks over all keys while the index grows: who is there all the time is seen, and a clear leaves nothing.

mod table_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kv_common::check;
use kv_common::layout::SEGMENT_WORDS;
use kv_common::limits::GRACE_NS;
use kv_common::region::Words;
use kv_common::wire::{Condition, Op, Status, Value};
use kv_server::table::{Table, Upkeep};
use proptest::prelude::*;
use table_support::{Client, config};

struct World {
    table: Arc<Table>,
    now_ns: Arc<AtomicU64>,
    client: Client,
}

impl World {
    fn new() -> World {
        let now_ns = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now_ns);
        let region = Words::zeroed(40 * SEGMENT_WORDS);
        let clock = Arc::new(move || clock.fetch_add(1000, Ordering::Relaxed));
        let table = Table::create_with_clock(region, &config(1, None), clock).unwrap();
        World { client: Client::new(&table, 0), now_ns, table }
    }

    fn part(&mut self, op: Op, cursor: u64) -> (Vec<u8>, u64) {
        let answer =
            self.client.request(op, Condition::Always, b"", Value::Inline(&cursor.to_le_bytes()), None);
        assert_eq!(answer.status, Status::Done);
        (answer.value, answer.version)
    }

    /// One page of a scan: its keys, and where the next begins.
    fn page(&mut self, cursor: u64) -> (Vec<Vec<u8>>, u64) {
        let (bytes, next) = self.part(Op::Scan, cursor);
        let (mut keys, mut rest) = (Vec::new(), &bytes[..]);
        while let [low, high, more @ ..] = rest {
            let (key, more) = more.split_at(usize::from(u16::from_le_bytes([*low, *high])));
            keys.push(key.to_vec());
            rest = more;
        }
        (keys, next)
    }

    fn scan(&mut self) -> BTreeMap<Vec<u8>, u32> {
        let (mut seen, mut cursor) = (BTreeMap::new(), 0);
        loop {
            let (keys, next) = self.page(cursor);
            keys.into_iter().for_each(|key| *seen.entry(key).or_default() += 1);
            cursor = next;
            if cursor == 0 {
                return seen;
            }
        }
    }

    /// Lets splits go on by so many homes; one of a segment that `key` is in begins if none is under way.
    fn split(&mut self, key: &[u8], homes: u64) {
        let view = check::view_of(self.table.region()).unwrap();
        self.table.want_split(view.home(view.hash(key)).segment());
        let mut left = homes;
        while left > 0 {
            let mut goes_on = |_| {
                left = left.saturating_sub(1);
                left > 0
            };
            match self.table.grow(&mut goes_on) {
                Upkeep::Busy => {}
                Upkeep::WaitNs(_) => drop(self.now_ns.fetch_add(2 * GRACE_NS, Ordering::Relaxed)),
                Upkeep::Idle => return,
            }
        }
    }
}

fn key(i: u64) -> Vec<u8> {
    format!("key {i}").into_bytes()
}

#[test]
fn a_scan_of_a_table_at_rest_sees_every_key_once() {
    let mut world = World::new();
    assert!(world.scan().is_empty());
    let keys: BTreeSet<Vec<u8>> = (0..20_000).map(key).collect();
    for key in &keys {
        assert_eq!(world.client.put(key, b"value").status, Status::Done);
    }
    let seen = world.scan();
    assert!(seen.values().all(|&times| times == 1));
    assert_eq!(seen.into_keys().collect::<BTreeSet<_>>(), keys);
}

#[test]
fn keys_of_one_home_come_together_however_many_they_are() {
    let mut world = World::new();
    let keys = table_support::keys_of_one_home(60);
    for key in &keys {
        assert_eq!(world.client.put(key, b"").status, Status::Done);
    }
    assert_eq!(world.scan().len(), keys.len());
}

#[test]
fn a_clear_leaves_nothing_and_gives_all_back() {
    let mut world = World::new();
    for i in 0..20_000 {
        world.client.put(&key(i), b"value");
    }
    world.split(&key(0), 10_000);
    let (mut deleted, mut cursor) = (0, 0);
    loop {
        let (bytes, next) = world.part(Op::Clear, cursor);
        deleted += u64::from_le_bytes(bytes.try_into().unwrap());
        cursor = next;
        if cursor == 0 {
            break;
        }
        // What is in the middle of a clear is a sound table, too.
        if next % 7 == 0 {
            world.table.check().unwrap();
        }
    }
    assert_eq!(deleted, 20_000);
    assert!(world.scan().is_empty());
    world.client.worker.idle();
    let report = world.table.check().unwrap();
    assert_eq!((report.keys, report.block_bytes, report.overflow_lines), (0, 0, 0));
}

#[test]
fn words_that_are_no_cursors_are_at_the_end() {
    let mut world = World::new();
    world.client.put(b"key", b"value");
    for cursor in [u64::MAX, 0xffff, 1 << 40, 1 << 63] {
        assert_eq!(world.page(cursor), (Vec::new(), 0), "{cursor:#x}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Page,
    Split { key: u64, homes: u64 },
    Put(u64),
    Delete(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Page),
        3 => (0u64..3000, 1u64..40_000).prop_map(|(key, homes)| Step::Split { key, homes }),
        1 => (0u64..4000).prop_map(Step::Put),
        1 => (2000u64..4000).prop_map(Step::Delete),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Between the pages segments are split, up to any home; keys come and go. Those that stay are seen.
    #[test]
    fn keys_that_stay_are_seen_whatever_happens_between_pages(steps in proptest::collection::vec(step(), 1..400)) {
        let mut world = World::new();
        // Of these, the first 2000 are never deleted.
        for i in 0..3000 {
            world.client.put(&key(i), b"v");
        }
        let (mut seen, mut cursor, mut is_over) = (BTreeSet::new(), 0, false);
        let mut steps = steps.into_iter();
        while !is_over {
            match steps.next().unwrap_or(Step::Page) {
                Step::Page => {
                    let (keys, next) = world.page(cursor);
                    seen.extend(keys);
                    (cursor, is_over) = (next, next == 0);
                }
                Step::Split { key: i, homes } => world.split(&key(i), homes),
                Step::Put(i) => drop(world.client.put(&key(i), b"v")),
                Step::Delete(i) => drop(world.client.delete(&key(i))),
            }
        }
        let missed: Vec<u64> = (0..2000).filter(|&i| !seen.contains(&key(i))).collect();
        prop_assert!(missed.is_empty(), "missed: {:?}", missed);
    }
}
