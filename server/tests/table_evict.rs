//! A server that evicts: no write is refused while others can go for it, those go that were not used for long, and the
//! table is as sound after it as before.

mod table_support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use kv_common::check;
use kv_common::layout::{Counter, EVICTED_AGES, Place, SEGMENT_WORDS, superblock};
use kv_common::region::Words;
use kv_common::wire::{Op, Request, Status, Value};
use kv_server::table::{SpaceKeeper, Table, TableConfig, Upkeep, Waiting, Worker};
use table_support::world::{World, value};
use table_support::{Look, SESSION, config, look};

const SEGMENTS: usize = 16;
const SECOND_NS: u64 = 1_000_000_000;

fn world(segments: usize) -> World {
    World::with(segments, &TableConfig { evicts: true, ..config(1, Some(1000)) })
}

fn is_there(world: &World, key: &[u8]) -> bool {
    let region = world.table.region();
    matches!(look(region, &check::view_of(region).unwrap(), key), Look::Found { .. })
}

fn put(world: &mut World, key: &str, value_bytes: usize) {
    let value = value(key.len(), value_bytes);
    world.put(key.as_bytes(), &value).unwrap_or_else(|refusal| panic!("{key}: {refusal}"));
}

/// A report of hits on these places.
fn report(world: &mut World, places: impl IntoIterator<Item = u64>) {
    let bytes: Vec<u8> = places.into_iter().flat_map(u64::to_le_bytes).collect();
    for report in bytes.chunks(8 * kv_common::limits::HITS_PER_REPORT_MAX) {
        assert_eq!(world.request(Op::Hits, b"", report), Status::Done);
    }
}

fn age(world: &World, seconds: u64) {
    world.now_ns.fetch_add(seconds * SECOND_NS, Ordering::Relaxed);
}

fn evicted_ages(world: &World) -> Vec<u64> {
    let count = |bucket| {
        let pages = superblock::counter_pages(1).map(|page| page + superblock::EVICTED_AGES + bucket);
        pages.map(|word| world.table.region().load(word)).sum()
    };
    (0..EVICTED_AGES).map(count).collect()
}

/// CLOCK as books describe it, over the places in which the table has put keys.
#[derive(Default)]
struct Model {
    /// Segments in the order in which they were first used.
    segments: Vec<u64>,
    /// Keys, and whether they were used since the hand passed, by segment in that order and place.
    keys: BTreeMap<(usize, u64), (String, bool)>,
    /// The hand stands before this one.
    hand: (usize, u64),
}

impl Model {
    fn spot(&mut self, place: Place) -> (usize, u64) {
        let segment = place.segment();
        let position = self.segments.iter().position(|&known| known == segment).unwrap_or_else(|| {
            self.segments.push(segment);
            self.segments.len() - 1
        });
        (position, place.0)
    }

    fn evict(&mut self, count: usize) -> Vec<String> {
        let mut evicted = Vec::new();
        while evicted.len() < count {
            let next = self.keys.range(self.hand..).next().or_else(|| self.keys.iter().next());
            let spot = *next.expect("there are keys").0;
            self.hand = (spot.0, spot.1 + 1);
            let (_, is_used) = self.keys.get_mut(&spot).unwrap();
            if !std::mem::replace(is_used, false) {
                evicted.push(self.keys.remove(&spot).unwrap().0);
            }
        }
        evicted
    }
}

#[test]
fn the_order_of_eviction_is_that_of_a_clock() {
    // Blocks of 4 KiB go 16 at a time.
    const VALUE_BYTES: usize = 4000;
    let (mut world, mut model) = (world(10), Model::default());
    let mut there: BTreeSet<String> = BTreeSet::new();
    let mut random = 7u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for number in 0..9000 {
        let key = format!("key {number}");
        let before = world.counter(Counter::Evictions);
        put(&mut world, &key, VALUE_BYTES);
        let evicted = (world.counter(Counter::Evictions) - before) as usize;
        assert!(evicted == 0 || evicted == 16, "{evicted}");
        for gone in model.evict(evicted) {
            assert!(!is_there(&world, gone.as_bytes()), "{gone} is older than what went");
            there.remove(&gone);
        }
        let spot = model.spot(world.slot.place());
        model.keys.insert(spot, (key.clone(), false));
        there.insert(key);
        // Some are used, by an update, by a GET of the server, or by one that a client reports.
        for _ in 0..draw(3) {
            let at = draw(model.keys.len() as u64) as usize;
            let (&spot, (used, _)) = model.keys.iter().nth(at).unwrap();
            let used = used.clone();
            match draw(3) {
                0 => put(&mut world, &used, VALUE_BYTES),
                1 => assert_eq!(world.request(Op::Get, used.as_bytes(), b""), Status::Done),
                _ => report(&mut world, [spot.1]),
            }
            model.keys.get_mut(&spot).unwrap().1 = true;
        }
    }
    assert!(there.iter().all(|key| is_there(&world, key.as_bytes())), "what is younger is there");
    assert!(world.counter(Counter::Evictions) > 4000 && world.counter(Counter::HitsReported) > 2000);
    world.check();
}

#[test]
fn a_full_region_takes_every_write_and_stays_sound() {
    let mut world = world(SEGMENTS);
    // Values of some sizes at a time, then of others.
    for (round, sizes) in
        [[40, 300, 2000], [100, 100, 8000], [8000, 500, 20], [3000, 3000, 700]].iter().enumerate()
    {
        for i in 0..60_000 / (1 + sizes.iter().sum::<usize>() / 500) {
            put(&mut world, &format!("{round} {i}"), sizes[i % 3]);
            if i % 7 == 0 {
                world.delete(format!("{round} {}", i / 2).as_bytes());
            }
            if i % 64 == 0 {
                world.keep();
            }
        }
        world.check();
    }
    assert_eq!(world.counter(Counter::Refused), 0);
    assert!(world.counter(Counter::Evictions) > 5000);
    assert!(world.counter(Counter::SegmentsReused) > 5);
}

#[test]
fn keys_that_clients_report_stay_and_others_go() {
    let mut world = world(SEGMENTS);
    let mut hot = Vec::new();
    for i in 0..1000 {
        put(&mut world, &format!("hot {i}"), 1000);
        hot.push(world.slot.place().0);
    }
    (0..1000).for_each(|i| put(&mut world, &format!("cold {i}"), 1000));
    for i in 0..60_000 {
        put(&mut world, &format!("new {i}"), 1000);
        if i % 500 == 0 {
            report(&mut world, hot.iter().copied());
        }
    }
    let there = |world: &World, name: &str| {
        (0..1000).filter(|i| is_there(world, format!("{name} {i}").as_bytes())).count()
    };
    assert_eq!((there(&world, "hot"), there(&world, "cold")), (1000, 0));
    world.check();
}

#[test]
fn reports_of_any_places_only_touch() {
    let mut world = world(SEGMENTS);
    (0..3000).for_each(|i| put(&mut world, &format!("key {i}"), 100 + i % 2000));
    let words = world.table.region().len_words() as u64;
    let mut before = vec![0; words as usize];
    world.table.region().copy_out(0, &mut before);
    // Every granule of some segments, places far outside, and words that are no places.
    report(&mut world, (0..words / 2).step_by(5));
    report(&mut world, (0..64).map(|bit| 1 << bit));
    report(&mut world, (0..1000).map(|i: u64| u64::MAX - i * 77));
    let mut after = vec![0; words as usize];
    world.table.region().copy_out(0, &mut after);
    let changed = (0..words as usize).filter(|&word| before[word] != after[word]);
    let counters = superblock::COUNTERS_FIRST..superblock::SEGMENT_TABLE;
    assert!(changed.into_iter().all(|word| counters.contains(&word)));
    assert!(world.counter(Counter::HitsReported) > 0);
    world.check();
    for message in [vec![1; 7], vec![1; 8 * kv_common::limits::HITS_PER_REPORT_MAX + 8]] {
        assert!(matches!(world.request(Op::Hits, b"", &message), Status::Refused(_)));
    }
    assert!(matches!(world.request(Op::Hits, b"key", &[1; 8]), Status::Refused(_)));
}

#[test]
fn the_index_grows_while_keys_go() {
    // Large values fill the region first; then small ones need more of the index than it has.
    let mut world = World::with(40, &TableConfig { evicts: true, ..config(1, Some(1)) });
    (0..10_000).for_each(|i| put(&mut world, &format!("large {i}"), 8000));
    let before = world.table.index_segments();
    for i in 0..600_000 {
        put(&mut world, &format!("small {i}"), 30);
        if i % 1000 == 0 {
            world.keep();
            world.finish_splits();
            age(&world, 1);
        }
    }
    assert!(world.table.index_segments() > before, "{before} index segments all the time");
    assert_eq!(world.counter(Counter::Refused), 0);
    world.check();
    assert!(world.model.keys().filter(|key| key.starts_with(b"small")).count() > 300_000);
}

/// One request of a worker that comes back while it waits for room.
fn request_of(worker: &mut Worker, op: Op, key: &[u8], value: &[u8]) -> (Status, Vec<u8>) {
    let request = Request::new(1, SESSION, op, key, Value::Inline(value));
    let message = request.parts(&request.header()).concat();
    let (mut waiting, mut answer) = (Waiting::default(), None);
    while answer.is_none() {
        worker.handle_or_wait(SESSION, &message, None, &mut waiting, &mut |reply| {
            answer = Some((reply.status, reply.chunk.to_vec()));
        });
        std::thread::yield_now();
    }
    answer.expect("it was answered")
}

#[test]
fn workers_evict_side_by_side() {
    const WORKERS: usize = 3;
    let region = Words::zeroed(12 * SEGMENT_WORDS);
    let config = TableConfig { evicts: true, ..config(WORKERS, Some(1000)) };
    let table = Table::create(region, &config).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut keeper = SpaceKeeper::new(&table);
            while !is_over.load(Ordering::Relaxed) {
                if keeper.step() != Upkeep::Busy {
                    std::thread::yield_now();
                }
            }
        });
        let workers: Vec<_> = (0..WORKERS)
            .map(|index| {
                let table = &table;
                scope.spawn(move || {
                    let mut worker = Worker::new(table, index);
                    for i in 0..12_000 {
                        let number = (i * 7919 + index) % 9000;
                        let key = format!("key {number}");
                        let (status, found) = request_of(&mut worker, Op::Get, key.as_bytes(), b"");
                        if status == Status::Done {
                            assert_eq!(found, value(number, 500 + number % 3 * 2000), "{key}");
                        }
                        let put = value(number, 500 + number % 3 * 2000);
                        let (status, _) = request_of(&mut worker, Op::Put, key.as_bytes(), &put);
                        assert_eq!(status, Status::Done, "{key}");
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
    });
    table.check().unwrap_or_else(|findings| panic!("{findings:#?}"));
    let pages = superblock::counter_pages(WORKERS);
    let evictions: u64 = pages.map(|page| table.region().load(page + Counter::Evictions as usize)).sum();
    assert!(evictions > 3000, "{evictions}");
}

#[test]
fn a_full_home_loses_its_oldest_key() {
    let mut world = world(SEGMENTS);
    let keys = table_support::keys_of_one_home(200);
    for (i, key) in keys.iter().enumerate() {
        world.put(key, b"value").unwrap_or_else(|refusal| panic!("{i}: {refusal}"));
        age(&world, 1);
    }
    let there: Vec<bool> = keys.iter().map(|key| is_there(&world, key)).collect();
    let first = there.iter().position(|&is_there| is_there).unwrap();
    assert!(first > 100 && there[first..].iter().all(|&is_there| is_there), "{there:?}");
    world.check();
}

#[test]
fn a_size_that_is_used_gets_the_segments_of_one_that_is_not() {
    let mut world = world(40);
    for i in 0..20_000 {
        put(&mut world, &format!("old {i}"), 3000);
    }
    age(&world, 1000);
    for i in 0..200_000 {
        put(&mut world, &format!("new {}", i % 50_000), 900);
        if i % 100 == 0 {
            world.keep();
            age(&world, 1);
        }
    }
    // They take 46 of the 74 MiB that the large ones had.
    let there = (0..50_000).filter(|i| is_there(&world, format!("new {i}").as_bytes())).count();
    assert_eq!(there, 50_000, "all values of the size in use have room");
    world.check();
}

#[test]
fn ages_are_counted_by_their_order_of_magnitude() {
    let mut world = world(10);
    let before = evicted_ages(&world);
    assert_eq!(before, vec![0; EVICTED_AGES]);
    let room = (10 - 4) * SEGMENT_WORDS / 512;
    (0..room).for_each(|i| put(&mut world, &format!("a {i}"), 4000));
    assert_eq!(world.counter(Counter::Evictions), 0, "{room} blocks fit");
    age(&world, 100);
    (0..room / 2).for_each(|i| put(&mut world, &format!("b {i}"), 4000));
    let ages = evicted_ages(&world);
    assert_eq!(ages.iter().sum::<u64>(), world.counter(Counter::Evictions));
    // 64 to 127 seconds.
    assert_eq!(ages[7], world.counter(Counter::Evictions), "{ages:?}");
    assert!(ages[7] as usize >= room / 2);
    world.check();
}
