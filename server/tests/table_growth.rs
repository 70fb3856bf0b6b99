//! Index segments that are split while keys are written and read: in steps, so that what is looked at in between is known.

mod table_support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kv_common::check;
use kv_common::hash::KeyHash;
use kv_common::layout::{
    Counter, HOMES, LINE_SLOTS, LineNumber, SEGMENT_LINES, SEGMENT_WORDS, Slot, superblock,
};
use kv_common::limits::GRACE_NS;
use kv_common::probe::TableView;
use kv_common::region::Words;
use kv_common::wire::{Refusal, Status};
use kv_server::table::{CheckFinding, SlotFault, Table, TableConfig, Upkeep};
use proptest::prelude::*;
use table_support::{Client, Look, config, keys_of_one_home, look};

const TICK_NS: u64 = GRACE_NS / 200;

/// A table whose clock goes on a little whenever it is looked at, and else when it is told to.
struct Grown {
    table: Arc<Table>,
    now_ns: Arc<AtomicU64>,
}

impl Grown {
    fn new(segments: usize) -> Grown {
        Grown::with(segments, &config(1, None))
    }

    fn with(segments: usize, config: &TableConfig) -> Grown {
        let now_ns = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now_ns);
        let region = Words::zeroed(segments * SEGMENT_WORDS);
        let table = Table::create_with_clock(
            region,
            config,
            Arc::new(move || clock.fetch_add(TICK_NS, Ordering::Relaxed)),
        );
        Grown { table: table.expect("the region is large enough"), now_ns }
    }

    fn view(&self) -> TableView {
        check::view_of(self.table.region()).expect("a table")
    }

    /// The segment that readers are led to, which is to be split.
    fn want_split(&self, key: &[u8]) {
        let view = self.view();
        let segment = view.home(view.hash(key)).segment();
        assert!(self.table.want_split(segment), "segment {segment} can be split");
    }

    /// Lets splits go on up to the end of home `home` in this pass.
    fn grow_to(&self, home: u64) -> Upkeep {
        self.table.grow(&mut |done| done != home)
    }

    fn pass_grace(&self) {
        self.now_ns.fetch_add(GRACE_NS * 2, Ordering::Relaxed);
    }

    /// Lets all splits come to their end.
    fn finish(&self) {
        loop {
            match self.table.grow(&mut |_| true) {
                Upkeep::Busy => {}
                Upkeep::WaitNs(_) => self.pass_grace(),
                Upkeep::Idle => return,
            }
        }
    }

    fn counter(&self, counter: Counter) -> u64 {
        let pages = superblock::counter_pages(1);
        pages.map(|page| self.table.region().load(page + counter as usize)).fold(0, u64::wrapping_add)
    }
}

fn home_of(key: &[u8]) -> u64 {
    KeyHash::new(config(1, None).hash_seed, key).home()
}

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

/// What a reader with `view` may say about a key that is present: not that it is absent.
#[track_caller]
fn assert_not_missed(grown: &Grown, view: &TableView, key: &[u8], value: &[u8]) {
    match look(grown.table.region(), view, key) {
        Look::Found { value: found, .. } => assert_eq!(found, value),
        Look::Absent => panic!("{key:?} is missed"),
        Look::Unclear => {}
    }
}

#[track_caller]
fn assert_found(grown: &Grown, view: &TableView, key: &[u8], value: &[u8]) {
    let found = look(grown.table.region(), view, key);
    assert!(matches!(found, Look::Found { value: found, .. } if found == value), "{key:?}");
}

#[test]
fn a_table_grows_from_one_segment_and_every_old_directory_stays_right() {
    let grown = Grown::new(40);
    let mut client = Client::new(&grown.table, 0);
    let mut views = vec![grown.view()];
    let keys = 1_200_000;
    for i in 0..keys {
        assert_eq!(client.put(&key(i), b"").status, Status::Done, "key {i}");
        if i % 1000 == 0 {
            if let Upkeep::WaitNs(_) = grown.table.grow(&mut |home| !home.is_multiple_of(5000)) {
                grown.pass_grace();
            }
            if grown.view().directory().len() > views.last().unwrap().directory().len() {
                views.push(grown.view());
            }
        }
        if i % 300_000 == 123_456 {
            grown.table.check().expect("the table is sound in the middle of a split");
        }
    }
    assert_eq!(grown.counter(Counter::InsertsWaited), 0);
    grown.finish();
    views.push(grown.view());
    let report = grown.table.check().expect("the table is sound");
    println!(
        "{} index segments, {:.1} bytes of index per key, {:.4} index READs per lookup, {:.2} % of the keys in overflow lines",
        report.index_segments,
        report.index_bytes_per_key(),
        report.index_reads_per_lookup(),
        report.overflow_keys as f64 / report.keys as f64 * 100.0
    );
    assert_eq!((report.keys, report.copied_keys), (keys, 0));
    assert_eq!(report.index_segments, 4 + grown.counter(Counter::Splits));
    assert!(report.index_bytes_per_key() < 25.0 && report.index_reads_per_lookup() < 1.02);
    assert!(views.len() >= 3, "the directory has doubled");
    for i in (0..keys).step_by(7) {
        for view in &views {
            assert_not_missed(&grown, view, &key(i), b"");
        }
        assert_found(&grown, views.last().unwrap(), &key(i), b"");
    }
    for i in 0..keys {
        assert_eq!(client.delete(&key(i)).status, Status::Done);
    }
    client.worker.idle();
    let report = grown.table.check().expect("the table is sound");
    let left = (report.keys, report.overflow_lines, report.block_bytes, report.waiting_blocks);
    assert_eq!(left, (0, 0, 0, 0));
}

/// Every stage of a split, right before and right after the home that has all the keys.
#[test]
fn each_stage_of_a_split_is_sound_and_misses_nothing() {
    let keys = keys_of_one_home(LINE_SLOTS * 6);
    let home = home_of(&keys[0]);
    let stops = [home - 2, home - 1, home, home + 1, HOMES - 1];
    for (pass, stop) in (0..3).flat_map(|pass| stops.map(|stop| (pass, stop))) {
        let grown = Grown::new(16);
        let old = grown.view();
        let mut client = Client::new(&grown.table, 0);
        for key in &keys {
            assert_eq!(client.put(key, key).status, Status::Done);
        }
        grown.want_split(&keys[0]);
        for _ in 0..pass {
            grown.grow_to(HOMES - 1);
            if let Upkeep::WaitNs(_) = grown.table.grow(&mut |_| false) {
                grown.pass_grace();
            }
        }
        grown.grow_to(stop);
        let report = grown.table.check().unwrap_or_else(|found| panic!("{pass} {stop}: {found:?}"));
        assert_eq!(report.keys as usize, keys.len());
        let new = grown.view();
        for key in &keys {
            assert_not_missed(&grown, &old, key, key);
            assert_not_missed(&grown, &new, key, key);
            assert_eq!(client.get(key).value, key);
        }
        // Each key is written in one of three ways, and some come and go.
        for (i, key) in keys.iter().enumerate() {
            let written = match i % 4 {
                0 => client.put(key, &[7; 3000]),
                1 => client.put(key, b"small"),
                2 => client.delete(key),
                _ => {
                    let version = client.get(key).version;
                    client.compare_and_set(key, version, &[9; 100])
                }
            };
            assert_eq!(written.status, Status::Done, "key {i}");
            client.worker.idle();
            grown.table.check().unwrap_or_else(|found| panic!("{pass} {stop} key {i}: {found:?}"));
        }
        let more = &keys_of_one_home(keys.len() + 20)[keys.len()..];
        for key in more {
            assert_eq!(client.put(key, b"late").status, Status::Done);
            assert_not_missed(&grown, &old, key, b"late");
            assert_not_missed(&grown, &new, key, b"late");
        }
        grown.finish();
        let report = grown.table.check().expect("the table is sound");
        assert_eq!((report.copied_keys, report.index_segments), (0, old.directory().len() as u64 + 1));
        let last = grown.view();
        for (i, key) in keys.iter().enumerate() {
            match i % 4 {
                0 => assert_found(&grown, &last, key, &[7; 3000]),
                1 => assert_found(&grown, &last, key, b"small"),
                2 => assert!(matches!(look(grown.table.region(), &last, key), Look::Absent)),
                _ => assert_found(&grown, &last, key, &[9; 100]),
            }
        }
        more.iter().for_each(|key| assert_found(&grown, &last, key, b"late"));
    }
}

#[test]
fn a_copied_slot_follows_its_key_until_it_is_cleared() {
    let grown = Grown::new(16);
    let mut client = Client::new(&grown.table, 0);
    let keys = keys_of_one_home(12);
    for key in &keys {
        client.put(key, b"1");
    }
    let slots = |view: &TableView, key: &[u8]| {
        let home = view.home(view.hash(key));
        let words: Vec<u64> =
            (0..2 * 8).map(|i| grown.table.region().load(LineNumber(home.0).word() + i)).collect();
        words
    };
    let old = grown.view();
    grown.want_split(&keys[0]);
    grown.grow_to(HOMES - 1);
    grown.grow_to(HOMES - 1);
    let new = grown.view();
    let moved: Vec<&[u8; 8]> =
        keys.iter().filter(|key| old.home(old.hash(*key)) != new.home(new.hash(*key))).collect();
    assert!(moved.len() > 1, "some keys have moved");
    let update = client.put(moved[0], &[1; 5000]).hint.expect("writes say where the key is");
    assert!(slots(&new, moved[0]).contains(&update.slot.0));
    assert!(slots(&old, moved[0]).contains(&update.slot.0), "readers with the old directory find it");
    let slot = client.put(moved[1], b"2").hint.expect("writes say where the key is").slot;
    assert!(slots(&old, moved[1]).contains(&slot.0));
    client.delete(moved[1]);
    assert!(!slots(&old, moved[1]).contains(&slot.0) && !slots(&new, moved[1]).contains(&slot.0));
    // A copy that is not equal is found.
    let region = grown.table.region();
    let word =
        (old.home(old.hash(moved[0])).word()..).find(|&word| region.load(word) == update.slot.0).unwrap();
    let other = Slot::new(
        update.slot.fingerprint(),
        update.slot.span(),
        client.put(b"x", b"y").hint.unwrap().slot.place(),
    );
    region.store(word, other.0);
    assert!(grown.table.check().is_err());
    region.store(word, 0);
    let findings = grown.table.check().expect_err("a slot too few");
    assert!(findings.iter().any(|finding| matches!(finding, CheckFinding::Sum { .. })), "{findings:?}");
    region.store(word, update.slot.0);
    grown.table.check().expect("the table is sound again");
    // So is a key that was given away and is not where it belongs.
    let there =
        (new.home(new.hash(moved[0])).word()..).find(|&word| region.load(word) == update.slot.0).unwrap();
    region.store(there, 0);
    let findings = grown.table.check().expect_err("the key is lost");
    let is_lost =
        |finding: &CheckFinding| matches!(finding, CheckFinding::Slot { fault: SlotFault::GivenAway, .. });
    assert!(findings.iter().any(is_lost), "{findings:?}");
}

#[test]
fn without_a_free_segment_the_index_is_full_and_says_so() {
    let config = TableConfig { expected_keys: Some(1), ..config(1, None) };
    let grown = Grown::with(8, &config);
    let mut client = Client::new(&grown.table, 0);
    // Every free segment is taken by values.
    let mut taken = 0;
    while grown.table.free_segments() > 1 {
        assert_eq!(client.put(&key(1 << 40 | taken), &vec![0; 1 << 20]).status, Status::Done);
        taken += 1;
    }
    let mut inserted = 0;
    let refusal = loop {
        match client.put(&key(inserted), b"").refusal() {
            None => inserted += 1,
            Some(refusal) => break refusal,
        }
    };
    // The last free segment went to small blocks: they are full before the index is.
    assert!(matches!(refusal, Refusal::RegionFull { free_segments: 0, .. }), "{refusal:?}");
    assert_eq!(grown.table.grow(&mut |_| true), Upkeep::Idle, "nothing wants to be split in vain");
    grown.table.check().expect("the table is sound");
}

/// Nobody splits but who inserts, and few wait for it.
#[test]
fn inserts_see_to_a_split_that_is_late_themselves() {
    let config = TableConfig { expected_keys: Some(1), grace_ns: 1_000_000, ..config(1, None) };
    let table = Table::create(Words::zeroed(16 * SEGMENT_WORDS), &config).unwrap();
    let mut client = Client::new(&table, 0);
    let keys = SEGMENT_LINES * LINE_SLOTS as u64 * 9 / 10;
    for i in 0..keys {
        assert_eq!(client.put(&key(i), b"").status, Status::Done, "key {i} of {keys}");
    }
    let report = table.check().expect("the table is sound");
    assert!(report.index_segments > 1);
    let waited = |page: usize| page + Counter::InsertsWaited as usize;
    let pages = [superblock::GROWTH_COUNTERS, superblock::GROWTH_COUNTERS + superblock::COUNTER_WORDS];
    let waited: u64 = pages.iter().map(|&page| table.region().load(waited(page))).sum();
    assert!(waited < keys / 1000, "{waited} of {keys} inserts have waited");
    for i in 0..keys {
        assert_eq!(client.get(&key(i)).status, Status::Done, "key {i}");
    }
}

/// Chosen keys: as many as a home takes, all of which go to the new segment, or none.
#[test]
fn a_home_that_is_as_full_as_can_be_is_split() {
    let all = keys_of_one_home(400);
    let hash = |key: &[u8; 8]| KeyHash::new(config(1, None).hash_seed, key);
    for bit in [0, 1] {
        // Bits 0 and 1 choose the segment of a table with four, so bit 2 splits it.
        let keys: Vec<[u8; 8]> =
            all.iter().filter(|key| hash(key).0 & 7 == 3 | bit << 2).copied().take(70).collect();
        let grown = Grown::new(40);
        let mut client = Client::new(&grown.table, 0);
        let taken = keys.iter().take_while(|key| client.put(*key, b"").status == Status::Done).count();
        assert!(taken > 40, "{taken}");
        let home = home_of(&keys[0]);
        grown.want_split(&keys[0]);
        grown.grow_to(home);
        // A home full of keys that are being split waits for the split.
        let others = all.iter().filter(|key| hash(key).0 & 7 == 3 | (1 - bit) << 2).take(5);
        let fitting = others.filter(|key| client.put(*key, b"").status == Status::Done).count();
        println!("bit {bit}: {taken} keys, {fitting} others");
        grown.finish();
        let report = grown.table.check().expect("the table is sound");
        assert_eq!(report.keys as usize, taken + fitting);
        let view = grown.view();
        keys.iter().take(taken).for_each(|key| assert_found(&grown, &view, key, b""));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put { key: usize, len: usize },
    Delete { key: usize },
    Grow { homes: u64 },
    Split { key: usize },
    Grace,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..120, 0usize..200).prop_map(|(key, len)| Step::Put { key, len }),
        4 => (0usize..120).prop_map(|key| Step::Delete { key }),
        6 => (0u64..4).prop_map(|homes| Step::Grow { homes }),
        1 => (0usize..120).prop_map(|key| Step::Split { key }),
        2 => Just(Step::Grace),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() })]

    /// Against a map: keys of three neighbouring homes, and splits that stop before, between and behind them.
    #[test]
    fn a_table_that_is_split_is_a_map(steps in prop::collection::vec(step(), 1..200)) {
        let grown = Grown::new(24);
        let mut client = Client::new(&grown.table, 0);
        let home = home_of(&key(0));
        let keys: Vec<[u8; 8]> =
            (0..).map(key).filter(|key| (home..home + 3).contains(&home_of(key))).take(120).collect();
        let mut model: HashMap<usize, Vec<u8>> = HashMap::new();
        let mut views = vec![grown.view()];
        for step in steps {
            match step {
                Step::Put { key, len } => {
                    let value = vec![len as u8; len];
                    match client.put(&keys[key], &value).refusal() {
                        None => drop(model.insert(key, value)),
                        Some(Refusal::HomeFull { .. }) => {}
                        Some(refusal) => prop_assert!(false, "{refusal:?}"),
                    }
                }
                Step::Delete { key } => {
                    let is_there = client.delete(&keys[key]).status == Status::Done;
                    prop_assert_eq!(is_there, model.remove(&key).is_some());
                }
                Step::Grow { homes } => drop(grown.grow_to(home + homes - u64::from(home > 0))),
                Step::Split { key } => {
                    let view = grown.view();
                    if grown.table.free_segments() > 4 {
                        grown.table.want_split(view.home(view.hash(&keys[key])).segment());
                    }
                }
                Step::Grace => {
                    grown.pass_grace();
                    views.push(grown.view());
                }
            }
            if let Some((&key, value)) = model.iter().next() {
                for view in &views {
                    assert_not_missed(&grown, view, &keys[key], value);
                }
            }
        }
        let report = grown.table.check().map_err(|found| TestCaseError::fail(format!("{found:?}")))?;
        prop_assert_eq!(report.keys as usize, model.len());
        for (key, name) in keys.iter().enumerate() {
            let found = client.get(name);
            prop_assert_eq!(model.get(&key), (found.status == Status::Done).then_some(&found.value));
        }
        grown.finish();
        let report = grown.table.check().map_err(|found| TestCaseError::fail(format!("{found:?}")))?;
        prop_assert_eq!(report.keys as usize, model.len());
    }
}
