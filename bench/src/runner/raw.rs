//! The floor under a GET over RDMA, in the same run: bare READs of as many bytes, in between.
//!
//! They go over the queue pair of the client that the GETs go over, with nothing of the store around them. Both see the
//! same minutes of the machine, so that their medians can be divided by each other.

use super::worker::Worker;
use crate::clock::Clock;
use crate::store::{Counters, Store};

impl<S: Store, C: Clock> Worker<'_, S, C> {
    /// What the store has counted, if a bare READ is to follow the next GET.
    #[inline]
    pub(super) fn raw_read_due(&mut self) -> Option<Counters> {
        let every = self.shared.plan.raw_every;
        if every == 0 {
            return None;
        }
        self.gets_since_raw_read += 1;
        if self.gets_since_raw_read < every {
            return None;
        }
        self.gets_since_raw_read = 0;
        self.store.counters()
    }

    /// Times a bare READ of the bytes of the GET that began at `before`, with the run's clock stopped. A GET of more than
    /// one READ has no counterpart.
    pub(super) fn raw_read(&mut self, before: Counters) {
        let Some(get) = self.store.counters().map(|now| now.since(before)) else { return };
        if get.reads != 1 {
            return;
        }
        let begin = self.clock.begin();
        let done = self.store.raw_read(get.read_bytes);
        let end = self.clock.end();
        // If it failed, the connection has, and the next operation says so.
        if done == Ok(true) {
            self.tally.raw_read.record(self.clock.ns(end.saturating_sub(begin)));
        }
        self.pause(begin, end);
    }
}
