//! The operations of one thread, made in chunks before they are run, so that drawing a record and writing out its
//! key (about 100 ns) cost the measured operations nothing.
//!
//! In a workload with inserts a record's number is known only when its turn comes: the number of a new record, and
//! with `latest` how far the acknowledged prefix has come. Such a step is bound by [`Trace::bind`]; the costly part,
//! the draw, is made before all the same.

use super::latest::{InsertCounter, latest_number};
use super::mix::OpKind;
use super::zipfian::{Draw, Gray, THETA};
use super::{Chooser, Distribution, WorkloadPlan};
use crate::rng::Rng;

/// Which record a step is about, and what [`Step::bits`] holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Known, and its key is written out: the record's number.
    Record,
    /// Counted back from the newest acknowledged record when the step's turn comes: [`Draw::Rank`].
    LatestRank,
    /// The same: the bits of [`Draw::Share`].
    LatestShare,
    /// A new one: nothing.
    New,
}

/// One operation, in 16 bytes: four to a cache line, because the next ones are read ahead while the store is busy.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    bits: u64,
    slot: u32,
    key_bytes: u16,
    target: Target,
    /// What to do.
    pub kind: OpKind,
}

const _: () = assert!(size_of::<Step>() == 16);

impl Step {
    fn latest(draw: Draw) -> (Target, u64) {
        match draw {
            Draw::Rank(rank) => (Target::LatestRank, rank),
            Draw::Share(share) => (Target::LatestShare, share.to_bits()),
        }
    }
}

/// The operations of one thread.
#[derive(Debug)]
pub struct Trace {
    plan: WorkloadPlan,
    rng: Rng,
    chooser: Option<Chooser>,
    /// Next record in order, for `sequential`.
    next_in_order: u64,
    steps: Vec<Step>,
    next: usize,
    keys: Vec<u8>,
    stride_bytes: usize,
    steps_max: usize,
}

/// Steps that are brought into the processor's caches together. The keys lie in memory in order, but among a store's
/// random accesses the processor does not always fetch them ahead, and a miss would be charged to the store.
pub const TOUCHED_STEPS: usize = 128;

const LINE_BYTES: usize = 64;

/// Steps of a chunk over all threads together: about 40 bytes each.
const STEPS_MAX_OVER_THREADS: usize = 4 << 20;

impl Trace {
    /// The trace of `thread`. With `sequential`, it starts at record `first`.
    pub fn new(plan: &WorkloadPlan, thread: usize, threads: usize, first: u64) -> Self {
        Self {
            plan: plan.clone(),
            rng: Rng::for_thread(plan.seed, thread),
            chooser: Chooser::new(plan),
            next_in_order: first,
            steps: Vec::new(),
            next: 0,
            keys: Vec::new(),
            stride_bytes: plan.keys.bytes_max().next_multiple_of(8),
            steps_max: (STEPS_MAX_OVER_THREADS / threads.max(1)).clamp(1 << 12, 1 << 20),
        }
    }

    /// The next step, or nothing when the chunk is used up.
    #[inline]
    pub fn next_step(&mut self) -> Option<Step> {
        if self.next.is_multiple_of(TOUCHED_STEPS) {
            self.touch(self.next);
        }
        let step = self.steps.get(self.next).copied();
        self.next += 1;
        step
    }

    /// Loads [`TOUCHED_STEPS`] steps and their keys from `first` on, so that they are in the caches when they are
    /// needed.
    pub fn touch(&self, first: usize) {
        let last = (first + TOUCHED_STEPS).min(self.steps.len());
        let Some(steps) = self.steps.get(first..last) else { return };
        let keys = &self.keys[first * self.stride_bytes..last * self.stride_bytes];
        let of_steps = steps.iter().step_by(LINE_BYTES / size_of::<Step>()).map(|step| u64::from(step.slot));
        let of_keys = keys.iter().step_by(LINE_BYTES).map(|byte| u64::from(*byte));
        std::hint::black_box(of_steps.sum::<u64>() + of_keys.sum::<u64>());
    }

    /// Makes the next chunk of at most `wanted` steps (more than 0).
    pub fn refill(&mut self, wanted: u64, inserts: &InsertCounter) {
        let stored = inserts.acknowledged();
        let steps = usize::try_from(wanted).unwrap_or(usize::MAX).min(self.chunk_steps(stored)).max(1);
        self.keys.resize(steps * self.stride_bytes, 0);
        self.steps.clear();
        self.next = 0;
        let latest = (self.plan.distribution == Distribution::Latest)
            .then(|| Gray::new(stored.saturating_sub(1).max(1), THETA));
        for slot in 0..steps {
            let kind = self.plan.mix.pick(self.rng.next_f64());
            let (target, bits) = match (kind, &latest, &self.chooser) {
                (OpKind::Insert, ..) => (Target::New, 0),
                (_, Some(gray), _) => Step::latest(gray.draw(self.rng.next_f64())),
                (_, _, Some(chooser)) => (Target::Record, chooser.number(&mut self.rng, stored)),
                (_, None, None) => {
                    self.next_in_order += 1;
                    (Target::Record, self.next_in_order - 1)
                }
            };
            let mut step = Step { bits, slot: slot as u32, key_bytes: 0, target, kind };
            if target == Target::Record {
                step.key_bytes = self.write_key(step, bits);
            }
            self.steps.push(step);
        }
    }

    /// With inserts, a chunk is so short that the records grow by about 1 % while it is run: the draws of
    /// `latest` and the redraws of the others are made for the number of records at its start.
    fn chunk_steps(&self, stored: u64) -> usize {
        let insert_share = self.plan.mix.share(OpKind::Insert);
        if insert_share == 0.0 || insert_share == 1.0 {
            return self.steps_max;
        }
        ((stored as f64 / 100.0 / insert_share) as usize).clamp(64, self.steps_max)
    }

    fn write_key(&mut self, step: Step, number: u64) -> u16 {
        let at = step.slot as usize * self.stride_bytes;
        self.plan.keys.write(number, &mut self.keys[at..at + self.stride_bytes]) as u16
    }

    /// Settles the record of `step` and returns its number. `new_record` gives the number for an insert.
    #[inline]
    pub fn bind(
        &mut self,
        step: &mut Step,
        inserts: &InsertCounter,
        new_record: impl FnOnce() -> u64,
    ) -> u64 {
        let number = match step.target {
            Target::Record => return step.bits,
            Target::LatestRank => latest_number(Draw::Rank(step.bits), inserts.acknowledged()),
            Target::LatestShare => {
                latest_number(Draw::Share(f64::from_bits(step.bits)), inserts.acknowledged())
            }
            Target::New => new_record(),
        };
        step.key_bytes = self.write_key(*step, number);
        (step.target, step.bits) = (Target::Record, number);
        number
    }

    /// Steps of the chunk.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the chunk has no steps: before the first refill.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The key of the step at position `at` of the chunk. Only where all records are known before, which is so in
    /// workloads without inserts.
    #[inline]
    pub fn key_at(&self, at: usize) -> &[u8] {
        self.key(&self.steps[at])
    }

    /// The key of a bound step, valid until the next refill.
    #[inline]
    pub fn key(&self, step: &Step) -> &[u8] {
        let at = step.slot as usize * self.stride_bytes;
        &self.keys[at..at + usize::from(step.key_bytes)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::keys::KeyFormat;
    use crate::workload::mix::{Mix, Workload};

    fn plan(workload: Workload, distribution: Distribution) -> WorkloadPlan {
        WorkloadPlan {
            name: workload.name(),
            mix: workload.mix().unwrap(),
            distribution,
            records: 1000,
            operations: 10_000,
            keys: KeyFormat::default(),
            seed: 11,
        }
    }

    fn numbers(trace: &mut Trace, inserts: &InsertCounter) -> Vec<(OpKind, u64)> {
        let mut out = Vec::new();
        while let Some(mut step) = trace.next_step() {
            let number = trace.bind(&mut step, inserts, || inserts.take());
            assert_eq!(trace.key(&step), KeyFormat::default().key(number));
            if step.kind == OpKind::Insert {
                inserts.acknowledge(number).unwrap();
            }
            out.push((step.kind, number));
        }
        out
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_threads_differ() {
        let run = |thread| {
            let inserts = InsertCounter::new(1000);
            let mut trace = Trace::new(&plan(Workload::A, Distribution::Zipfian), thread, 2, 0);
            trace.refill(500, &inserts);
            numbers(&mut trace, &inserts)
        };
        assert_eq!(run(0), run(0));
        assert_ne!(run(0), run(1));
        assert_eq!(run(0).len(), 500);
    }

    #[test]
    fn chunks_continue_one_stream() {
        let inserts = InsertCounter::new(1000);
        let plan = plan(Workload::B, Distribution::Zipfian);
        let mut whole = Trace::new(&plan, 0, 1, 0);
        whole.refill(200, &inserts);
        let mut parts = Trace::new(&plan, 0, 1, 0);
        parts.refill(80, &inserts);
        let mut found = numbers(&mut parts, &inserts);
        parts.refill(120, &inserts);
        found.extend(numbers(&mut parts, &inserts));
        assert_eq!(found, numbers(&mut whole, &inserts));
    }

    #[test]
    fn workload_d_reads_only_what_is_acknowledged() {
        for distribution in [Distribution::Latest, Distribution::Zipfian, Distribution::Uniform] {
            let inserts = InsertCounter::new(1000);
            let mut trace = Trace::new(&plan(Workload::D, distribution), 0, 1, 0);
            let mut new = Vec::new();
            for _ in 0..20 {
                trace.refill(1000, &inserts);
                while let Some(mut step) = trace.next_step() {
                    let stored = inserts.acknowledged();
                    let number = trace.bind(&mut step, &inserts, || inserts.take());
                    if step.kind == OpKind::Insert {
                        new.push(number);
                        inserts.acknowledge(number).unwrap();
                    } else {
                        assert!(number < stored, "record {number} of {stored}");
                    }
                }
            }
            assert!(new.iter().copied().eq(1000..1000 + new.len() as u64));
            assert!(!new.is_empty());
        }
    }

    #[test]
    fn sequential_reads_each_record_once() {
        let inserts = InsertCounter::new(1000);
        let mut plan = plan(Workload::C, Distribution::Sequential);
        plan.mix = Mix::READS;
        let mut trace = Trace::new(&plan, 1, 2, 500);
        trace.refill(500, &inserts);
        let found: Vec<u64> = numbers(&mut trace, &inserts).into_iter().map(|(_, number)| number).collect();
        assert!(found.into_iter().eq(500..1000));
    }
}
