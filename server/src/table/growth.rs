//! Which index segments are split, when, and by whom: one thread of the server, and inserts into a segment whose split
//! lags behind them.
//!
//! The thread takes what is left of the processors: it lets go of its own after every few homes. So on a busy machine it may
//! hardly get on. Inserts keep each split on schedule then: from a segment's wish to be split until it is full there is room
//! for some thousand keys, and with each of them the share of homes that must have been copied rises. An insert that finds
//! fewer copies some itself. A split so gets on at the pace of what it is for, whoever has the processors.

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

/// How long an insert that finds no room waits at most: some GRACEs, and time for work.
const WAIT_FOR_ROOM_GRACES: u64 = 16;
/// See `WAIT_FOR_ROOM_GRACES`.
const WAIT_FOR_ROOM_NS: u64 = 1_000_000_000;
/// Homes that such an insert helps with before it tries again.
const HOMES_PER_WAIT: u64 = 512;
/// Homes that an insert helps with at most if the split of its segment is behind its schedule: some 30 microseconds. The
/// schedule needs 14 per insert at most. What comes behind the copies takes less time and is done by some 1000 inserts, if
/// nobody else does it.
const HOMES_PER_INSERT: u64 = 32;
/// The pause of an insert between two looks, if a split can do nothing but wait.
const PAUSE: Duration = Duration::from_micros(100);

/// The splits of a table.
pub(super) struct Growth {
    /// GRACE of any client, by the server's clock.
    grace_ns: u64,
    signal: Arc<Signal>,
    /// Splits that were asked for and have not ended, in the order in which they were.
    jobs: Mutex<Vec<Arc<Job>>>,
    /// What the thread of splits works with.
    tools: Mutex<Tools>,
    /// Held by who changes the directory.
    pub(super) directory: Mutex<()>,
}

/// A split that was asked for.
struct Job {
    source: u64,
    /// Held by who goes on with it.
    progress: Mutex<Progress>,
}

enum Progress {
    Asked,
    UnderWay(Split),
    /// It came to its end, or could not begin.
    Ended,
}

impl Progress {
    /// How long it can do nothing but wait.
    fn wait_ns(&mut self, now_ns: u64) -> Option<u64> {
        match self {
            Progress::UnderWay(split) => split.wait_ns(now_ns),
            Progress::Asked | Progress::Ended => None,
        }
    }

    /// The larger, the sooner. What frees slots comes first, and what has begun before what has not: two that take turns end
    /// as late as one behind the other, both. Of those that have not begun it is the one whose segment has most in use.
    fn urgency(&self, used: impl FnOnce() -> u64) -> (u32, u64) {
        match self {
            Progress::UnderWay(split) => match split.stage {
                Stage::Clear { home } | Stage::Unmark { home } => (3, home),
                Stage::Deepen { home } => (2, home),
                Stage::Move { home } => (1, home),
                Stage::Wait { .. } | Stage::Settle { .. } | Stage::Done => (0, 0),
            },
            Progress::Asked => (0, used()),
            Progress::Ended => (0, 0),
        }
    }
}

struct Tools {
    counters: Counters,
    /// Private memory for a key.
    scratch: Vec<u64>,
}

/// What can be done.
enum Next {
    Job(Arc<Job>),
    /// Others are at all there are.
    Busy,
    WaitNs(u64),
    Nothing,
}

impl Growth {
    pub(super) fn new(grace_ns: u64, counters: Counters) -> Growth {
        Growth {
            grace_ns: by_any_clock(grace_ns),
            signal: Arc::default(),
            jobs: Mutex::default(),
            tools: Mutex::new(Tools { counters, scratch: Vec::new() }),
            directory: Mutex::default(),
        }
    }

    /// GRACE by the server's clock.
    pub(super) fn grace_ns(&self) -> u64 {
        self.grace_ns
    }

    fn job_of(&self, source: u64) -> Option<Arc<Job>> {
        self.jobs.lock().iter().find(|job| job.source == source).map(Arc::clone)
    }

    fn end_job(&self, job: &Arc<Job>) {
        self.jobs.lock().retain(|other| !Arc::ptr_eq(other, job));
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
        self.growth
            .jobs
            .lock()
            .push(Arc::new(Job { source: segment, progress: Mutex::new(Progress::Asked) }));
        self.growth.signal.set();
        true
    }

    /// Splits index segments that want it: some homes, as long as `goes_on` says so of the last one's number. Workers go on
    /// meanwhile; each home is locked for about a microsecond.
    pub fn grow(&self, goes_on: &mut dyn FnMut(u64) -> bool) -> Upkeep {
        let mut tools = self.growth.tools.lock();
        let Tools { counters, scratch } = &mut *tools;
        match self.next_job() {
            Next::Job(job) => {
                self.with_split(&job, counters, |split| {
                    self.advance_split(split, scratch, counters, goes_on);
                });
                Upkeep::Busy
            }
            Next::Busy => Upkeep::Busy,
            Next::WaitNs(wait_ns) => Upkeep::WaitNs(wait_ns),
            Next::Nothing => Upkeep::Idle,
        }
    }

    /// Of the splits that need not wait the most urgent one, unless somebody is at it.
    fn next_job(&self) -> Next {
        let jobs = self.growth.jobs.lock();
        let now_ns = self.monotonic_ns();
        let (mut first, mut wait_ns) = (None, None);
        for job in jobs.iter() {
            let Some(mut progress) = job.progress.try_lock() else { continue };
            match progress.wait_ns(now_ns) {
                Some(left_ns) => wait_ns = Some(wait_ns.map_or(left_ns, |other: u64| other.min(left_ns))),
                None => {
                    let urgency = progress.urgency(|| self.index.used(job.source));
                    if first.is_none_or(|(most, _)| urgency > most) {
                        first = Some((urgency, job));
                    }
                }
            }
        }
        match (first, wait_ns) {
            (Some((_, job)), _) => Next::Job(Arc::clone(job)),
            (None, Some(wait_ns)) => Next::WaitNs(wait_ns),
            // Whoever is at one now ends neither all of it nor the wish for it.
            (None, None) if !jobs.is_empty() => Next::Busy,
            (None, None) => Next::Nothing,
        }
    }

    /// Goes on with a split, which begins now if it has not. False if somebody else is at it, or it can do nothing but wait.
    fn with_split(&self, job: &Arc<Job>, counters: &Counters, go_on: impl FnOnce(&mut Split)) -> bool {
        let Some(mut progress) = job.progress.try_lock() else { return false };
        if matches!(*progress, Progress::Asked) {
            *progress = self.begin_split(job.source, counters).map_or(Progress::Ended, Progress::UnderWay);
        } else if matches!(*progress, Progress::Ended) {
            return false;
        }
        if let Progress::UnderWay(split) = &mut *progress {
            if split.wait_ns(self.monotonic_ns()).is_some() {
                return false;
            }
            go_on(split);
            if split.stage != Stage::Done {
                return true;
            }
            *progress = Progress::Ended;
        } else {
            tracing::debug!(job.source, "no free segment to split an index segment");
        }
        self.growth.end_job(job);
        self.index.note_unwanted(job.source);
        true
    }

    /// Goes on with the split of a segment, or of the one that it gets its keys from: so many homes as `homes` says of where
    /// it stands. False if there is nothing to go on with.
    fn help_to_grow(&self, segment: u64, counters: &Counters, homes: impl FnOnce(Stage) -> u64) -> bool {
        let source = self.index.source_of(segment).unwrap_or(segment);
        let Some(job) = self.growth.job_of(source) else { return false };
        self.with_split(&job, counters, |split| {
            let mut left = homes(split.stage);
            if left > 0 {
                self.advance_split(split, &mut Vec::new(), counters, &mut |_| {
                    left -= 1;
                    left > 0
                });
            }
        })
    }

    /// After an insert into a segment that is to be split or is being split, without its stripes: helps if the split is behind
    /// its schedule, or frees slots.
    pub(super) fn help_if_late(&self, segment: u64, counters: &Counters) {
        let due = self.index.homes_due(segment);
        if due == 0 && !self.index.is_source(segment) {
            return;
        }
        self.help_to_grow(segment, counters, |stage| match stage {
            Stage::Move { home } => due.saturating_sub(home).min(HOMES_PER_INSERT),
            Stage::Deepen { .. } | Stage::Clear { .. } => HOMES_PER_INSERT,
            // The segment has room again, or can only wait.
            _ => 0,
        });
    }
}

/// An insert that found no room for its key. There may be room as soon as the key's segment is split: then it is worth
/// waiting. Splits begin so early, and are helped so much, that this is rare; `inserts_waited` counts it.
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
        if !table.help_to_grow(segment, counters, |_| HOMES_PER_WAIT) {
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
