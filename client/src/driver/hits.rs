//! Hits that are reported to a server that evicts: it cannot see them, and would give up what is used most.
//!
//! One hit in 16 on average is noted, or fewer, at random distances, so that no pattern of keys falls in step with it. What
//! was noted goes as one message without a reply that anybody waits for, when a message is full or has been begun a while
//! ago, and only if credit is left over. Otherwise it is dropped: some keys look less used than they are, no more.
//!
//! What this costs is bounded by time, not by hits: a report wakes a server that sleeps, which takes the client some 30 us. A
//! client that fills reports sooner than they get old notes fewer of its hits.

use kv_common::layout::Slot;
use kv_common::limits::HITS_PER_REPORT_MAX;
use kv_common::transport::{SendError, Transport};
use kv_common::wire::{Op as WireOp, Request, Value};

use super::Driver;
use super::requests::InFlight;

/// Of so many hits one is noted, on average, by a client that has few, ...
pub(super) const HITS_PER_SAMPLE_MIN: u64 = 16;
/// ... and by one that has as many as there can be.
const HITS_PER_SAMPLE_MAX: u64 = 1024;
/// A report is sent before it is full if it was begun so long ago ...
const REPORT_AGE_NS: u64 = 20_000_000;
/// ... which is looked at whenever so many more hits were noted.
const SAMPLES_PER_LOOK: usize = 16;

/// What will be reported.
#[derive(Debug)]
pub(super) struct Hits {
    /// Hits until the next one that is noted; never to be reached if the server does not evict.
    until_next: u64,
    /// Places, as the message has them.
    places: Vec<u8>,
    begun_ns: u64,
    /// Of so many hits one is noted, on average: a power of two.
    per_sample: u64,
    /// State of a xorshift generator.
    random: u64,
}

impl Hits {
    /// For a server that evicts, or does not; `seed` differs from client to client.
    pub(super) fn new(evicts: bool, seed: u64) -> Hits {
        let random = (seed ^ 0x9e37_79b9_7f4a_7c15).max(1);
        let per_sample = HITS_PER_SAMPLE_MIN;
        let mut hits = Hits { until_next: u64::MAX, places: Vec::new(), begun_ns: 0, per_sample, random };
        if evicts {
            hits.until_next = hits.draw();
        }
        hits
    }

    /// True if this hit is to be noted.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.until_next -= 1;
        let is_due = self.until_next == 0;
        if is_due {
            self.until_next = self.draw();
        }
        is_due
    }

    /// A distance from 1 to twice the mean less one.
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + self.random % (2 * self.per_sample - 1)
    }

    /// A report has so many hits, and was begun so long ago. The next one is to be nearly full when it gets old.
    fn adapt(&mut self, samples: usize, age_ns: u64) {
        if age_ns < REPORT_AGE_NS {
            self.per_sample = (self.per_sample * 2).min(HITS_PER_SAMPLE_MAX);
        } else if samples <= HITS_PER_REPORT_MAX / 4 {
            self.per_sample = (self.per_sample / 2).max(HITS_PER_SAMPLE_MIN);
        }
    }

    fn len(&self) -> usize {
        self.places.len() / 8
    }
}

impl<T: Transport> Driver<T> {
    /// Notes a hit whose turn it is; one of a GET that takes no part in turns lets replies to earlier reports be taken.
    #[cold]
    pub(super) fn note_hit(&mut self, slot: Slot, takes_turns: bool) {
        if self.hits.places.is_empty() {
            self.hits.begun_ns = self.transport.now_ns();
        }
        self.hits.places.extend_from_slice(&slot.place().0.to_le_bytes());
        let samples = self.hits.len();
        if !samples.is_multiple_of(SAMPLES_PER_LOOK) {
            return;
        }
        let age_ns = self.transport.now_ns().saturating_sub(self.hits.begun_ns);
        if samples == HITS_PER_REPORT_MAX || age_ns >= REPORT_AGE_NS {
            self.hits.adapt(samples, age_ns);
            if !takes_turns {
                self.take_events();
            }
            self.report_hits();
        }
    }

    /// Sends what was noted, or drops it. The last credit is left to operations.
    fn report_hits(&mut self) {
        let mut places = std::mem::take(&mut self.hits.places);
        let is_idle = self.unsent.is_empty() && !self.in_flight.iter().any(InFlight::is_report);
        if is_idle && self.broken.is_none() && self.in_flight.len() + 1 < self.requests_in_flight_max {
            let request =
                Request::new(self.next_seq, self.session, WireOp::Hits, b"", Value::Inline(&places));
            match self.transport.send(&request.parts(&request.header())) {
                Ok(()) => {
                    self.in_flight.push_back(InFlight::report(self.next_seq));
                    self.next_seq += 1;
                    self.stats.hits_reported += (places.len() / 8) as u64;
                    self.transport.flush();
                }
                Err(SendError::Full) => {}
                Err(SendError::Broken(broken)) => self.fail_all(broken),
            }
        }
        places.clear();
        self.hits.places = places;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hit_in_so_many_is_noted_at_changing_distances() {
        for seed in 0..50 {
            let mut hits = Hits::new(true, seed);
            let mut distances = Vec::new();
            for _ in 0..4000 {
                let mut distance = 1;
                while !hits.is_due() {
                    distance += 1;
                }
                distances.push(distance);
            }
            let mean = distances.iter().sum::<u64>() as f64 / distances.len() as f64;
            assert!((15.0..17.0).contains(&mean), "{mean} of seed {seed}");
            assert!(distances.iter().all(|distance| (1..=31).contains(distance)));
            assert!((1..=31).all(|distance| distances.contains(&distance)));
        }
    }

    #[test]
    fn reports_of_any_rate_of_hits_are_sent_when_they_get_old() {
        let mut hits = Hits::new(true, 3);
        for hits_per_s in [20_000_000, 2_000_000, 100, 700_000, 5_000_000] {
            // A report begins; it is full after so long, or gets old before.
            let mut full_early = 0;
            for _ in 0..200 {
                let full_ns = HITS_PER_REPORT_MAX as u64 * hits.per_sample * 1_000_000_000 / hits_per_s;
                let age_ns = full_ns.min(REPORT_AGE_NS);
                let samples = age_ns * hits_per_s / hits.per_sample / 1_000_000_000;
                full_early += u32::from(full_ns < REPORT_AGE_NS);
                hits.adapt(samples as usize, age_ns);
            }
            assert!(full_early <= 6, "{full_early} of 200 at {hits_per_s} hits per second");
            // No more of them are left out than that needs.
            let noted_per_s = hits_per_s / hits.per_sample;
            let most_per_s = HITS_PER_REPORT_MAX as u64 * 1_000_000_000 / REPORT_AGE_NS;
            assert!(hits.per_sample == HITS_PER_SAMPLE_MIN || noted_per_s > most_per_s / 4);
        }
    }

    #[test]
    fn a_server_that_does_not_evict_hears_nothing() {
        let mut hits = Hits::new(false, 7);
        assert!((0..1_000_000).all(|_| !hits.is_due()));
    }
}
