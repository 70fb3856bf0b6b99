//! A table with a clock of its own, one worker, and the keeper of its space; and what it should hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kv_common::check;
use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, SEGMENT_BYTES, SEGMENT_WORDS, Slot, superblock};
use kv_common::region::Words;
use kv_common::wire::{Op, Refusal, Reply, Request, Status};
use kv_server::table::{SpaceKeeper, Table, TableConfig, Upkeep, Waiting, Worker};

use super::{Look, SESSION, config, look, sent};

/// A table whose clock hardly moves unless somebody waits, its one worker, and the keeper of its space.
pub(crate) struct World {
    pub(crate) table: Arc<Table>,
    pub(crate) now_ns: Arc<AtomicU64>,
    pub(crate) worker: Worker,
    pub(crate) keeper: SpaceKeeper,
    pub(crate) model: HashMap<Vec<u8>, Vec<u8>>,
    pub(crate) waits: u64,
    /// Steps of the keeper until a write that waits is tried again.
    pub(crate) steps_per_wait: u32,
    /// Keys may go without having been deleted.
    evicts: bool,
    /// Where the key of the last write is.
    pub(crate) slot: Slot,
}

impl World {
    pub(crate) fn new(segments: usize) -> World {
        World::with(segments, &config(1, Some(1000)))
    }

    pub(crate) fn with(segments: usize, config: &TableConfig) -> World {
        let now_ns = Arc::new(AtomicU64::new(1));
        let clock = Arc::clone(&now_ns);
        let region = Words::zeroed(segments * SEGMENT_WORDS);
        // It goes on a little with each look, as clocks do.
        let clock = Arc::new(move || clock.fetch_add(1000, Ordering::Relaxed));
        let table = Table::create_with_clock(region, config, clock).unwrap();
        let (worker, keeper) = (Worker::new(&table, 0), SpaceKeeper::new(&table));
        World {
            table,
            now_ns,
            worker,
            keeper,
            model: HashMap::new(),
            waits: 0,
            steps_per_wait: 1,
            evicts: config.evicts,
            slot: Slot::EMPTY,
        }
    }

    pub(crate) fn request(&mut self, op: Op, key: &[u8], value: &[u8]) -> Status {
        let (value, staging) = sent(value);
        let request = Request::new(1, SESSION, op, key, value);
        let message = request.parts(&request.header()).concat();
        let mut waiting = Waiting::default();
        loop {
            let (mut status, mut slot) = (None, self.slot);
            let is_answered =
                self.worker.handle_or_wait(SESSION, &message, staging.as_ref(), &mut waiting, &mut |reply| {
                    let bytes = [&reply.header()[..], reply.chunk].concat();
                    let reply = Reply::decode(&bytes).expect("a reply");
                    status = Some(reply.status);
                    slot = reply.hint.map_or(slot, |hint| hint.slot);
                });
            self.slot = slot;
            assert_eq!(is_answered, status.is_some(), "a request is answered, or waits");
            if let Some(status) = status {
                return status;
            }
            self.waits += 1;
            for _ in 0..self.steps_per_wait {
                self.keep();
            }
        }
    }

    /// One step of the keeper; if it waits, its time comes.
    pub(crate) fn keep(&mut self) -> Upkeep {
        let keeping = self.keeper.step();
        if let Upkeep::WaitNs(wait_ns) = keeping {
            self.now_ns.fetch_add(wait_ns, Ordering::Relaxed);
        }
        keeping
    }

    /// Lets splits of index segments come to their end.
    pub(crate) fn finish_splits(&self) {
        loop {
            match self.table.grow(&mut |_| true) {
                Upkeep::Busy => {}
                Upkeep::WaitNs(wait_ns) => drop(self.now_ns.fetch_add(wait_ns, Ordering::Relaxed)),
                Upkeep::Idle => return,
            }
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        match self.request(Op::Put, key, value) {
            Status::Done => {
                self.model.insert(key.to_vec(), value.to_vec());
                Ok(())
            }
            Status::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn delete(&mut self, key: &[u8]) {
        let expected = if self.model.remove(key).is_some() { Status::Done } else { Status::NotFound };
        let found = self.request(Op::Delete, key, b"");
        assert!(found == expected || (self.evicts && found == Status::NotFound), "{found:?}");
    }

    /// Puts keys with values of so many bytes until there is no room. Returns how many.
    pub(crate) fn fill(&mut self, prefix: &str, value_bytes: usize) -> usize {
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
    pub(crate) fn live_share(&self) -> f64 {
        let walk = check::walk(self.table.region());
        let live = walk.report.data_bytes + walk.report.keys * BLOCK_HEADER_BYTES as u64;
        let segments = walk.report.block_segments + walk.report.free_segments;
        live as f64 / (segments * SEGMENT_BYTES) as f64
    }

    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        let pages = superblock::counter_pages(1);
        pages.map(|page| self.table.region().load(page + counter as usize)).fold(0, u64::wrapping_add)
    }

    /// Every key has its value, the table is sound, and what was deleted is gone. What was evicted is gone from the model, too.
    pub(crate) fn check(&mut self) {
        let (mut unclear, mut evicted) = (Vec::new(), Vec::new());
        self.finish_splits();
        let view = check::view_of(self.table.region()).unwrap();
        for (key, value) in &self.model {
            match look(self.table.region(), &view, key) {
                Look::Found { value: found, .. } => assert_eq!(found, *value),
                Look::Absent if self.evicts => evicted.push(key.clone()),
                Look::Absent => panic!("{key:?} is missed"),
                // Two keys with one fingerprint.
                Look::Unclear => unclear.push(key.clone()),
            }
        }
        assert!(unclear.len() <= 1 + self.model.len() / 1000, "{} keys are unclear", unclear.len());
        for key in evicted {
            self.model.remove(&key);
        }
        for key in unclear {
            if self.request(Op::Get, &key, b"") == Status::NotFound && self.evicts {
                self.model.remove(&key);
                continue;
            }
            assert_eq!(self.request(Op::Get, &key, b""), Status::Done);
        }
        let report = self.table.check().unwrap_or_else(|findings| panic!("{findings:#?}"));
        assert_eq!(report.keys, self.model.len() as u64);
    }
}

/// Bytes that differ from key to key.
pub(crate) fn value(number: usize, value_bytes: usize) -> Vec<u8> {
    (0..value_bytes).map(|i| (number.wrapping_mul(31) + i) as u8).collect()
}
