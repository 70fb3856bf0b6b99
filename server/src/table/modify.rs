//! Add, append and touch: writes whose value is made of the one that is there.
//!
//! The old value can change until the stripes are held, so all of the new one is made under them; an append to a large
//! value therefore holds them for as long as it takes to copy and hash it. The stores, and so the moment of the write, are
//! those of a put.

use std::sync::Arc;

use kv_common::counter::{self, CounterText};
use kv_common::hash::KeyHash;
use kv_common::layout::{BLOCK_HEADER_BYTES, Place};
use kv_common::limits::VALUE_MAX_BYTES;
use kv_common::region::bytes_of;
use kv_common::wire::{Condition, Refusal};

use super::Worker;
use super::put::{Left, Outcome};
use super::worker::grown;
use crate::dispatch::Ack;

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// It is a counter, and this is added.
    Add(i64),
    /// These bytes are put behind it.
    Append(&'a [u8]),
    /// It lives this long from now on, or without end.
    Touch(Option<u64>),
}

impl Worker {
    /// Changes the value of `key`, if the condition holds. Absent counts as a counter of 0, or an empty value; it cannot be
    /// touched.
    pub(crate) fn modify(
        &mut self,
        key: &[u8],
        change: Change<'_>,
        condition: Condition,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let hash = self.table.view.hash(key);
        self.with_room(hash, |worker, left| worker.modify_once(key, hash, change, condition, left, ack))
    }

    fn modify_once(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        change: Change<'_>,
        condition: Condition,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let table = Arc::clone(&self.table);
        let _held = table.stripes.lock(hash.home());
        let home = table.index.home(hash);
        let at = table.find(key, hash, home);
        if let Some(unmet) = table.unmet(condition, at) {
            return Ok(unmet);
        }
        let live = at.filter(|&at| table.is_live(at)).map(|at| at.slot.place());
        let expires_ns = match (change, live) {
            (Change::Touch(_), None) => return Ok(Outcome::NotFound),
            (Change::Touch(ttl_ns), _) => ttl_ns.map(|ttl_ns| table.expires_in(ttl_ns)),
            (Change::Add(_) | Change::Append(_), live) => live.and_then(|place| table.expiry_of(place)),
        };
        let mut value = std::mem::take(&mut self.changed);
        let made = self.make_value(live, change, &mut value, ack);
        let payload = made.map(|()| self.encode_payload(key, &value, expires_ns));
        self.changed = value;
        self.store(at, hash, home, &payload?, left, ack)
    }

    /// The value that the last change has made.
    pub(crate) fn changed_value(&self) -> &[u8] {
        &self.changed
    }

    /// Makes the new value of a key whose block is at `place`, or that has none, and tells the reply about it.
    fn make_value(
        &mut self,
        place: Option<Place>,
        change: Change<'_>,
        value: &mut Vec<u8>,
        ack: &mut Ack<'_>,
    ) -> Result<(), Refusal> {
        value.clear();
        match change {
            Change::Touch(_) => self.copy_value(place, 0, value)?,
            Change::Append(more) => {
                self.copy_value(place, more.len(), value)?;
                value.extend_from_slice(more);
                ack.has_made(value.len(), None);
            }
            Change::Add(delta) => {
                self.copy_value(place, 0, value)?;
                let found_bytes = value.len() as u64;
                let old = if place.is_some() { counter::parse(value) } else { Some(0) };
                let old = old.ok_or(Refusal::NotACounter { found_bytes })?;
                let sum = old.checked_add(delta).ok_or(Refusal::CounterOverflow { value: old, delta })?;
                let text = CounterText::new(sum);
                value.clear();
                value.extend_from_slice(text.as_bytes());
                ack.has_made(value.len(), Some(text));
            }
        }
        Ok(())
    }

    /// Copies the value out of a present key's block, if the limit allows for `more_bytes` behind it.
    fn copy_value(
        &mut self,
        place: Option<Place>,
        more_bytes: usize,
        value: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let Some(place) = place else { return Ok(()) };
        let lengths = self.table.lengths_of(place);
        let sum_bytes = lengths.value_bytes as usize + more_bytes;
        if sum_bytes > VALUE_MAX_BYTES {
            let (found_bytes, limit_bytes) = (sum_bytes as u64, VALUE_MAX_BYTES as u64);
            return Err(Refusal::ValueTooLarge { found_bytes, limit_bytes });
        }
        let end = lengths.value_end();
        let words = grown(&mut self.block, end.div_ceil(8));
        self.table.region.copy_out(place.word(), words);
        value.extend_from_slice(&bytes_of(words)[BLOCK_HEADER_BYTES + lengths.key_bytes as usize..end]);
        Ok(())
    }
}
