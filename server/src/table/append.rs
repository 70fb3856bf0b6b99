//! Append where that makes a large value.
//!
//! The new block is made beside the old one without the stripes, under an epoch, and published only if the key still has the
//! version that it was made of. A key that is written again and again meanwhile is held at last while it is copied.

use std::sync::Arc;

use kv_common::layout::{BLOCK_HEADER_BYTES, is_large};
use kv_common::wire::{Condition, Refusal};

use super::draft::Draft;
use super::lookup::At;
use super::modify::Change;
use super::put::{Left, Outcome};
use super::{Table, Worker};
use crate::dispatch::Ack;

impl Table {
    /// True if putting `more_bytes` behind the value of the key whose slot is `at`, or that has none, makes a large block.
    pub(super) fn becomes_large(&self, at: Option<At>, key: &[u8], more_bytes: usize) -> bool {
        let old_bytes = at.map_or(0, |at| self.lengths_of(at.slot.place()).value_bytes as usize);
        is_large(BLOCK_HEADER_BYTES + key.len() + old_bytes + more_bytes)
    }
}

impl Worker {
    /// Puts `more` behind the value of `key`, if the condition holds. None if the key was written meanwhile, or the block is no
    /// large one: neither is possible if the key `is_held` all the time.
    pub(super) fn append_large(
        &mut self,
        key: &[u8],
        more: &[u8],
        condition: Condition,
        is_held: bool,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Option<Outcome>, Refusal> {
        let table = Arc::clone(&self.table);
        let hash = table.view.hash(key);
        let home = table.view.home(hash);
        let version = |at: Option<At>| at.map(|at| table.version_of(at.slot.place()));
        let _pinned = self.epoch.pin();
        let mut held = Some(table.stripes.lock(home));
        let seen = table.find(key, hash, home);
        if let Some(unmet) = table.unmet(condition, seen) {
            return Ok(Some(unmet));
        }
        let seen_version = version(seen);
        let old = seen.map(|at| (at.slot.place(), table.lengths_of(at.slot.place())));
        if !is_held {
            held = None;
        }
        let old_bytes = old.map_or(0, |(_, lengths)| lengths.value_bytes as usize);
        let value_bytes = old_bytes + more.len();
        table.check_value_bytes(value_bytes as u64)?;
        if !is_large(BLOCK_HEADER_BYTES + key.len() + value_bytes) {
            // It has become shorter since it was looked at.
            let Some(_held) = held else { return Ok(None) };
            return self.modify_held(seen, hash, home, key, Change::Append(more), left, ack).map(Some);
        }
        let mut draft = Draft::begin(&table, key, value_bytes, left)?;
        if let Some((place, lengths)) = old {
            let value = 0..lengths.value_bytes as usize;
            table.read_value(place, lengths, value, &mut self.block, |bytes| {
                draft.write(&table.region, bytes)
            });
        }
        draft.write(&table.region, more);
        let payload = draft.finish(&table.region);
        let _held = match held {
            Some(held) => held,
            None => table.stripes.lock(home),
        };
        let at = table.find(key, hash, home);
        if version(at) != seen_version {
            return Ok(None);
        }
        ack.has_made(value_bytes, None);
        self.store(at, hash, home, &payload, left, ack).map(Some)
    }
}
