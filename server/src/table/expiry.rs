//! Keys whose time ends.
//!
//! A key is absent from the moment on that its block names, by the server's clock; nothing has to be stored for that. Who
//! looks at a block judges it: readers by what they know of the clock, the server by the clock itself. Blocks whose time is
//! over are removed in the background, in small steps between requests, so that they give their space back.

use std::sync::atomic::{AtomicU64, Ordering};

use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, LineNumber, Place, SEGMENT_LINES, Slot};
use kv_common::region::bytes_of;
use parking_lot::Mutex;

use super::lookup::At;
use super::worker::grown;
use super::{Table, Worker};

/// Index lines of one step: so many that a step takes some 50 us, even if each of their blocks has to be fetched.
const SWEEP_LINES: u64 = 64;
/// Between two steps. A sweep over a segment of the index then takes about a second and some 2 % of a processor.
pub(crate) const SWEEP_PAUSE_NS: u64 = 2_000_000;

/// What the server keeps about expiries.
pub(super) struct Expiry {
    clock_ns: fn() -> u64,
    /// Present keys whose time ends, wrapping.
    keys: AtomicU64,
    sweep: Mutex<Sweep>,
}

/// How far the sweep over the index has come.
#[derive(Default)]
struct Sweep {
    next_line: u64,
    due_ns: u64,
}

impl Expiry {
    pub(super) fn new(clock_ns: fn() -> u64) -> Expiry {
        Expiry { clock_ns, keys: AtomicU64::new(0), sweep: Mutex::default() }
    }

    /// A block was replaced: whether the new and the old one expire.
    pub(super) fn note(&self, new_expires: bool, old_expires: bool) {
        if new_expires != old_expires {
            let change = if new_expires { 1 } else { 1u64.wrapping_neg() };
            self.keys.fetch_add(change, Ordering::Relaxed);
        }
    }
}

impl Table {
    /// The server's clock, ns since 1970.
    pub fn now_ns(&self) -> u64 {
        (self.expiry.clock_ns)()
    }

    /// True if keys are present whose time ends: then workers sweep, and do not sleep for long.
    pub fn has_expiring_keys(&self) -> bool {
        self.expiry.keys.load(Ordering::Relaxed) != 0
    }

    /// When something expires that is to live so long from now on.
    pub(super) fn expires_in(&self, ttl_ns: u64) -> u64 {
        self.now_ns().saturating_add(ttl_ns)
    }

    /// When the block of a present key expires. Under the stripes.
    pub(super) fn expiry_of(&self, place: Place) -> Option<u64> {
        let lengths = self.lengths_of(place);
        lengths.expires().then(|| self.expiry_at(place, lengths.value_end()))
    }

    /// Whether the time of a key that has a slot is not over. Under the stripes.
    pub(super) fn is_live(&self, at: At) -> bool {
        self.expiry_of(at.slot.place()).is_none_or(|expires_ns| expires_ns > self.now_ns())
    }

    /// The expiry that begins so many bytes behind the start of a block.
    fn expiry_at(&self, place: Place, value_end: usize) -> u64 {
        let (word, shift) = (place.word() + value_end / 8, value_end % 8 * 8);
        let low = self.region.load(word) >> shift;
        if shift == 0 { low } else { low | self.region.load(word + 1) << (64 - shift) }
    }

    /// The next lines to sweep, if it is time; they are the caller's then.
    fn lines_to_sweep(&self) -> Option<std::ops::Range<u64>> {
        if !self.has_expiring_keys() {
            return None;
        }
        let mut sweep = self.expiry.sweep.try_lock()?;
        let now_ns = self.now_ns();
        if now_ns < sweep.due_ns {
            return None;
        }
        sweep.due_ns = now_ns + SWEEP_PAUSE_NS;
        let start = sweep.next_line;
        sweep.next_line = (start + SWEEP_LINES) % (self.index_segments() * SEGMENT_LINES);
        Some(start..start + SWEEP_LINES)
    }
}

impl Worker {
    /// How long a key will live, in ns, or without end: `Some(None)`. `None` if it is absent.
    pub(crate) fn ttl(&mut self, key: &[u8]) -> Option<(u64, Option<u64>)> {
        let table = &self.table;
        let hash = table.view.hash(key);
        let home = table.view.home(hash);
        let _held = table.stripes.lock(home);
        let place = table.find(key, hash, home)?.slot.place();
        let version = table.version_of(place);
        let Some(expires_ns) = table.expiry_of(place) else { return Some((version, None)) };
        let left_ns = expires_ns.checked_sub(table.now_ns()).filter(|&left_ns| left_ns > 0)?;
        Some((version, Some(left_ns)))
    }

    /// Does a bounded part of the sweep for keys whose time is over, if it is time for one.
    pub fn sweep_expired(&mut self) {
        let Some(lines) = self.table.lines_to_sweep() else { return };
        let first = self.table.overflow.first_segment();
        for number in lines {
            let line = LineNumber::new(first + number / SEGMENT_LINES, number % SEGMENT_LINES);
            for index in 0..kv_common::layout::LINE_SLOTS {
                let slot = Slot(self.table.region.load(line.word() + 1 + index));
                if !slot.is_empty() && self.seems_expired(slot) {
                    self.expire(slot);
                }
            }
        }
    }

    /// A look without the stripes: the block may be another one by now, so nothing follows from it but a closer look.
    fn seems_expired(&self, slot: Slot) -> bool {
        let lengths = self.table.lengths_of(slot.place());
        lengths.expires()
            && lengths.block_bytes() as u64 <= slot.span().bytes()
            && self.table.expiry_at(slot.place(), lengths.value_end()) <= self.table.now_ns()
    }

    /// Removes the key that is in the block of `slot`, if its time is over.
    fn expire(&mut self, slot: Slot) {
        let key_bytes = self.table.lengths_of(slot.place()).key_bytes as usize;
        // Another block by now, perhaps, and half of it.
        if (BLOCK_HEADER_BYTES + key_bytes) as u64 > slot.span().bytes() {
            return;
        }
        let mut words = std::mem::take(&mut self.block);
        let key_words = grown(&mut words, key_bytes.div_ceil(8));
        self.table.region.copy_out(slot.place().word() + BLOCK_HEADER_BYTES / 8, key_words);
        let removed = self.expire_held(&bytes_of(key_words)[..key_bytes]);
        self.block = words;
        if let Some(slot) = removed {
            self.retire(slot);
        }
    }

    fn expire_held(&self, key: &[u8]) -> Option<Slot> {
        let table = &self.table;
        let hash = table.view.hash(key);
        let home = table.view.home(hash);
        let _held = table.stripes.lock(home);
        let at = table.find(key, hash, home).filter(|&at| !table.is_live(at))?;
        Some(self.remove(at, home, Counter::Expired, None).1)
    }
}
