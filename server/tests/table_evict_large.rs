//! A server that evicts, and values in pages: no write of them is refused while others can go for it, and segments go to and fro
//! between small values and large ones.

mod table_support;

use std::collections::BTreeMap;

use kv_common::check;
use kv_common::layout::{Counter, Place, Run, pages_of};
use kv_common::wire::{Op, Refusal, Status};
use kv_server::table::TableConfig;
use table_support::world::{World, value};
use table_support::{Look, config, look};

const SEGMENTS: usize = 24;
const LARGE_BYTES: usize = 390_000;

fn world(segments: usize) -> World {
    World::with(segments, &TableConfig { evicts: true, ..config(1, Some(1000)) })
}

fn put(world: &mut World, key: &str, value_bytes: usize) {
    let value = value(key.len() + value_bytes, value_bytes);
    world.put(key.as_bytes(), &value).unwrap_or_else(|refusal| panic!("{key}: {refusal}"));
}

fn is_there(world: &World, key: &str) -> bool {
    let region = world.table.region();
    matches!(look(region, &check::view_of(region).unwrap(), key.as_bytes()), Look::Found { .. })
}

fn report_hit(world: &mut World, place: Place) {
    assert_eq!(world.request(Op::Hits, b"", &place.0.to_le_bytes()), Status::Done);
}

/// Numbers that follow from the ones before.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn the_order_of_eviction_is_that_of_a_clock_over_all_pages() {
    let (mut world, mut draw) = (world(10), Draw(5));
    // By place: the key, and whether it was used since the hand passed. All values are of one size, so one goes for one.
    let mut model: BTreeMap<u64, (String, bool)> = BTreeMap::new();
    let mut hand = 0;
    for number in 0..600 {
        let key = format!("key {number}");
        let before = world.counter(Counter::Evictions);
        put(&mut world, &key, LARGE_BYTES);
        let evicted = world.counter(Counter::Evictions) - before;
        assert!(evicted <= 1, "{evicted} for one");
        for _ in 0..evicted {
            let gone = loop {
                let next = model.range(..hand).next_back().or_else(|| model.iter().next_back());
                let place = *next.expect("there are keys").0;
                hand = place;
                if !std::mem::replace(&mut model.get_mut(&place).unwrap().1, false) {
                    break model.remove(&place).unwrap().0;
                }
            };
            assert!(!is_there(&world, &gone), "{gone} is older than what went");
        }
        model.insert(world.slot.place().0, (key, false));
        for _ in 0..draw.below(3) {
            let at = draw.below(model.len() as u64) as usize;
            let (&place, (used, _)) = model.iter().nth(at).unwrap();
            let used = used.clone();
            if draw.below(2) == 0 {
                assert_eq!(world.request(Op::Get, used.as_bytes(), b""), Status::Done);
            } else {
                report_hit(&mut world, Place(place));
            }
            model.get_mut(&place).unwrap().1 = true;
        }
    }
    assert!(model.values().all(|(key, _)| is_there(&world, key)), "what is younger is there");
    assert!(world.counter(Counter::Evictions) > 400);
    world.check();
}

#[test]
fn values_of_all_sizes_are_taken_and_the_table_stays_sound() {
    let (mut world, mut draw) = (world(SEGMENTS), Draw(9));
    for round in 0..6 {
        for i in 0..400 {
            let bytes = match (draw.below(4), round % 3) {
                (0, _) => 340_000 + draw.below(2_600_000) as usize,
                (_, 0) => draw.below(4000) as usize,
                (_, 1) => 340_000 + draw.below(100_000) as usize,
                (_, _) => 100_000 + draw.below(200_000) as usize,
            };
            put(&mut world, &format!("{round} {i}"), bytes);
            if draw.below(5) == 0 {
                world.delete(format!("{round} {}", draw.below(i + 1)).as_bytes());
            }
            if draw.below(8) == 0 {
                world.keep();
            }
        }
        world.check();
    }
    assert_eq!(world.counter(Counter::Refused), 0);
    assert!(world.counter(Counter::Evictions) > 500 && world.counter(Counter::SegmentsReused) > 20);
}

#[test]
fn a_value_larger_than_a_segment_gets_neighbouring_segments_of_small_ones() {
    // However long the keeper of the space goes on before the value is tried again, nobody else gets what was made for it.
    for steps_per_wait in [1, 2, 3, 10] {
        let mut world = world(SEGMENTS);
        world.steps_per_wait = steps_per_wait;
        for i in 0..80_000 {
            put(&mut world, &format!("small {i}"), 300 + i % 1000);
        }
        assert!(world.counter(Counter::Evictions) > 0, "the region is full of small ones");
        for i in 0..4 {
            put(&mut world, &format!("large {i}"), 2_900_000);
            assert!(is_there(&world, &format!("large {i}")));
            // Small ones at full speed between them.
            (0..3000).for_each(|i| put(&mut world, &format!("more {i}"), 300 + i % 1000));
        }
        assert!(world.waits > 0 && world.counter(Counter::Refused) == 0);
        world.check();
    }
}

#[test]
fn small_values_get_the_segments_of_large_ones_that_are_not_used() {
    let mut world = world(SEGMENTS);
    (0..60).for_each(|i| put(&mut world, &format!("large {i}"), 1_000_000));
    let large = |world: &World| (0..60).filter(|i| is_there(world, &format!("large {i}"))).count();
    let before = large(&world);
    for second in 0..200 {
        for i in 0..400 {
            put(&mut world, &format!("small {}", (second * 400 + i) % 20_000), 1000);
        }
        world.now_ns.fetch_add(1_000_000_000, std::sync::atomic::Ordering::Relaxed);
        for _ in 0..50 {
            world.keep();
        }
    }
    let small = (0..20_000).filter(|i| is_there(&world, &format!("small {i}"))).count();
    assert_eq!(small, 20_000, "all that are in use have room");
    assert!(large(&world) < before);
    assert_eq!(world.counter(Counter::Refused), 0);
    world.check();
}

#[test]
fn a_value_that_is_coming_is_not_evicted() {
    let mut world = world(SEGMENTS);
    let bytes = value(7, LARGE_BYTES);
    let total = (bytes.len() as u64).to_le_bytes();
    assert_eq!(world.request(Op::PutBegin, b"coming", &total), Status::Done);
    assert_eq!(world.request(Op::PutPart, b"", &bytes[..200_000]), Status::Done);
    (0..300).for_each(|i| put(&mut world, &format!("key {i}"), LARGE_BYTES));
    assert!(world.counter(Counter::Evictions) > 100);
    assert_eq!(world.request(Op::PutPart, b"", &bytes[200_000..]), Status::Done);
    assert_eq!(world.request(Op::PutEnd, b"coming", b""), Status::Done);
    let region = world.table.region();
    let Look::Found { value: found, .. } = look(region, &check::view_of(region).unwrap(), b"coming") else {
        panic!("it is there")
    };
    assert!(found == bytes);
}

#[test]
fn a_value_that_is_too_large_for_the_region_is_refused_and_nothing_goes_for_it() {
    // Eight segments, some of them the superblock's, the directory's and the index's; it would take seven.
    const TOO_MANY_BYTES: usize = 13 << 20;
    let value_max_bytes = 16 << 20;
    let config = TableConfig { evicts: true, value_max_bytes, ..config(1, Some(1000)) };
    let mut world = World::with(8, &config);
    (0..1000).for_each(|i| put(&mut world, &format!("small {i}"), 1000));
    let refused = world.put(b"large", &value(1, TOO_MANY_BYTES)).expect_err("it cannot fit");
    let Refusal::NoRun { run_bytes, .. } = refused else { panic!("{refused}") };
    assert_eq!(run_bytes, Run { first_page: 0, pages: pages_of(24 + 5 + TOO_MANY_BYTES) }.bytes());
    assert!((0..1000).all(|i| is_there(&world, &format!("small {i}"))));
    assert_eq!(world.counter(Counter::Evictions), 0);
    world.check();
}
