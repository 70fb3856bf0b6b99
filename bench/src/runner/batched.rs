//! Reads gathered into batches for `multi_read`; writes go one by one as they come.
//!
//! Every read of a batch has the latency of the whole batch, because that is how long its caller waits.

use super::worker::{Begun, Worker};
use crate::clock::Clock;
use crate::store::{Store, StoreError};
use crate::workload::mix::OpKind;
use crate::workload::trace::Step;

/// A read that waits for its batch to be full.
#[derive(Debug)]
struct Gathered {
    step: Step,
    number: u64,
    lower: u64,
    intended: Option<u64>,
    outcome: Result<bool, StoreError>,
}

impl<S: Store, C: Clock> Worker<'_, S, C> {
    /// Runs a phase with reads in batches.
    pub(super) fn run_batched(&mut self) {
        let batch = self.shared.plan.batch;
        let mut gathered = Vec::with_capacity(batch);
        loop {
            while let Some((step, number)) = self.next_step() {
                let intended = self.pace();
                if step.kind != OpKind::Read {
                    self.run_one(step, number, intended);
                    continue;
                }
                gathered.push(Gathered { step, number, lower: 0, intended, outcome: Ok(false) });
                if gathered.len() == batch {
                    self.read_batch(&mut gathered);
                }
            }
            // The keys of a chunk live as long as it does.
            self.read_batch(&mut gathered);
            if !self.refill() {
                return;
            }
        }
    }

    fn read_batch(&mut self, gathered: &mut Vec<Gathered>) {
        if gathered.is_empty() {
            return;
        }
        let Self { trace, judge, tally, store, clock, .. } = self;
        let keys: Vec<&[u8]> = gathered.iter().map(|read| trace.key(&read.step)).collect();
        for read in gathered.iter_mut() {
            read.lower = judge.begin_read(read.number);
        }
        let begin = clock.begin();
        let outcome = store.multi_read(&keys, |index, found| {
            let read = &mut gathered[index];
            read.outcome = found.map(|value| {
                if let Some(value) = value {
                    judge.check(tally, read.number, keys[index], read.lower, value);
                }
                value.is_some()
            });
        });
        let end = clock.end();
        for read in gathered.drain(..) {
            let begun = Begun { at: begin, intended: read.intended };
            let outcome = outcome.clone().and(read.outcome);
            self.conclude(read.step.kind, read.number, begun, end, outcome);
        }
    }
}
