//! The index segments as the server knows them: what each answers for, how far its split is, how full it is, and which of
//! its overflow lines are free.
//!
//! Readers find index segments through the directory in the region; so do workers, but they look at the segment's
//! [`State`] too, which says what readers need not know: which homes of a segment that is being split are written in the
//! other one already.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kv_common::hash::KeyHash;
use kv_common::layout::{
    DIRECTORY_DEPTH_MAX, HOME_LINES, HOMES, LINE_SLOTS, LineNumber, OVERFLOW_LINES, SEGMENT_LINES, superblock,
};
use kv_common::limits::WORKERS_MAX;
use kv_common::region::Words;
use parking_lot::Mutex;

/// Slots of an index segment, those of overflow lines too.
const SEGMENT_SLOTS: u64 = SEGMENT_LINES * LINE_SLOTS as u64;
/// Slots in use at which the first segments are split, ...
const SPLIT_MIN: u64 = SEGMENT_SLOTS * 58 / 100;
/// ... and the last ones. Hashing fills all segments alike: with one threshold for all, all would be split at once, and
/// the index would be half empty afterwards. Above 76 % the overflow lines of a segment run out.
const SPLIT_MAX: u64 = SEGMENT_SLOTS * 74 / 100;
/// Slots in use at which overflow lines run out, if hashing has its way.
const FULL: u64 = SEGMENT_SLOTS * 76 / 100;
const _: () = assert!(SPLIT_MAX < FULL);
/// Keys that may come while a split takes place, into all segments together: what two million inserts per second bring
/// within 60 ms. The fewer segments there are, the more of them fall to the one that is being split, so it begins earlier.
const KEYS_AHEAD: u64 = 1 << 17;
/// ... but no more than this share of what a small region can hold, which would else be split at once.
const KEYS_AHEAD_PER_SEGMENT: u64 = 1 << 10;

/// What a segment is to a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It has none.
    Plain,
    /// It is being split: the keys of its homes below `moved_homes` that belong to `target` are written there.
    Source { target: u64, moved_homes: u64 },
    /// It gets its keys from `source`.
    Target { source: u64 },
}

/// What a segment answers for, and its role: one word, so that both are always of one moment.
///
/// ```text
/// | depth:5 | role:2 | prefix:18 | moved homes:16 | other segment:23 |      bit 0 on the left
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) depth: u32,
    pub(super) prefix: u64,
    pub(super) role: Role,
}

const _: () = assert!(DIRECTORY_DEPTH_MAX < 1 << 5 && DIRECTORY_DEPTH_MAX <= 18 && HOMES < 1 << 16);
const _: () = assert!(kv_common::limits::REGION_MAX_BYTES / kv_common::layout::SEGMENT_BYTES <= 1 << 23);

impl State {
    fn encode(self) -> u64 {
        let (role, moved_homes, other) = match self.role {
            Role::Plain => (0, 0, 0),
            Role::Source { target, moved_homes } => (1, moved_homes, target),
            Role::Target { source } => (2, 0, source),
        };
        self.depth as u64 | role << 5 | self.prefix << 7 | moved_homes << 25 | other << 41
    }

    fn decode(word: u64) -> State {
        let (moved_homes, other) = (word >> 25 & 0xffff, word >> 41);
        let role = match word >> 5 & 3 {
            0 => Role::Plain,
            1 => Role::Source { target: other, moved_homes },
            _ => Role::Target { source: other },
        };
        State { depth: word as u32 & 0x1f, prefix: word >> 7 & 0x3_ffff, role }
    }

    /// True if the segment answers for `hash`.
    fn answers_for(self, hash: KeyHash) -> bool {
        hash.prefix(self.depth) == self.prefix
    }

    /// True if a split of this segment takes `hash` away from it.
    pub(super) fn loses(self, hash: KeyHash) -> bool {
        hash.0 >> self.depth & 1 == 1
    }
}

/// Slots in use of a segment at which the keys that may come during its split just fit, among `index_segments` in a region
/// of `segments`.
fn early(segments: u64, index_segments: u64) -> u64 {
    let keys_ahead = KEYS_AHEAD.min(segments * KEYS_AHEAD_PER_SEGMENT);
    SPLIT_MAX.saturating_sub(keys_ahead / index_segments)
}

/// Slots in use at which the first of `index_segments` is split in a region of `segments`.
pub(super) fn keys_before_split(segments: u64, index_segments: u64) -> u64 {
    SPLIT_MIN.min(early(segments, index_segments))
}

/// One index segment.
struct Segment {
    state: AtomicU64,
    /// Slots that are not empty.
    used: AtomicU64,
    /// Overflow lines in chains.
    overflow_used: AtomicU64,
    overflow_free: Mutex<Vec<u16>>,
    /// Its split has been asked for and not ended.
    is_wanted: AtomicBool,
}

/// All index segments.
pub(super) struct Index {
    region: Words,
    directory_word: usize,
    /// By number; only index segments are there.
    segments: Box<[OnceLock<Box<Segment>>]>,
    count: AtomicU64,
    /// See [`early`].
    early: AtomicU64,
}

impl Index {
    /// An index without segments, in a region whose directory starts at `directory_word`.
    pub(super) fn new(region: &Words, directory_word: usize, segments: u64) -> Index {
        Index {
            region: region.clone(),
            directory_word,
            segments: (0..segments).map(|_| OnceLock::new()).collect(),
            count: AtomicU64::new(0),
            early: AtomicU64::new(0),
        }
    }

    /// The first index segment whose number is not below this one.
    pub(super) fn first_from(&self, segment: u64) -> Option<u64> {
        (segment..self.segments.len() as u64).find(|&segment| self.segments[segment as usize].get().is_some())
    }

    /// Adds a segment whose lines are written and empty.
    pub(super) fn add(&self, segment: u64, state: State) {
        // From the end, so that the first line is taken first.
        let lines = (HOME_LINES..SEGMENT_LINES).rev().map(|line| line as u16).collect();
        let made = Segment {
            state: AtomicU64::new(state.encode()),
            used: AtomicU64::new(0),
            overflow_used: AtomicU64::new(0),
            overflow_free: Mutex::new(lines),
            is_wanted: AtomicBool::new(false),
        };
        assert!(self.segments[segment as usize].set(Box::new(made)).is_ok(), "a segment is added once");
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.early.store(early(self.segments.len() as u64, count), Ordering::Relaxed);
    }

    /// Index segments, those that are being filled by a split too.
    pub(super) fn segments(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self, segment: u64) -> State {
        State::decode(self.segment(segment).state.load(Ordering::Acquire))
    }

    /// Only for who splits.
    pub(super) fn set_state(&self, segment: u64, state: State) {
        self.segment(segment).state.store(state.encode(), Ordering::Release);
    }

    /// The line where a key with this hash has its home *for writers*. Under the stripes of the home it stays that; else
    /// it is a hint.
    ///
    /// A segment stops answering for a hash only after the directory leads to another one, so the loop ends.
    pub(super) fn home(&self, hash: KeyHash) -> LineNumber {
        loop {
            let depth = self.region.load_acquire(superblock::DIRECTORY_DEPTH) as u32;
            let segment = self.region.load_acquire(self.directory_word + hash.prefix(depth) as usize);
            let state = self.state(segment);
            if !state.answers_for(hash) {
                continue;
            }
            return match state.role {
                Role::Source { target, moved_homes } if state.loses(hash) && hash.home() < moved_homes => {
                    LineNumber::new(target, hash.home())
                }
                _ => LineNumber::new(segment, hash.home()),
            };
        }
    }

    /// The segment that still has copies of slots of `segment`, if it is being filled by a split.
    pub(super) fn source_of(&self, segment: u64) -> Option<u64> {
        match self.state(segment).role {
            Role::Target { source } => Some(source),
            _ => None,
        }
    }

    /// True if the keys of this segment are being copied, or cleared.
    pub(super) fn is_source(&self, segment: u64) -> bool {
        matches!(self.state(segment).role, Role::Source { .. })
    }

    /// The line of the other segment whose slots must be empty, too, for a new key to go into the same ones of `line`.
    ///
    /// While a segment is being split, one line of it and one of the other are shared by a home whose keys were copied and
    /// the next, whose keys were not. Slots are copied to the same positions; this keeps them free.
    pub(super) fn shared_with(&self, line: LineNumber) -> Option<LineNumber> {
        let state = self.state(line.segment());
        let (source, other) = match state.role {
            Role::Plain => return None,
            Role::Source { target, .. } => (state, target),
            Role::Target { source } => (self.state(source), source),
        };
        let Role::Source { moved_homes, .. } = source.role else { return None };
        (line.in_segment() == moved_homes && moved_homes < HOMES)
            .then(|| LineNumber::new(other, line.in_segment()))
    }

    /// Takes a free overflow line of the segment of `home` for a new key.
    ///
    /// While keys are being copied, so many lines stay free in the segment that gets them as are in use in the other:
    /// no home needs more lines for the keys that it gives away than it has.
    pub(super) fn take_overflow(&self, home: LineNumber) -> Option<LineNumber> {
        let state = self.state(home.segment());
        let (source, target) = match state.role {
            Role::Plain => return self.take_overflow_for_copy(home),
            Role::Source { target, .. } => (home.segment(), target),
            Role::Target { source } => (source, home.segment()),
        };
        let is_copied =
            matches!(self.state(source).role, Role::Source { moved_homes: HOMES, .. } | Role::Plain);
        let free = OVERFLOW_LINES - self.segment(target).overflow_used.load(Ordering::Relaxed);
        // Every worker may be here at once.
        let reserved = self.segment(source).overflow_used.load(Ordering::Relaxed) + WORKERS_MAX as u64;
        if is_copied || free > reserved { self.take_overflow_for_copy(home) } else { None }
    }

    /// The same for a copied key, from all that are free.
    pub(super) fn take_overflow_for_copy(&self, home: LineNumber) -> Option<LineNumber> {
        let segment = self.segment(home.segment());
        let line = segment.overflow_free.lock().pop()?;
        segment.overflow_used.fetch_add(1, Ordering::Relaxed);
        Some(home.sibling(line))
    }

    /// Gives an overflow line back that no chain leads to any more.
    pub(super) fn give_overflow_back(&self, line: LineNumber) {
        assert!(line.in_segment() >= HOME_LINES, "a home line is never free");
        let segment = self.segment(line.segment());
        segment.overflow_free.lock().push(line.in_segment() as u16);
        segment.overflow_used.fetch_sub(1, Ordering::Relaxed);
    }

    /// The free overflow lines of a segment, in no order.
    pub(super) fn free_overflow_lines(&self, segment: u64) -> Vec<u16> {
        self.segment(segment).overflow_free.lock().clone()
    }

    /// Slots in use in a segment.
    pub(super) fn used(&self, segment: u64) -> u64 {
        self.segment(segment).used.load(Ordering::Relaxed)
    }

    /// Notes that a slot of `line` is in use. True if the segment has so many that it should be split.
    pub(super) fn note_used(&self, line: LineNumber) -> bool {
        let segment = self.segment(line.segment());
        let used = segment.used.fetch_add(1, Ordering::Relaxed) + 1;
        used >= self.threshold(line.segment())
    }

    /// Notes that a slot of `line` is empty.
    pub(super) fn note_freed(&self, line: LineNumber) {
        self.segment(line.segment()).used.fetch_sub(1, Ordering::Relaxed);
    }

    /// Slots in use at which the first of the present segments is split.
    pub(super) fn keys_before_split(&self) -> u64 {
        keys_before_split(self.segments.len() as u64, self.segments())
    }

    /// Slots in use at which a segment is split.
    fn threshold(&self, segment: u64) -> u64 {
        // Multiples of the golden ratio: neighbours are far from each other, and all is covered evenly.
        let spread = segment.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let own = SPLIT_MIN + (((SPLIT_MAX - SPLIT_MIN) * spread) >> 32);
        own.min(self.early.load(Ordering::Relaxed))
    }

    /// Homes that a split of this segment must have copied by now. The schedule goes from the first eighth of the slots that
    /// were left when it was asked for to the fifth; what comes then, GRACE above all, has the others.
    pub(super) fn homes_due(&self, segment: u64) -> u64 {
        let threshold = self.threshold(segment);
        let left = FULL - threshold;
        let late = self.used(segment).saturating_sub(threshold + left / 8);
        (HOMES * late / (left / 2)).min(HOMES)
    }

    /// Notes that a segment is to be split. False if that was noted before, or it can not be split now or ever.
    pub(super) fn want_split(&self, segment: u64) -> bool {
        let state = self.state(segment);
        state.role == Role::Plain
            && state.depth < DIRECTORY_DEPTH_MAX
            && !self.segment(segment).is_wanted.swap(true, Ordering::Relaxed)
    }

    /// True if a split is wanted, or under way.
    pub(super) fn is_wanted(&self, segment: u64) -> bool {
        self.segment(segment).is_wanted.load(Ordering::Relaxed)
    }

    /// The split that was wanted has ended, or will not take place.
    pub(super) fn note_unwanted(&self, segment: u64) {
        self.segment(segment).is_wanted.store(false, Ordering::Relaxed);
    }

    fn segment(&self, segment: u64) -> &Segment {
        self.segments[segment as usize].get().expect("an index segment")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_back_from_words() {
        for role in [
            Role::Plain,
            Role::Source { target: (1 << 23) - 1, moved_homes: HOMES },
            Role::Source { target: 3, moved_homes: 0 },
            Role::Target { source: 1 << 22 },
        ] {
            for (depth, prefix) in [(0, 0), (18, 0x3_ffff), (5, 9)] {
                let state = State { depth, prefix, role };
                assert_eq!(State::decode(state.encode()), state);
            }
        }
    }

    #[test]
    fn segments_are_split_at_many_fills_and_early_if_there_are_few() {
        let index = |count| {
            let region = Words::zeroed(64);
            let index = Index::new(&region, 0, 1 << 14);
            index.early.store(early(1 << 14, count), Ordering::Relaxed);
            index
        };
        let many = index(1 << 10);
        let mut thresholds: Vec<u64> = (100..200).map(|segment| many.threshold(segment)).collect();
        thresholds.sort_unstable();
        assert!(thresholds[0] >= SPLIT_MIN && thresholds[99] <= SPLIT_MAX);
        let gap = (SPLIT_MAX - SPLIT_MIN) / 100;
        assert!(thresholds.windows(2).all(|pair| pair[1] - pair[0] < 3 * gap), "{thresholds:?}");
        for (count, percent) in [(1, 16), (2, 45), (4, 59)] {
            let threshold = index(count).threshold(1) * 100 / SEGMENT_SLOTS;
            assert!(threshold <= percent + 1, "{count} segments: {threshold} %");
        }
    }
}
