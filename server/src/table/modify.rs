//! Add, append and touch: writes whose value is made of the one that is there.
//!
//! The old value can change until the stripes are held, so all of the new one is made under them, unless it is a large one
//! (see `append`). The stores, and so the moment of the write, are those of a put.

use std::sync::Arc;

use kv_common::counter::{self, CounterText};
use kv_common::hash::KeyHash;
use kv_common::layout::{LineNumber, Place};
use kv_common::wire::{Condition, Refusal};

use super::get::Value;
use super::lookup::At;
use super::put::{Left, Outcome};
use super::{Table, Worker};
use crate::dispatch::Ack;

/// Times that a large value is made without the stripes, before a key that is written all the time is held meanwhile.
const LARGE_ATTEMPTS_MAX: u32 = 4;

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
        for attempt in 1.. {
            let outcome = self.with_room(hash, |worker, left| {
                worker.modify_once(key, hash, change, condition, left, ack)
            })?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
            let is_held = attempt > LARGE_ATTEMPTS_MAX;
            let outcome = self.with_room(hash, |worker, left| {
                worker.make_large(key, hash, change, condition, is_held, left, ack)
            })?;
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
        unreachable!("with the key held it is done")
    }

    /// None if it makes a large value.
    fn modify_once(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        change: Change<'_>,
        condition: Condition,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Option<Outcome>, Refusal> {
        let table = Arc::clone(&self.table);
        let _held = table.stripes.lock(hash.home());
        let home = table.index.home(hash);
        let at = table.find(key, hash, home);
        if let Some(unmet) = table.unmet(condition, at) {
            return Ok(Some(unmet));
        }
        if table.becomes_large(at, key, change) {
            return Ok(None);
        }
        self.modify_held(at, hash, home, key, change, left, ack).map(Some)
    }

    /// Changes the value of the key whose slot is `at`, or that has none. Under the stripes.
    #[allow(clippy::too_many_arguments, reason = "what was found under the stripes, and what is to be done")]
    pub(super) fn modify_held(
        &mut self,
        at: Option<At>,
        hash: KeyHash,
        home: LineNumber,
        key: &[u8],
        change: Change<'_>,
        left: &mut Left,
        ack: &mut Ack<'_>,
    ) -> Result<Outcome, Refusal> {
        let table = Arc::clone(&self.table);
        let live = table.live_place(at);
        if matches!(change, Change::Touch(_)) && live.is_none() {
            return Ok(Outcome::NotFound);
        }
        let expires_ns = table.new_expiry(live, change);
        let mut value = std::mem::take(&mut self.changed);
        let made = self.make_value(live, change, &mut value, ack);
        let payload = made.map(|()| self.encode_payload(key, &value, expires_ns));
        self.changed = value;
        self.store(at, hash, home, &payload?, left, ack)
    }

    /// The value that was touched last, with this version by now, as much of it as one answer may have.
    pub(crate) fn touched_value(&self, version: u64) -> Value<'_> {
        Value { version, total_bytes: self.touched_bytes, bytes: &self.changed }
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
            Change::Touch(_) => {
                self.copy_value(place, 0, value)?;
                self.touched_bytes = value.len();
            }
            Change::Append(more) => {
                self.copy_value(place, more.len(), value)?;
                value.extend_from_slice(more);
                ack.has_made(value.len(), None);
            }
            Change::Add(delta) => {
                let found_bytes = place.map_or(0, |place| self.table.lengths_of(place).value_bytes as u64);
                if found_bytes as usize > CounterText::BYTES_MAX {
                    return Err(Refusal::NotACounter { found_bytes });
                }
                self.copy_value(place, 0, value)?;
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

    /// Copies the value out of a key's block, if it has one, and if the limit allows for `more_bytes` behind it.
    fn copy_value(
        &mut self,
        place: Option<Place>,
        more_bytes: usize,
        value: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let old_bytes = place.map_or(0, |place| self.table.lengths_of(place).value_bytes as u64);
        self.table.check_value_bytes(old_bytes + more_bytes as u64)?;
        let Some(place) = place else { return Ok(()) };
        let lengths = self.table.lengths_of(place);
        let take = |bytes: &[u8]| value.extend_from_slice(bytes);
        self.table.read_value(place, lengths, 0..lengths.value_bytes as usize, &mut self.block, take);
        Ok(())
    }
}

impl Table {
    /// Where the block of the key is whose slot is `at`, if its time is not over. Under the stripes.
    pub(super) fn live_place(&self, at: Option<At>) -> Option<Place> {
        at.filter(|&at| self.is_live(at)).map(|at| at.slot.place())
    }

    /// When the value expires that a change makes of the one in the block at `live`, or of none. Under the stripes.
    pub(super) fn new_expiry(&self, live: Option<Place>, change: Change<'_>) -> Option<u64> {
        match change {
            Change::Touch(ttl_ns) => ttl_ns.map(|ttl_ns| self.expires_in(ttl_ns)),
            Change::Add(_) | Change::Append(_) => live.and_then(|place| self.expiry_of(place)),
        }
    }
}
