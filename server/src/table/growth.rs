//! Which index segments are split, when, and by whom: one thread of the server, and an insert that finds no room.

use std::sync::Arc;
use std::time::Duration;

use kv_common::adversary;
use kv_common::hash::KeyHash;
use kv_common::layout::Counter;
use parking_lot::Mutex;

use super::Table;
use super::counters::Counters;
use super::index::Role;
use super::split::{Split, Stage};
use super::upkeep::{Signal, Upkeep, by_any_clock};

/// How long an insert that finds no room waits at most: some GRACEs, and time for work. A split takes one GRACE, and some
/// 40 ms of a processor that is busy with other things, too.
const WAIT_FOR_ROOM_GRACES: u64 = 16;
/// See `WAIT_FOR_ROOM_GRACES`.
const WAIT_FOR_ROOM_NS: u64 = 1_000_000_000;
/// Homes that such an insert helps with before it tries again.
const HOMES_PER_WAIT: u64 = 512;
/// Homes that an insert helps with whose segment is late with its split: some 10 microseconds. A split is done within 2000
/// such inserts, however seldom the thread of splits gets a processor.
const HOMES_PER_INSERT: u64 = 16;
/// The pause of an insert between two looks, if a split can do nothing but wait.
const PAUSE: Duration = Duration::from_micros(100);

/// The splits of a table.
pub(super) struct Growth {
    /// GRACE of any client, by the server's clock.
    grace_ns: u64,
    signal: Arc<Signal>,
    /// Segments that want to be split, in the order in which they did.
    wanted: Mutex<Vec<u64>>,
    splits: Mutex<Splits>,
}

/// Splits under way; there is one set of hands for all of them.
struct Splits {
    under_way: Vec<Split>,
    counters: Counters,
    /// Private memory for a key.
    scratch: Vec<u64>,
}

impl Growth {
    pub(super) fn new(grace_ns: u64, counters: Counters) -> Growth {
        Growth {
            grace_ns: by_any_clock(grace_ns),
            signal: Arc::default(),
            wanted: Mutex::default(),
            splits: Mutex::new(Splits { under_way: Vec::new(), counters, scratch: Vec::new() }),
        }
    }

    /// GRACE by the server's clock.
    pub(super) fn grace_ns(&self) -> u64 {
        self.grace_ns
    }
}

impl Table {
    /// What wakes whoever calls [`Table::grow`].
    pub fn growth_signal(&self) -> &Arc<Signal> {
        &self.growth.signal
    }

    /// Asks for the split of an index segment. False if it is not possible now, or has been asked for before.
    pub fn want_split(&self, segment: u64) -> bool {
        if self.slab.free_segments() == 0 || !self.index.want_split(segment) {
            return false;
        }
        self.growth.wanted.lock().push(segment);
        self.growth.signal.set();
        true
    }

    /// Splits index segments that want it: some homes, as long as `goes_on` says so of the last one's number. Workers go on
    /// meanwhile; each home is locked for about a microsecond.
    pub fn grow(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Upkeep {
        self.grow_with(&mut self.growth.splits.lock(), goes_on)
    }

    fn grow_with(&self, splits: &mut Splits, goes_on: &mut dyn FnMut(u64) -> bool) -> Upkeep {
        let now_ns = self.monotonic_ns();
        for split in &mut splits.under_way {
            if matches!(split.stage, Stage::Wait { until_ns } if until_ns <= now_ns) {
                split.stage = Stage::Clear { home: 0 };
            }
        }
        let Splits { under_way, counters, scratch } = splits;
        let is_ready = |split: &Split| !matches!(split.stage, Stage::Wait { .. });
        if !under_way.iter().any(is_ready)
            && let Some(split) = self.next_split(counters)
        {
            under_way.push(split);
        }
        if let Some(split) = under_way.iter_mut().find(|split| is_ready(split)) {
            self.advance_split(split, scratch, counters, goes_on);
            under_way.retain(|split| split.stage != Stage::Done);
            return Upkeep::Busy;
        }
        let until = under_way.iter().filter_map(|split| match split.stage {
            Stage::Wait { until_ns } => Some(until_ns),
            _ => None,
        });
        until.min().map_or(Upkeep::Idle, |until_ns| Upkeep::WaitNs(until_ns.saturating_sub(now_ns)))
    }

    /// Begins the split that was asked for first. One at a time is being copied, any number wait.
    fn next_split(&self, counters: &Counters) -> Option<Split> {
        loop {
            let mut wanted = self.growth.wanted.lock();
            if wanted.is_empty() {
                return None;
            }
            let source = wanted.remove(0);
            drop(wanted);
            if let Some(split) = self.begin_split(source, counters) {
                return Some(split);
            }
            tracing::debug!(source, "no free segment to split an index segment");
            self.index.note_unwanted(source);
        }
    }

    /// Goes on with splits, some homes, if nobody else does.
    fn help_to_grow(&self, homes: u64) -> Upkeep {
        match self.growth.splits.try_lock() {
            Some(mut splits) => self.grow_with(&mut splits, &mut |home| !home.is_multiple_of(homes)),
            None => Upkeep::Idle,
        }
    }

    /// After an insert into a segment that is to be split, without its stripes: helps if that is late.
    pub(super) fn help_if_late(&self, segment: u64) {
        if self.index.is_late(segment) {
            self.help_to_grow(HOMES_PER_INSERT);
        }
    }
}

/// An insert that found no room for its key. There may be room as soon as the key's segment is split: then it is worth
/// waiting. Splits begin so early that this is rare; `inserts_waited` counts it.
pub(super) struct WaitForRoom {
    hash: KeyHash,
    until_ns: Option<u64>,
    /// The segment was looked at in vain.
    has_looked: bool,
}

impl WaitForRoom {
    pub(super) fn new(hash: KeyHash) -> WaitForRoom {
        WaitForRoom { hash, until_ns: None, has_looked: false }
    }

    /// Waits for a moment, and helps. False if no split will make room. `is_crowded`: the key's home is full, not its
    /// segment; keys that were chosen to share a home get no segments for that.
    pub(super) fn wait(&mut self, table: &Table, is_crowded: bool, counters: &Counters) -> bool {
        let now_ns = table.monotonic_ns();
        let segment = table.index.home(self.hash).segment();
        let is_being_split = table.index.state(segment).role != Role::Plain;
        if !is_being_split && (is_crowded || !table.will_split(segment)) {
            // A split may have ended since the insert was tried.
            return !std::mem::replace(&mut self.has_looked, true);
        }
        if self.until_ns.is_none() {
            counters.add(Counter::InsertsWaited, 1);
        }
        let wait_ns = WAIT_FOR_ROOM_GRACES * table.growth.grace_ns + WAIT_FOR_ROOM_NS;
        if now_ns >= *self.until_ns.get_or_insert(now_ns + wait_ns) {
            return false;
        }
        if table.help_to_grow(HOMES_PER_WAIT) != Upkeep::Busy {
            adversary::pause_for(PAUSE);
        }
        true
    }
}

impl Table {
    /// True if the segment will be split: it was asked for now, or before.
    fn will_split(&self, segment: u64) -> bool {
        self.want_split(segment) || self.index.is_wanted(segment)
    }
}
