//! Insert and update, with and without a condition.
//!
//! What depends on key and value alone (the payload and its hash) is made before the stripes are taken; blocks too large
//! to be updated in place are even written to the region before, since nobody can reach them yet. Those that lie in pages
//! always are, see `draft`.

use kv_common::block;
use kv_common::hash::KeyHash;
use kv_common::layout::{
    BLOCK_HEADER_BYTES, Counter, EXPIRY_BYTES, LineNumber, Place, Slot, Span, is_large, stored_bytes,
};
use kv_common::region::bytes_of;
use kv_common::wire::{Condition, IndexHint, Refusal};

use super::draft::Draft;
use super::growth::WaitForRoom;
use super::lookup::{At, Room};
use super::worker::grown;
use super::{Table, Worker};
use crate::dispatch::Ack;

/// Blocks up to this size are updated in place when their span stays the same. Then every place that a reader has cached
/// stays good and no block has to come back through the epochs; but a reader that comes while it is written has to look
/// again. A block of this size is written in some 200 ns, less than a remote READ of it takes. Larger ones get a new
/// block: their readers would look again too often, and their payload can be written before the stripes are taken.
const IN_PLACE_BYTES_MAX: u64 = 4096;
/// Times that a write looks for a block while blocks are on their way back. Another worker may have to be given the
/// processor before it lets go of them.
const BLOCK_ATTEMPTS_MAX: u32 = 200;
/// Times that a write evicts to get room.
const EVICTIONS_MAX: u32 = 8;

/// A write that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// The write's version. Deletes have one too: it orders all writes of a key.
    pub(crate) version: u64,
    /// What the slot holds now.
    pub(crate) hint: IndexHint,
}

/// How a write ended that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Written(Written),
    /// The key is not present, and the condition or the operation wants it to be.
    NotFound,
    /// The condition does not hold of the key, which has this version.
    Unmet(u64),
}

/// A payload in the worker's private memory, words 2 and up of a block that is yet to get a place and a version; or that of
/// a draft in pages.
#[derive(Clone, Copy)]
pub(super) struct Payload {
    /// Words in private memory; none of a draft in pages.
    pub(super) words: usize,
    pub(super) hash: u64,
    pub(super) span: Span,
    /// Bytes of the region that its block takes.
    pub(super) stored_bytes: u64,
    /// Bytes of key and value.
    pub(super) data_bytes: u64,
    pub(super) expires_ns: Option<u64>,
}

/// Blocks that a write leaves behind when it has released its stripes.
#[derive(Default)]
pub(super) struct Left {
    /// Written and never published: free at once.
    pub(super) draft: Option<(Span, Place)>,
    /// Published once: free when no worker looks at it any more.
    pub(super) retired: Option<Slot>,
    /// The index segment of a new key, if it is to be split or is being split.
    growing_segment: Option<u64>,
}

impl Worker {
    /// Inserts or updates `key`, if the condition holds.
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        ttl_ns: Option<u64>,
        condition: Condition,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        self.table.check_value_bytes(value.len() as u64)?;
        let expires_ns = ttl_ns.map(|ttl_ns| self.table.expires_in(ttl_ns));
        let hash = self.table.view.hash(key);
        if is_large(block_bytes(key.len() + value.len(), expires_ns.is_some())) {
            return self.with_room(hash, |worker, left| {
                let table = &worker.table;
                let mut draft = Draft::begin(table, key, value.len(), expires_ns.is_some(), left)?;
                draft.write(&table.region, value);
                worker.write(key, hash, &draft.finish(&table.region, expires_ns), condition, left, ack)
            });
        }
        let payload = self.encode_payload(key, value, expires_ns);
        self.with_room(hash, |worker, left| worker.write(key, hash, &payload, condition, left, ack))
    }

    /// Carries out what may need a block, and a slot for a key. It is tried again while blocks are on their way back, a split
    /// will make room, or others can be evicted for it.
    pub(super) fn with_room<T>(
        &mut self,
        hash: KeyHash,
        mut write: impl FnMut(&mut Worker, &mut Left) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (mut attempts, mut evictions) = (1, 0);
        let mut room = WaitForRoom::new(hash);
        loop {
            let mut left = Left::default();
            let outcome = write(self, &mut left);
            self.clean_up(left);
            if let Err(full @ (Refusal::IndexFull { .. } | Refusal::HomeFull { .. })) = &outcome
                && room.wait(&self.table, matches!(full, Refusal::HomeFull { .. }), &self.counters)
            {
                continue;
            }
            if let &Err(full) = &outcome
                && evictions < EVICTIONS_MAX
            {
                let has_room = self.make_room(full, hash);
                // For a run a look over many takes long, whatever comes of it.
                evictions += u32::from(has_room || matches!(full, Refusal::NoRun { .. }));
                if has_room {
                    continue;
                }
            }
            let is_full = matches!(outcome, Err(Refusal::RegionFull { .. } | Refusal::NoRun { .. }));
            if !is_full || attempts >= BLOCK_ATTEMPTS_MAX {
                return outcome;
            }
            if self.table.slab.waiting() == 0 {
                // The last one may have come back just now; after one more look it is certain that there is none.
                attempts = BLOCK_ATTEMPTS_MAX;
                continue;
            }
            if attempts > 1 {
                std::thread::yield_now();
            }
            self.reclaim();
            attempts += 1;
        }
    }

    pub(super) fn write(
        &self,
        key: &[u8],
        hash: KeyHash,
        payload: &Payload,
        condition: Condition,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let table = &*self.table;
        if payload.span.bytes() > IN_PLACE_BYTES_MAX {
            self.write_draft(payload, left)?;
        }
        let _held = table.stripes.lock(hash.home());
        let home = table.index.home(hash);
        let at = table.find(key, hash, home);
        if let Some(unmet) = table.unmet(condition, at) {
            return Ok(unmet);
        }
        self.store(at, hash, home, payload, left, ack)
    }

    /// Gives the key whose slot is `at`, or that has none, the value in `payload`. Under the stripes.
    pub(super) fn store(
        &self,
        at: Option<At>,
        hash: KeyHash,
        home: LineNumber,
        payload: &Payload,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let written = match at {
            None => self.insert(hash, home, payload, left, ack)?,
            Some(at) if is_in_place(at.slot, payload.span) => self.update_in_place(at, payload, ack),
            Some(at) => self.update_moved(at, hash, home, payload, left, ack)?,
        };
        if let Some(expires_ns) = payload.expires_ns {
            self.table.expiry.note_written(expires_ns);
        }
        Ok(Outcome::Written(written))
    }

    fn insert(
        &self,
        hash: KeyHash,
        home: LineNumber,
        payload: &Payload,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Written, Refusal> {
        let room = self.table.room(home)?;
        let place = self.write_draft(payload, left)?;
        let at = match room {
            Room::Slot(at) => at,
            Room::BehindTail(_) => {
                let index_segments = self.table.index_segments();
                let line =
                    self.table.index.take_overflow(home).ok_or(Refusal::IndexFull { index_segments })?;
                At { line, index: 0, slot: Slot::EMPTY }
            }
        };
        left.draft = None;
        let at = At { slot: Slot::new(hash.fingerprint(), payload.span, place), ..at };
        let written = self.table.written(at);
        ack.before_stores(&written);
        let segment = at.line.segment();
        if self.publish_insert(at, room, home, payload, written.version)
            || self.table.index.is_source(segment)
        {
            left.growing_segment = Some(segment);
        }
        self.table.note_new(at.slot);
        self.counters.add(Counter::Inserts, 1);
        self.counters.add(Counter::Keys, 1);
        self.counters.add(Counter::BlockBytes, payload.stored_bytes);
        self.counters.add(Counter::DataBytes, payload.data_bytes);
        self.note_expiring(payload.expires_ns.is_some(), false);
        Ok(written)
    }

    fn update_in_place(&self, at: At, payload: &Payload, ack: &mut Ack<'_>) -> Written {
        let written = self.table.written(at);
        ack.before_stores(&written);
        self.count_replaced(at, payload);
        self.publish_in_place(at, payload, written.version);
        self.table.note_use(at.slot);
        self.counters.add(Counter::UpdatesInPlace, 1);
        written
    }

    fn update_moved(
        &self,
        at: At,
        hash: KeyHash,
        home: LineNumber,
        payload: &Payload,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Written, Refusal> {
        let place = self.write_draft(payload, left)?;
        let twin = self.table.twin(home, at);
        let new = At { slot: Slot::new(hash.fingerprint(), payload.span, place), ..at };
        *left = Left { retired: Some(at.slot), ..Left::default() };
        let written = self.table.written(new);
        ack.before_stores(&written);
        self.count_replaced(at, payload);
        self.publish_moved(at.slot.place(), new, twin, payload, written.version);
        self.table.note_renewed(new.slot);
        self.counters.add(Counter::UpdatesMoved, 1);
        Ok(written)
    }

    /// Finds a block for `payload` and writes it, not live, unless that was done before.
    fn write_draft(&self, payload: &Payload, left: &mut Left) -> Result<Place, Refusal> {
        if let Some((_, place)) = left.draft {
            return Ok(place);
        }
        let Some(place) = self.table.slab.take(payload.span) else {
            return Err(Refusal::RegionFull {
                block_bytes: payload.span.bytes(),
                free_segments: self.table.free_segments(),
            });
        };
        left.draft = Some((payload.span, place));
        self.store_draft(place, payload);
        Ok(place)
    }

    pub(super) fn encode_payload(&mut self, key: &[u8], value: &[u8], expires_ns: Option<u64>) -> Payload {
        let data_bytes = key.len() + value.len();
        let words =
            grown(&mut self.block, (8 + data_bytes + expires_ns.map_or(0, |_| EXPIRY_BYTES)).div_ceil(8));
        let payload_bytes = block::encode_payload(words, key, value, expires_ns);
        let span = Span::of_bytes(block_bytes(data_bytes, expires_ns.is_some()));
        Payload {
            words: words.len(),
            hash: block::hash_of(&bytes_of(words)[..payload_bytes]),
            span,
            stored_bytes: span.bytes(),
            data_bytes: data_bytes as u64,
            expires_ns,
        }
    }

    fn count_replaced(&self, at: At, payload: &Payload) {
        let old = self.table.lengths_of(at.slot.place());
        self.counters.add(Counter::BlockBytes, payload.stored_bytes);
        self.counters.sub(Counter::BlockBytes, stored_bytes(old.block_bytes()));
        self.counters.add(Counter::DataBytes, payload.data_bytes);
        self.counters.sub(Counter::DataBytes, old.data_bytes() as u64);
        self.note_expiring(payload.expires_ns.is_some(), old.expires());
    }

    pub(super) fn clean_up(&self, left: Left) {
        if let Some((span, place)) = left.draft {
            self.table.slab.give_back(span, place);
        }
        if let Some(slot) = left.retired {
            self.retire(slot);
        }
        if let Some(segment) = left.growing_segment {
            self.table.help_if_late(segment, &self.counters);
        }
    }
}

impl Table {
    /// How a write ends whose condition does not hold of the key whose slot is `at`, or that has none.
    pub(super) fn unmet(&self, condition: Condition, at: Option<At>) -> Option<Outcome> {
        let version = at.filter(|&at| self.is_live(at)).map(|at| self.version_of(at.slot.place()));
        (!condition.holds(version)).then(|| version.map_or(Outcome::NotFound, Outcome::Unmet))
    }

    /// Refuses values beyond what the server was told to take.
    pub(super) fn check_value_bytes(&self, found_bytes: u64) -> Result<(), Refusal> {
        let limit_bytes = self.view.value_max_bytes as u64;
        if found_bytes > limit_bytes {
            return Err(Refusal::ValueTooLarge { found_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Draws the version of a write that leaves `at` behind.
    pub(super) fn written(&self, at: At) -> Written {
        let hint = IndexHint {
            place_epoch: self.place_epoch(),
            line: at.line,
            slot_index: at.index as u16,
            slot: at.slot,
        };
        Written { version: self.versions.next(&self.region), hint }
    }
}

/// Bytes of a block with so many bytes of key and value.
pub(super) fn block_bytes(data_bytes: usize, expires: bool) -> usize {
    BLOCK_HEADER_BYTES + data_bytes + if expires { EXPIRY_BYTES } else { 0 }
}

fn is_in_place(old: Slot, span: Span) -> bool {
    old.span() == span && span.bytes() <= IN_PLACE_BYTES_MAX
}
