//! Delete.

use kv_common::layout::{Counter, LineNumber, Slot, stored_bytes};
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
        let _held = self.table.stripes.lock(hash.home());
        let home = self.table.index.home(hash);
        let at = self.table.find(key, hash, home);
        if let Some(unmet) = self.table.unmet(condition, at) {
            return Err(unmet);
        }
        let at = at.filter(|&at| self.table.is_live(at)).ok_or(Outcome::NotFound)?;
        Ok(self.remove(at, home, Counter::Deletes, Some(ack)))
    }

    /// Makes the key whose slot is `at` absent, under the stripes. Returns the slot as it was, whose block is to be retired.
    pub(super) fn remove(
        &self,
        at: At,
        home: LineNumber,
        why: Counter,
        ack: Option<&mut Ack<'_>>,
    ) -> (Written, Slot) {
        let twin = self.table.twin(home, at);
        let lengths = self.table.lengths_of(at.slot.place());
        let written = self.table.written(At { slot: Slot::EMPTY, ..at });
        if let Some(ack) = ack {
            ack.before_stores(&written);
        }
        self.publish_delete(at, twin, home);
        self.counters.add(why, 1);
        self.counters.sub(Counter::Keys, 1);
        self.counters.sub(Counter::BlockBytes, stored_bytes(lengths.block_bytes()));
        self.counters.sub(Counter::DataBytes, lengths.data_bytes() as u64);
        self.note_expiring(false, lengths.expires());
        (written, at.slot)
    }
}
