//! Segments that change their use: what is deleted gives its space to values of other sizes, and nobody loses a key by it.

mod table_support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, SEGMENT_BYTES, SEGMENT_WORDS, superblock};
use kv_common::limits::LEASE_NS;
use kv_common::region::Words;
use kv_common::wire::{Op, Refusal, Reply, Request, Status, Value};
use kv_server::table::{Growing, Keeping, SpaceKeeper, Table, Waiting, Worker, walk};
use table_support::{Look, SESSION, config, look};

const SEGMENTS: usize = 24;

/// A table whose clock hardly moves unless somebody waits, its one worker, and the keeper of its space.
struct World {
    table: Arc<Table>,
    now_ns: Arc<AtomicU64>,
    worker: Worker,
    keeper: SpaceKeeper,
    model: HashMap<Vec<u8>, Vec<u8>>,
    waits: u64,
}

impl World {
    fn new(segments: usize) -> World {
        let now_ns = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now_ns);
        let region = Words::zeroed(segments * SEGMENT_WORDS);
        // It goes on a little with each look, as clocks do.
        let clock = Arc::new(move || clock.fetch_add(1000, Ordering::Relaxed));
        let table = Table::create_with_clock(region, &config(1, Some(1000)), clock).unwrap();
        let (worker, keeper) = (Worker::new(&table, 0), SpaceKeeper::new(&table));
        World { table, now_ns, worker, keeper, model: HashMap::new(), waits: 0 }
    }

    fn request(&mut self, op: Op, key: &[u8], value: &[u8]) -> Status {
        let request = Request::new(1, SESSION, op, key, Value::Inline(value));
        let message = request.parts(&request.header()).concat();
        let mut waiting = Waiting::default();
        loop {
            let mut status = None;
            let is_answered =
                self.worker.handle_or_wait(SESSION, &message, None, &mut waiting, &mut |reply| {
                    let bytes = [&reply.header()[..], reply.chunk].concat();
                    status = Some(Reply::decode(&bytes).expect("a reply").status);
                });
            assert_eq!(is_answered, status.is_some(), "a request is answered, or waits");
            if let Some(status) = status {
                return status;
            }
            self.waits += 1;
            self.keep();
        }
    }

    /// One step of the keeper; if it waits, its time comes.
    fn keep(&mut self) -> Keeping {
        let keeping = self.keeper.step();
        if let Keeping::WaitNs(wait_ns) = keeping {
            self.now_ns.fetch_add(wait_ns, Ordering::Relaxed);
        }
        keeping
    }

    /// Lets splits of index segments come to their end.
    fn finish_splits(&self) {
        loop {
            match self.table.grow(&mut |_| true) {
                Growing::Busy => {}
                Growing::WaitNs(wait_ns) => drop(self.now_ns.fetch_add(wait_ns, Ordering::Relaxed)),
                Growing::Idle => return,
            }
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        match self.request(Op::Put, key, value) {
            Status::Done => {
                self.model.insert(key.to_vec(), value.to_vec());
                Ok(())
            }
            Status::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    fn delete(&mut self, key: &[u8]) {
        let expected = if self.model.remove(key).is_some() { Status::Done } else { Status::NotFound };
        assert_eq!(self.request(Op::Delete, key, b""), expected);
    }

    /// Puts keys with values of so many bytes until there is no room. Returns how many.
    fn fill(&mut self, prefix: &str, value_bytes: usize) -> usize {
        for i in 0.. {
            let key = format!("{prefix}{i}");
            if let Err(refusal) = self.put(key.as_bytes(), &value(i, value_bytes)) {
                let is_full = matches!(refusal, Refusal::RegionFull { .. } | Refusal::IndexFull { .. });
                assert!(is_full, "{refusal}");
                return i;
            }
        }
        unreachable!("the region is full at some time");
    }

    /// Bytes of live data, headers included, as a share of all segments that hold neither superblock nor index.
    fn live_share(&self) -> f64 {
        let walk = walk::walk(self.table.region()).unwrap();
        let live = walk.report.data_bytes + walk.report.keys * BLOCK_HEADER_BYTES as u64;
        let segments = walk.report.block_segments + walk.report.free_segments;
        live as f64 / (segments * SEGMENT_BYTES) as f64
    }

    fn counter(&self, counter: Counter) -> u64 {
        let pages = superblock::counter_pages(1);
        pages.map(|page| self.table.region().load(page + counter as usize)).fold(0, u64::wrapping_add)
    }

    /// Every key has its value, the table is sound, and what was deleted is gone.
    fn check(&mut self) {
        let mut unclear = Vec::new();
        self.finish_splits();
        let view = walk::view_of(self.table.region()).unwrap();
        for (key, value) in &self.model {
            match look(self.table.region(), &view, key) {
                Look::Found { value: found, .. } => assert_eq!(found, *value),
                Look::Absent => panic!("{key:?} is missed"),
                // Two keys with one fingerprint.
                Look::Unclear => unclear.push(key.clone()),
            }
        }
        assert!(unclear.len() <= 1 + self.model.len() / 1000, "{} keys are unclear", unclear.len());
        for key in unclear {
            assert_eq!(self.request(Op::Get, &key, b""), Status::Done);
        }
        let report = self.table.check().unwrap_or_else(|findings| panic!("{findings:#?}"));
        assert_eq!(report.keys, self.model.len() as u64);
    }
}

/// Bytes that differ from key to key.
fn value(number: usize, value_bytes: usize) -> Vec<u8> {
    (0..value_bytes).map(|i| (number.wrapping_mul(31) + i) as u8).collect()
}

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
            Keeping::Busy => {}
            Keeping::WaitNs(wait_ns) => break wait_ns,
            Keeping::Idle => panic!("there is enough to make free"),
        }
    };
    assert_eq!(epoch(&world), before + 1, "one new epoch for all of them");
    assert!(wait_ns > LEASE_NS, "{wait_ns} ns");
    world.now_ns.store(began_ns + LEASE_NS, Ordering::Relaxed);
    assert!(matches!(world.keeper.step(), Keeping::WaitNs(_)), "a clock may run a little faster");
    assert_eq!(world.table.free_segments(), free_before);
    world.now_ns.store(began_ns + 2 * wait_ns, Ordering::Relaxed);
    assert_eq!(world.keeper.step(), Keeping::Busy);
    assert!(world.table.free_segments() > free_before);
    world.check();
}

#[test]
fn a_full_region_says_so_once_nothing_can_be_made_free() {
    let mut world = World::new(12);
    world.fill("a", 3000);
    let waits = world.waits;
    let refusal = world.put(b"one more", &value(1, 3000)).unwrap_err();
    assert!(matches!(refusal, Refusal::RegionFull { free_segments: 0, .. }), "{refusal}");
    assert!(world.waits - waits < 10, "it is clear after some steps");
    // What is updated in place needs no room.
    world.put(b"a0", &value(77, 3000)).unwrap();
    world.check();
}
