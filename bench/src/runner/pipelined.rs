//! Several operations of one thread in flight.

use std::collections::VecDeque;

use super::worker::{Begun, Worker};
use crate::clock::Clock;
use crate::store::{Completion, Outcome, Request, Store, StoreError};
use crate::value::Stamp;
use crate::workload::mix::OpKind;
use crate::workload::trace::Step;

/// An operation in flight. It keeps its own copy of the key: the trace may be made anew meanwhile.
#[derive(Debug)]
struct Flight<T> {
    ticket: T,
    kind: OpKind,
    number: u64,
    key: Vec<u8>,
    begun: Begun,
    lower: u64,
    /// Of the write that this operation is, or will be once its read is there.
    stamp: Option<Stamp>,
    /// When the read half ended and the write half began.
    halves: Option<(u64, u64)>,
}

/// The operations in flight of one thread, the oldest first.
#[derive(Debug)]
struct Flights<T> {
    flying: VecDeque<Flight<T>>,
    spare_keys: Vec<Vec<u8>>,
}

impl<T: Copy + Eq> Flights<T> {
    fn new() -> Self {
        Self { flying: VecDeque::new(), spare_keys: Vec::new() }
    }

    /// Takes the flight of `ticket`. Completions come nearly in order, so the search is short.
    fn take(&mut self, ticket: T) -> Option<Flight<T>> {
        let at = self.flying.iter().position(|flight| flight.ticket == ticket)?;
        self.flying.remove(at)
    }

    fn key(&mut self, key: &[u8]) -> Vec<u8> {
        let mut copy = self.spare_keys.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(key);
        copy
    }
}

impl<S: Store, C: Clock> Worker<'_, S, C> {
    /// Runs a phase with up to `depth` operations in flight.
    pub(super) fn run_pipelined(&mut self) {
        let depth = self.shared.plan.depth;
        let mut flights = Flights::new();
        loop {
            while let Some((step, number)) = self.next_step() {
                while flights.flying.len() >= depth || self.is_early(&flights) {
                    let full = flights.flying.len() >= depth;
                    self.complete_one(&mut flights, full);
                }
                self.launch(&mut flights, step, number);
            }
            if !self.refill() {
                break;
            }
        }
        while self.complete_one(&mut flights, true) {}
    }

    /// Whether there is time to look at completions before the next operation should start.
    fn is_early(&self, flights: &Flights<S::Ticket>) -> bool {
        !flights.flying.is_empty() && self.next_intended().is_some_and(|at| self.clock.begin() < at)
    }

    fn launch(&mut self, flights: &mut Flights<S::Ticket>, step: Step, number: u64) {
        let intended = self.pace();
        let stamp = (step.kind != OpKind::Read).then(|| self.begin_write_in_flight(flights, number));
        let key = flights.key(self.trace.key(&step));
        let lower = self.judge.begin_read(number);
        let writes_now = stamp.filter(|_| !self.reads_first(step.kind));
        if let Some(stamp) = writes_now {
            self.author.write(&mut self.value, &key, stamp);
        }
        let begun = Begun { at: self.clock.begin(), intended };
        let submitted = match writes_now {
            Some(_) => self.store.submit(Request::Write(&key, &self.value)),
            None => self.store.submit(Request::Read(&key)),
        };
        match submitted {
            Ok(ticket) => flights.flying.push_back(Flight {
                ticket,
                kind: step.kind,
                number,
                key,
                begun,
                lower,
                stamp,
                halves: None,
            }),
            Err(error) => {
                match (stamp, writes_now) {
                    (Some(_), Some(_)) => self.author.end(number, Err(&error)),
                    (Some(_), None) => self.author.cancel(number),
                    (None, _) => {}
                }
                let end = self.clock.end();
                self.conclude(step.kind, number, begun, end, Err(error));
            }
        }
    }

    /// The stamp of a write of record `number`. If another write of that key is in flight, maybe one of this
    /// thread's own, completions are taken until it has ended.
    fn begin_write_in_flight(&mut self, flights: &mut Flights<S::Ticket>, number: u64) -> Stamp {
        loop {
            if let Some(stamp) = self.author.begin(number) {
                return stamp;
            }
            if !self.complete_one(flights, false) {
                std::thread::yield_now();
            }
        }
    }

    /// Takes one completion; `false` if there was none. With `wait`, afterwards either one operation less is in flight
    /// (or its write half is), or none at all.
    fn complete_one(&mut self, flights: &mut Flights<S::Ticket>, wait: bool) -> bool {
        if flights.flying.is_empty() {
            return false;
        }
        let completed = self.store.complete(wait, &mut self.record);
        let end = self.clock.end();
        match completed {
            Ok(Some(Completion { ticket, outcome })) => {
                if let Some(flight) = flights.take(ticket) {
                    self.land(flights, flight, outcome, end);
                }
                true
            }
            Ok(None) if !wait => false,
            Ok(None) => {
                let lost = StoreError::Failed(format!("{} operations never ended", flights.flying.len()));
                self.crash(flights, &lost, end);
                false
            }
            Err(error) => {
                self.crash(flights, &error, end);
                false
            }
        }
    }

    fn land(
        &mut self,
        flights: &mut Flights<S::Ticket>,
        mut flight: Flight<S::Ticket>,
        outcome: Result<Outcome, StoreError>,
        end: u64,
    ) {
        if outcome == Ok(Outcome::Found) {
            self.judge.check(&mut self.tally, flight.number, &flight.key, flight.lower, &self.record);
        }
        let ended = match (outcome, flight.stamp) {
            (Ok(Outcome::Found), None) => Ok(true),
            (Ok(Outcome::Found), Some(stamp)) => match self.write_half(&mut flight, stamp, end) {
                Ok(()) => return flights.flying.push_back(flight),
                Err(error) => {
                    self.author.end(flight.number, Err(&error));
                    Err(error)
                }
            },
            (Ok(Outcome::Written), _) => {
                self.author.end(flight.number, Ok(()));
                self.record_halves(&flight, end);
                Ok(true)
            }
            (Ok(Outcome::NotFound), stamp) => {
                if stamp.is_some() {
                    self.author.cancel(flight.number);
                }
                Ok(false)
            }
            (Err(error), stamp) => {
                self.end_failed(&flight, stamp, &error);
                Err(error)
            }
        };
        self.conclude(flight.kind, flight.number, flight.begun, end, ended);
        flights.spare_keys.push(flight.key);
    }

    /// Submits the write half of an operation whose read half has found `self.record`.
    fn write_half(
        &mut self,
        flight: &mut Flight<S::Ticket>,
        stamp: Stamp,
        read_end: u64,
    ) -> Result<(), StoreError> {
        if !(self.patches() && self.author.patch(&mut self.record, &flight.key, stamp)) {
            self.author.write(&mut self.record, &flight.key, stamp);
        }
        flight.halves = Some((read_end, self.clock.begin()));
        flight.ticket = self.store.submit(Request::Write(&flight.key, &self.record))?;
        Ok(())
    }

    fn record_halves(&mut self, flight: &Flight<S::Ticket>, end: u64) {
        if let (OpKind::Rmw, Some((read_end, write_begin))) = (flight.kind, flight.halves) {
            self.tally.rmw_read.record(self.clock.ns(read_end.saturating_sub(flight.begun.at)));
            self.tally.rmw_write.record(self.clock.ns(end.saturating_sub(write_begin)));
        }
    }

    fn end_failed(&self, flight: &Flight<S::Ticket>, stamp: Option<Stamp>, error: &StoreError) {
        let was_write = !self.reads_first(flight.kind) || flight.halves.is_some();
        match stamp {
            Some(_) if was_write => self.author.end(flight.number, Err(error)),
            Some(_) => self.author.cancel(flight.number),
            None => {}
        }
    }

    /// Nothing in flight can end any more.
    #[cold]
    fn crash(&mut self, flights: &mut Flights<S::Ticket>, error: &StoreError, end: u64) {
        let unknown = StoreError::Unknown(error.to_string());
        while let Some(flight) = flights.flying.pop_front() {
            self.end_failed(&flight, flight.stamp, &unknown);
            self.conclude(flight.kind, flight.number, flight.begun, end, Err(error.clone()));
        }
        self.tally.fatal.get_or_insert(error.clone());
    }
}
