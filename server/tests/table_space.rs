//! Segments that change their use: what is deleted gives its space to values of other sizes, and nobody loses a key by it.

mod table_support;

use std::sync::atomic::Ordering;

use kv_common::layout::{Counter, SEGMENT_BYTES, superblock};
use kv_common::limits::{INLINE_VALUE_MAX_BYTES, LEASE_NS};
use kv_common::wire::{Op, Refusal, Status};
use kv_server::table::Upkeep;
use table_support::world::{World, value};

const SEGMENTS: usize = 24;

#[test]
fn what_was_deleted_gives_its_space_to_values_of_any_other_size() {
    let mut world = World::new(SEGMENTS);
    for (round, value_bytes) in [40, 3000, 700, 8000, 232].into_iter().enumerate() {
        let keys = world.fill(&format!("{round}-"), value_bytes);
        let share = world.live_share();
        assert!(share >= 0.85, "{keys} values of {value_bytes} bytes are {share:.3} of the room");
        world.check();
        for i in 0..keys {
            world.delete(format!("{round}-{i}").as_bytes());
        }
        world.check();
    }
    assert!(world.counter(Counter::SegmentsReused) as usize >= 3 * SEGMENTS / 2);
    assert!(world.counter(Counter::WritesWaited) > 0);
}

#[test]
fn segments_with_few_values_are_emptied_and_no_value_is_lost() {
    let mut world = World::new(SEGMENTS);
    let keys = world.fill("a", 1000);
    // One of four stays, everywhere.
    for i in (0..keys).filter(|i| i % 4 != 0) {
        world.delete(format!("a{i}").as_bytes());
    }
    world.check();
    let more = world.fill("b", 5000);
    let share = world.live_share();
    assert!(share >= 0.85, "{more} more values: {share:.3} of the room");
    assert!(world.counter(Counter::BlocksMoved) as usize > keys / 8);
    world.check();
}

#[test]
fn everything_deleted_gives_all_space_back_to_the_byte() {
    let mut world = World::new(SEGMENTS);
    let index_before = world.table.index_segments();
    for value_bytes in [10, 100, 1000, 7000] {
        for i in 0..500 {
            world.put(format!("{value_bytes} {i}").as_bytes(), &value(i, value_bytes)).unwrap();
        }
    }
    for key in world.model.keys().cloned().collect::<Vec<_>>() {
        world.delete(&key);
    }
    world.worker.idle();
    let report = world.table.check().unwrap();
    assert_eq!((report.keys, report.block_bytes, report.data_bytes, report.waiting_blocks), (0, 0, 0, 0));
    // Every block is free, and so can be every segment: as many large values fit as before.
    let fixed = 2 + index_before as usize;
    let filled = world.fill("x", 8000);
    assert_eq!(filled, (SEGMENTS - fixed) * (SEGMENT_BYTES as usize / 8192));
    world.check();
}

#[test]
fn a_segment_is_free_no_sooner_than_lease_after_the_place_epoch_was_raised() {
    let mut world = World::new(SEGMENTS);
    let keys = world.fill("a", 1000);
    for i in 0..keys {
        world.delete(format!("a{i}").as_bytes());
    }
    world.worker.idle();
    let epoch = |world: &World| world.table.region().load(superblock::PLACE_EPOCH);
    let free_before = world.table.free_segments();
    let (before, began_ns) = (epoch(&world), world.now_ns.load(Ordering::Relaxed));
    let wait_ns = loop {
        match world.keeper.step() {
            Upkeep::Busy => {}
            Upkeep::WaitNs(wait_ns) => break wait_ns,
            Upkeep::Idle => panic!("there is enough to make free"),
        }
    };
    assert_eq!(epoch(&world), before + 1, "one new epoch for all of them");
    assert!(wait_ns > LEASE_NS, "{wait_ns} ns");
    world.now_ns.store(began_ns + LEASE_NS, Ordering::Relaxed);
    assert!(matches!(world.keeper.step(), Upkeep::WaitNs(_)), "a clock may run a little faster");
    assert_eq!(world.table.free_segments(), free_before);
    world.now_ns.store(began_ns + 2 * wait_ns, Ordering::Relaxed);
    assert_eq!(world.keeper.step(), Upkeep::Busy);
    assert!(world.table.free_segments() > free_before);
    world.check();
}

#[test]
fn a_full_region_says_so_once_nothing_can_be_made_free() {
    let mut world = World::new(12);
    world.fill("a", 3000);
    let waits = world.waits;
    let puts = world.counter(Counter::Puts);
    let refusal = world.put(b"one more", &value(1, 3000)).unwrap_err();
    assert!(matches!(refusal, Refusal::RegionFull { free_segments: 0, .. }), "{refusal}");
    assert!((1..10).contains(&(world.waits - waits)), "it is clear after some steps");
    assert_eq!(world.counter(Counter::Puts), puts + 1, "one request, however often it was tried");
    // What is updated in place needs no room.
    world.put(b"a0", &value(77, 3000)).unwrap();
    world.check();
}

/// Puts a value that lies in pages, in parts as small as messages.
fn put_large(world: &mut World, key: &[u8], value: &[u8]) -> Status {
    let begun = world.request(Op::PutBegin, key, &(value.len() as u64).to_le_bytes());
    if begun != Status::Done {
        return begun;
    }
    for part in value.chunks(INLINE_VALUE_MAX_BYTES) {
        assert_eq!(world.request(Op::PutPart, b"", part), Status::Done);
    }
    world.request(Op::PutEnd, key, b"")
}

#[test]
fn segments_of_pages_go_to_blocks_and_back() {
    let mut world = World::new(SEGMENTS);
    let room = SEGMENTS - 2 - world.table.index_segments() as usize;
    for round in 0..3 {
        // 16 pages each: two in a segment.
        let mut stored = 0;
        let refused = loop {
            match put_large(&mut world, &[b'L', stored], &value(stored.into(), 1_000_000)) {
                Status::Done => stored += 1,
                other => break other,
            }
        };
        assert!(matches!(refused, Status::Refused(Refusal::NoRun { .. })), "{refused:?}");
        assert!(usize::from(stored) >= 2 * room - 4, "{stored} in round {round}");
        world.table.check().unwrap_or_else(|findings| panic!("{findings:#?}"));
        for i in 0..stored {
            assert_eq!(world.request(Op::Delete, &[b'L', i], b""), Status::Done);
        }
        world.check();
        let keys = world.fill(&format!("{round}-"), 1000);
        let share = world.live_share();
        assert!(share >= 0.85, "{keys} small values: {share:.3} of the room");
        world.check();
        for i in 0..keys {
            world.delete(format!("{round}-{i}").as_bytes());
        }
        world.check();
    }
}
