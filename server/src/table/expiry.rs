//! Keys whose time ends.
//!
//! A key is absent from the moment on that its block names, by the server's clock; nothing has to be stored for that. Who
//! looks at a block judges it: readers by what they know of the clock, the server by the clock itself. Blocks whose time is
//! over are removed in the background, in small steps between requests, so that they give their space back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use kv_common::large;
use kv_common::layout::{Counter, LINE_SLOTS, LineNumber, Place, SEGMENT_LINES, Slot};
use parking_lot::Mutex;

use super::lookup::At;
use super::{Table, Worker};

/// Index lines of one step at most: it takes some 50 us then, even if each of their blocks has to be fetched, ...
const STEP_LINES: u64 = 64;
/// ... and keys that it removes, or a few more, which takes half as long.
const STEP_KEYS_MAX: usize = 64;
/// Between two steps: a sweep takes about a second for each segment of the index.
const STEP_PAUSE_NS: u64 = 2_000_000;
/// The same after a step that removed as many keys as it may: there is much to do.
const BUSY_STEP_PAUSE_NS: u64 = 200_000;

/// What the server keeps about expiries.
pub(super) struct Expiry {
    clock_ns: fn() -> u64,
    /// Present keys whose time ends, wrapping.
    keys: AtomicU64,
    /// No key expires before this, but those that the sweep under way finds.
    soonest_ns: AtomicU64,
    sweep: Mutex<Sweep>,
}

/// How far the sweep over the index has come.
#[derive(Default)]
struct Sweep {
    /// The index segment, and the line in it; none if no sweep is under way.
    next: Option<(u64, u64)>,
    due_ns: u64,
}

impl Expiry {
    pub(super) fn new(clock_ns: fn() -> u64) -> Expiry {
        let (keys, soonest_ns) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        Expiry { clock_ns, keys, soonest_ns, sweep: Mutex::default() }
    }

    /// A key has a block now that expires then: a sweep has to find it, the one under way or the next.
    pub(super) fn note_written(&self, expires_ns: u64) {
        // Either this sees that a sweep has begun, or the sweep sees the block.
        fence(Ordering::SeqCst);
        self.note_soonest(expires_ns);
    }

    /// Keys have gone to another index segment, which the sweep under way may have passed already: there will be another.
    pub(super) fn note_split(&self) {
        self.note_written(0);
    }

    fn note_soonest(&self, expires_ns: u64) {
        if expires_ns < self.soonest_ns.load(Ordering::Relaxed) {
            self.soonest_ns.fetch_min(expires_ns, Ordering::Relaxed);
        }
    }
}

impl Table {
    /// The server's clock, ns since 1970.
    pub fn now_ns(&self) -> u64 {
        (self.expiry.clock_ns)()
    }

    /// True if keys are present whose time ends.
    pub fn has_expiring_keys(&self) -> bool {
        self.expiry.keys.load(Ordering::Relaxed) != 0
    }

    /// In how many ns the sweep for keys whose time is over goes on, or begins.
    pub(crate) fn sweep_due_in_ns(&self) -> Option<u64> {
        if !self.has_expiring_keys() {
            return None;
        }
        let due_ns = match *self.expiry.sweep.lock() {
            Sweep { next: Some(_), due_ns } => due_ns,
            Sweep { next: None, .. } => self.expiry.soonest_ns.load(Ordering::Relaxed),
        };
        Some(due_ns.saturating_sub(self.now_ns()))
    }

    /// When something expires that is to live so long from now on.
    pub(super) fn expires_in(&self, ttl_ns: u64) -> u64 {
        self.now_ns().saturating_add(ttl_ns)
    }

    /// When the block of a present key expires. Under the stripes.
    pub(super) fn expiry_of(&self, place: Place) -> Option<u64> {
        let lengths = self.lengths_of(place);
        lengths.expires().then(|| self.expiry_at(place, lengths))
    }

    /// Whether the time of a key that has a slot is not over. Under the stripes.
    pub(super) fn is_live(&self, at: At) -> bool {
        self.expiry_of(at.slot.place()).is_none_or(|expires_ns| expires_ns > self.now_ns())
    }

    /// Where a sweep goes on that is due; one begins if there can be something to find.
    fn sweep_from(&self, sweep: &mut Sweep, now_ns: u64) -> Option<(u64, u64)> {
        if now_ns < sweep.due_ns {
            return None;
        }
        if sweep.next.is_none() {
            let soonest_ns = &self.expiry.soonest_ns;
            if soonest_ns.load(Ordering::Relaxed) > now_ns {
                return None;
            }
            // Whatever is written from now on notes its time there, and the sweep that of all it leaves.
            soonest_ns.store(u64::MAX, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            sweep.next = self.index.first_from(0).map(|segment| (segment, 0));
        }
        sweep.next
    }
}

impl Worker {
    /// How long a key will live, in ns, or without end: `Some(None)`. `None` if it is absent.
    pub(crate) fn ttl(&mut self, key: &[u8]) -> Option<(u64, Option<u64>)> {
        let table = &self.table;
        let hash = table.view.hash(key);
        let _held = table.stripes.lock(hash.home());
        let home = table.index.home(hash);
        let place = table.find(key, hash, home)?.slot.place();
        let version = table.version_of(place);
        let Some(expires_ns) = table.expiry_of(place) else { return Some((version, None)) };
        let left_ns = expires_ns.checked_sub(table.now_ns()).filter(|&left_ns| left_ns > 0)?;
        Some((version, Some(left_ns)))
    }

    /// Notes that a block is replaced, by none perhaps: whether the new one expires, and whether the old one did.
    pub(super) fn note_expiring(&self, new_expires: bool, old_expires: bool) {
        let keys = &self.table.expiry.keys;
        match (new_expires, old_expires) {
            (true, false) => {
                keys.fetch_add(1, Ordering::Relaxed);
                self.counters.add(Counter::ExpiringKeys, 1);
            }
            (false, true) => {
                keys.fetch_sub(1, Ordering::Relaxed);
                self.counters.sub(Counter::ExpiringKeys, 1);
            }
            _ => {}
        }
    }

    /// Does a bounded part of the sweep for keys whose time is over, if it is time for one and no other worker is at it.
    pub fn sweep_expired(&mut self) {
        if !self.table.has_expiring_keys() {
            return;
        }
        let table = Arc::clone(&self.table);
        let Some(mut sweep) = table.expiry.sweep.try_lock() else { return };
        let now_ns = table.now_ns();
        let Some((segment, first)) = table.sweep_from(&mut sweep, now_ns) else { return };
        let (mut line, mut removed) = (first, 0);
        while line < SEGMENT_LINES.min(first + STEP_LINES) && removed < STEP_KEYS_MAX {
            removed += self.sweep_line(LineNumber::new(segment, line), now_ns);
            line += 1;
        }
        sweep.next = if line < SEGMENT_LINES {
            Some((segment, line))
        } else {
            table.index.first_from(segment + 1).map(|segment| (segment, 0))
        };
        let is_busy = removed >= STEP_KEYS_MAX;
        sweep.due_ns = table.now_ns() + if is_busy { BUSY_STEP_PAUSE_NS } else { STEP_PAUSE_NS };
    }

    /// Returns how many keys it removed.
    fn sweep_line(&mut self, line: LineNumber, now_ns: u64) -> usize {
        let mut removed = 0;
        for index in 0..LINE_SLOTS {
            let slot = Slot(self.table.region.load(line.word() + 1 + index));
            match self.seen_expiry(slot) {
                Some(expires_ns) if expires_ns <= now_ns => removed += usize::from(self.expire(slot)),
                Some(expires_ns) => self.table.expiry.note_soonest(expires_ns),
                None => {}
            }
        }
        removed
    }

    /// A look without the stripes: the block may be another one by now, so nothing follows from it but a closer look, or
    /// a sweep in vain.
    fn seen_expiry(&self, slot: Slot) -> Option<u64> {
        if slot.is_empty() {
            return None;
        }
        let lengths = self.table.lengths_of(slot.place());
        let fits = if slot.span().is_large() {
            large::run_of(lengths, slot, &self.table.view).is_some()
        } else {
            lengths.block_bytes() as u64 <= slot.span().bytes()
        };
        (lengths.expires() && fits).then(|| self.table.expiry_at(slot.place(), lengths))
    }

    /// Removes the key that is in the block of `slot`, if its time is over.
    fn expire(&mut self, slot: Slot) -> bool {
        // Another block by now, perhaps, and half of it.
        let Some(key) = self.table.key_at(slot.place(), slot.span()) else { return false };
        let removed = self.expire_held(&key);
        if let Some(slot) = removed {
            self.retire(slot);
        }
        removed.is_some()
    }

    fn expire_held(&self, key: &[u8]) -> Option<Slot> {
        let table = &self.table;
        let hash = table.view.hash(key);
        let _held = table.stripes.lock(hash.home());
        let home = table.index.home(hash);
        let at = table.find(key, hash, home).filter(|&at| !table.is_live(at))?;
        Some(self.remove(at, home, Counter::Expired, None).1)
    }
}
