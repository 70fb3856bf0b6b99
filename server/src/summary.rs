//! One log line per ten seconds about what happened, if anything did.

use std::time::{Duration, Instant};

use kv_common::layout::{COUNTER_NAMES, Counter, superblock};
use tracing::info;

use crate::table::Table;

const INTERVAL: Duration = Duration::from_secs(10);

/// Sums of the workers' counters, in the order of [`Counter`].
type Sums = [u64; COUNTER_NAMES.len()];

/// When the last line was written, and the counters at that time.
pub(crate) struct Summary {
    since: Instant,
    sums: Sums,
    /// Something may have happened since.
    is_due: bool,
}

impl Summary {
    pub(crate) fn new(table: &Table) -> Summary {
        Summary { since: Instant::now(), sums: sums(table), is_due: false }
    }

    /// When the next look is due, if there will be anything to say.
    pub(crate) fn due_in(&self) -> Option<Duration> {
        self.is_due.then(|| (self.since + INTERVAL).saturating_duration_since(Instant::now()))
    }

    /// Writes the line if it is time and something happened. To be called often while clients are connected, and at
    /// the time that `due_in` says.
    pub(crate) fn tick(&mut self, table: &Table, clients: usize) {
        self.is_due |= clients > 0;
        let elapsed = self.since.elapsed();
        if !self.is_due || elapsed < INTERVAL {
            return;
        }
        let sums = sums(table);
        if differ(&sums, &self.sums) {
            self.write(table, &sums, clients, elapsed);
        }
        *self = Summary { since: Instant::now(), sums, is_due: clients > 0 };
    }

    fn write(&self, table: &Table, sums: &Sums, clients: usize, elapsed: Duration) {
        let rise = |counter: Counter| sums[counter as usize].wrapping_sub(self.sums[counter as usize]);
        info!(
            seconds = elapsed.as_secs(),
            clients,
            requests = rise(Counter::Requests),
            puts = rise(Counter::Puts),
            deletes = rise(Counter::Deletes),
            expired = rise(Counter::Expired),
            gets_by_server = rise(Counter::GetsByServer),
            refused = rise(Counter::Refused),
            keys = sums[Counter::Keys as usize],
            data_bytes = sums[Counter::DataBytes as usize],
            free_segments = table.free_segments(),
            "summary"
        );
    }
}

/// True if anything worth a line happened: waking up is not.
fn differ(a: &Sums, b: &Sums) -> bool {
    let is_worth = |index: usize| index != Counter::WakeUps as usize;
    (0..a.len()).any(|index| is_worth(index) && a[index] != b[index])
}

fn sums(table: &Table) -> Sums {
    let region = table.region();
    let workers = region.load(superblock::WORKERS) as usize;
    let mut sums = [0u64; COUNTER_NAMES.len()];
    for page in superblock::counter_pages(workers) {
        for (counter, sum) in sums.iter_mut().enumerate() {
            *sum = sum.wrapping_add(region.load(page + counter));
        }
    }
    sums
}
