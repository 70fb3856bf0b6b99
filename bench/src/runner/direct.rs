//! Operations one after the other: the shortest path from a step to its latency.

use super::worker::{Begun, Worker};
use crate::clock::Clock;
use crate::store::Store;
use crate::workload::mix::OpKind;
use crate::workload::trace::Step;

impl<S: Store, C: Clock> Worker<'_, S, C> {
    /// Runs a phase with one operation at a time.
    pub(super) fn run_direct(&mut self) {
        loop {
            while let Some((step, number)) = self.next_step() {
                let intended = self.pace();
                self.run_one(step, number, intended);
            }
            if !self.refill() {
                return;
            }
        }
    }

    /// Runs one operation to its end.
    #[inline]
    pub(super) fn run_one(&mut self, step: Step, number: u64, intended: Option<u64>) {
        if step.kind == OpKind::Read {
            self.read(step, number, intended);
        } else if self.reads_first(step.kind) {
            self.read_modify_write(step, number, intended);
        } else {
            self.write(step, number, intended);
        }
    }

    #[inline]
    fn read(&mut self, step: Step, number: u64, intended: Option<u64>) {
        let raw_due = self.raw_read_due();
        let key = self.trace.key(&step);
        let lower = self.judge.begin_read(number);
        let begun = Begun { at: self.clock.begin(), intended };
        let outcome = self.store.read(key, &mut self.record);
        let end = self.clock.end();
        if outcome == Ok(true) {
            self.judge.check(&mut self.tally, number, key, lower, &self.record);
        }
        self.conclude(step.kind, number, begun, end, outcome);
        if let Some(before) = raw_due {
            self.raw_read(before);
        }
    }

    fn write(&mut self, step: Step, number: u64, intended: Option<u64>) {
        let stamp = self.begin_write(number);
        let key = self.trace.key(&step);
        self.author.write(&mut self.value, key, stamp);
        let begun = Begun { at: self.clock.begin(), intended };
        let outcome = self.store.write(key, &self.value);
        let end = self.clock.end();
        self.author.end(number, outcome.as_ref().copied());
        self.conclude(step.kind, number, begun, end, outcome.map(|()| true));
    }

    /// Reads the record, changes it, writes it. Without the oracle, a write of the same key by another thread
    /// between the two is overwritten, as it is with any store of whole values.
    fn read_modify_write(&mut self, step: Step, number: u64, intended: Option<u64>) {
        let stamp = self.begin_write(number);
        let key = self.trace.key(&step);
        let lower = self.judge.begin_read(number);
        let begun = Begun { at: self.clock.begin(), intended };
        let found = self.store.read(key, &mut self.record);
        let read_end = self.clock.end();
        if found != Ok(true) {
            self.author.cancel(number);
            return self.conclude(step.kind, number, begun, read_end, found);
        }
        self.judge.check(&mut self.tally, number, key, lower, &self.record);
        if !(self.patches() && self.author.patch(&mut self.record, key, stamp)) {
            self.author.write(&mut self.record, key, stamp);
        }
        let write_begin = self.clock.begin();
        let outcome = self.store.write(key, &self.record);
        let end = self.clock.end();
        self.author.end(number, outcome.as_ref().copied());
        if step.kind == OpKind::Rmw && outcome.is_ok() {
            self.tally.rmw_read.record(self.clock.ns(read_end - begun.at));
            self.tally.rmw_write.record(self.clock.ns(end - write_begin));
        }
        self.conclude(step.kind, number, begun, end, outcome.map(|()| true));
    }
}
