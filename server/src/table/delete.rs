//! Delete.

use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, Slot, stored_bytes};
use kv_common::wire::Condition;

use super::Worker;
use super::lookup::At;
use super::put::{Outcome, Written};
use crate::dispatch::Ack;

impl Worker {
    /// Makes `key` absent, if the condition holds.
    pub(crate) fn delete(&mut self, key: &[u8], condition: Condition, ack: &mut Ack<'_>) -> Outcome {
        match self.delete_held(key, condition, ack) {
            Ok((written, retired)) => {
                self.retire(retired);
                Outcome::Written(written)
            }
            Err(not_done) => not_done,
        }
    }

    /// The part under the stripes. Returns the slot as it was, whose block is to be retired.
    fn delete_held(
        &self,
        key: &[u8],
        condition: Condition,
        ack: &mut Ack<'_>,
    ) -> Result<(Written, Slot), Outcome> {
        let hash = self.table.view.hash(key);
        let home = self.table.view.home(hash);
        let _held = self.table.stripes.lock(home);
        let at = self.table.find(key, hash, home);
        if let Some(unmet) = self.table.unmet(condition, at) {
            return Err(unmet);
        }
        let at = at.ok_or(Outcome::NotFound)?;
        let block_bytes = self.table.lengths_of(at.slot.place()).block_bytes();
        let written = self.table.written(At { slot: Slot::EMPTY, ..at });
        ack.before_stores(&written);
        self.publish_delete(at, home);
        self.counters.add(Counter::Deletes, 1);
        self.counters.sub(Counter::Keys, 1);
        self.counters.sub(Counter::BlockBytes, stored_bytes(block_bytes));
        self.counters.sub(Counter::DataBytes, (block_bytes - BLOCK_HEADER_BYTES) as u64);
        Ok((written, at.slot))
    }
}
