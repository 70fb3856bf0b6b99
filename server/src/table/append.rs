//! Append and touch where that makes a large value.
//!
//! The new block is made beside the old one without the stripes, under an epoch, and published only if the key still has the
//! version that it was made of, and its time is not over. A key that is written again and again meanwhile is held at last while
//! it is copied.

use std::sync::Arc;

use kv_common::hash::KeyHash;
use kv_common::layout::is_large;
use kv_common::limits::ANSWER_MAX_BYTES;
use kv_common::wire::{Condition, Refusal};

use super::draft::Draft;
use super::lookup::At;
use super::modify::Change;
use super::put::{Left, Outcome, block_bytes};
use super::{Table, Worker};
use crate::dispatch::Ack;

impl Change<'_> {
    /// What it puts behind the value.
    fn more(&self) -> &[u8] {
        if let Change::Append(more) = self { more } else { &[] }
    }
}

impl Table {
    /// True if the change makes a large block of the key whose slot is `at`, or that has none. Under the stripes.
    pub(super) fn becomes_large(&self, at: Option<At>, key: &[u8], change: Change<'_>) -> bool {
        let Some(place) = self.live_place(at) else {
            return matches!(change, Change::Append(more) if is_large(block_bytes(key.len() + more.len(), false)));
        };
        let lengths = self.lengths_of(place);
        let expires = match change {
            // It leaves a short text, or nothing.
            Change::Add(_) => return false,
            Change::Append(_) => lengths.expires(),
            Change::Touch(ttl_ns) => ttl_ns.is_some(),
        };
        is_large(block_bytes(lengths.data_bytes() + change.more().len(), expires))
    }
}

impl Worker {
    /// Changes the value of `key`, if the condition holds. None if the key was written meanwhile, or its time is over by now, or
    /// the block is no large one: the first and the last are not possible if the key `is_held` all the time.
    #[allow(
        clippy::too_many_arguments,
        reason = "a change, how to make it, and where to note what it leaves"
    )]
    pub(super) fn make_large(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        change: Change<'_>,
        condition: Condition,
        is_held: bool,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Option<Outcome>, Refusal> {
        let table = Arc::clone(&self.table);
        let _pinned = self.epoch.pin();
        let mut held = Some(table.stripes.lock(hash.home()));
        let home = table.index.home(hash);
        let seen = table.find(key, hash, home);
        if let Some(unmet) = table.unmet(condition, seen) {
            return Ok(Some(unmet));
        }
        if !table.becomes_large(seen, key, change) {
            // It has become shorter since it was looked at.
            if !is_held {
                return Ok(None);
            }
            return self.modify_held(seen, hash, home, key, change, left, ack).map(Some);
        }
        let old =
            table.live_place(seen).map(|place| (place, table.lengths_of(place), table.version_of(place)));
        let expires_ns = table.new_expiry(old.map(|(place, ..)| place), change);
        if !is_held {
            held = None;
        }
        let old_bytes = old.map_or(0, |(_, lengths, _)| lengths.value_bytes as usize);
        let value_bytes = old_bytes + change.more().len();
        table.check_value_bytes(value_bytes as u64)?;
        let mut draft = Draft::begin(&table, key, value_bytes, expires_ns.is_some(), left)?;
        self.changed.clear();
        self.touched_bytes = value_bytes;
        if let Some((place, lengths, _)) = old {
            let answer = &mut self.changed;
            table.read_value(place, lengths, 0..old_bytes, &mut self.block, |bytes| {
                draft.write(&table.region, bytes);
                let room_bytes = ANSWER_MAX_BYTES - answer.len();
                answer.extend_from_slice(&bytes[..bytes.len().min(room_bytes)]);
            });
        }
        draft.write(&table.region, change.more());
        let payload = draft.finish(&table.region, expires_ns);
        let _held = match held {
            Some(held) => held,
            None => table.stripes.lock(hash.home()),
        };
        // A split may have given it to another segment meanwhile.
        let home = table.index.home(hash);
        let at = table.find(key, hash, home);
        let version = table.live_place(at).map(|place| table.version_of(place));
        if version != old.map(|(.., version)| version) {
            return Ok(None);
        }
        if matches!(change, Change::Append(_)) {
            ack.has_made(value_bytes, None);
        }
        self.store(at, hash, home, &payload, left, ack).map(Some)
    }
}
