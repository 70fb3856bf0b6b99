//! Delete.

use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, Slot};

use super::Worker;
use super::lookup::At;
use super::put::{Outcome, Written};
use crate::dispatch::Ack;

impl Worker {
    /// Makes `key` absent.
    pub(crate) fn delete(&mut self, key: &[u8], ack: &mut Ack<'_>) -> Outcome {
        let Some((written, retired)) = self.delete_held(key, ack) else { return Outcome::NotFound };
        self.retire(retired);
        Outcome::Written(written)
    }

    /// The part under the stripes. Returns the slot as it was, whose block is to be retired.
    fn delete_held(&self, key: &[u8], ack: &mut Ack<'_>) -> Option<(Written, Slot)> {
        let hash = self.table.view.hash(key);
        let _held = self.table.stripes.lock(hash.home());
        let home = self.table.index.home(hash);
        let at = self.table.find(key, hash, home)?;
        let twin = self.table.twin(home, at);
        let data_bytes = self.table.lengths_of(at.slot.place()).block_bytes() - BLOCK_HEADER_BYTES;
        let written = self.table.written(At { slot: Slot::EMPTY, ..at });
        ack.before_stores(&written);
        self.publish_delete(at, twin, home);
        self.counters.add(Counter::Deletes, 1);
        self.counters.sub(Counter::Keys, 1);
        self.counters.sub(Counter::BlockBytes, at.slot.span().bytes());
        self.counters.sub(Counter::DataBytes, data_bytes as u64);
        Some((written, at.slot))
    }
}
