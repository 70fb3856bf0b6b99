//! What a read may return, checked while the run goes on.
//!
//! Every write of a key gets the next number of this key. A read may return the highest number acknowledged before it
//! began, the highest begun before it ended, or one between them. Two writes of one key are not in flight together:
//! whoever comes second waits, so the order of the numbers is the order of the writes.
//!
//! This holds only if this process is the only writer. A write whose outcome is unknown may still happen later; from
//! then on, its key is held to the upper bound alone.
//!
//! Versions start above a base taken from the time of day, so that values of earlier runs are told from this run's:
//! theirs are not above the base. They are accepted until this run has had a write of the key acknowledged.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::value::{Shape, Wrong, check_value, field_of};

/// One word per key: a write is in flight, an outcome is unknown, writes begun, writes acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KeyState(u64);

const BUSY: u64 = 1 << 63;
const UNKNOWN: u64 = 1 << 62;
const COUNT_BITS: u32 = 31;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

impl KeyState {
    const fn new(flags: u64, begun: u64, acknowledged: u64) -> Self {
        Self(flags | (begun << COUNT_BITS) | acknowledged)
    }
    const fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }
    const fn is_unknown(self) -> bool {
        self.0 & UNKNOWN != 0
    }
    const fn begun(self) -> u64 {
        (self.0 >> COUNT_BITS) & COUNT_MASK
    }
    const fn acknowledged(self) -> u64 {
        self.0 & COUNT_MASK
    }
}

/// How a write of a key ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteEnd {
    /// The store acknowledged it.
    Acknowledged,
    /// Nothing was sent.
    Cancelled,
    /// It may have happened, or happen later.
    Unknown,
}

/// How updates write, which decides what versions the fields of one record may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum UpdateMode {
    /// One field; the store holds whole values, so the client reads the record, changes the field, and writes it.
    Field,
    /// The whole value.
    Whole,
}

impl UpdateMode {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Field => "field",
            Self::Whole => "whole",
        }
    }
}

/// Keys whose states are allocated together.
const SEGMENT_KEYS: u64 = 1 << 16;
/// Segments at most, so 2^32 keys.
const SEGMENTS_MAX: u64 = 1 << 16;

/// The states of all keys.
#[derive(Debug)]
pub struct Oracle {
    base: u64,
    /// Records with this number or more are inserted by this run.
    records: u64,
    shape: Shape,
    mode: UpdateMode,
    segments: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

/// A version above those of every earlier run, if the clock of the day has not been set back.
pub fn version_base() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// Steps back through the versions before a field that has not shown up counts as older than all of them.
const CHAIN_MAX: u64 = 4096;

impl Oracle {
    /// For a run over `records` records that are there already.
    pub fn new(base: u64, records: u64, shape: Shape, mode: UpdateMode) -> Self {
        let segments = (0..SEGMENTS_MAX).map(|_| OnceLock::new()).collect();
        Self { base, records, shape, mode, segments }
    }

    fn state(&self, number: u64) -> &AtomicU64 {
        let segment = ((number / SEGMENT_KEYS) % SEGMENTS_MAX) as usize;
        let states =
            self.segments[segment].get_or_init(|| (0..SEGMENT_KEYS).map(|_| AtomicU64::new(0)).collect());
        &states[(number % SEGMENT_KEYS) as usize]
    }

    fn load(&self, number: u64) -> KeyState {
        KeyState(self.state(number).load(Ordering::SeqCst))
    }

    /// Begins a write of record `number` and returns its version; nothing while another write is in flight.
    /// Must be followed by [`Oracle::end_write`].
    pub fn begin_write(&self, number: u64) -> Option<u64> {
        let state = self.state(number);
        let old = KeyState(state.load(Ordering::SeqCst));
        if old.is_busy() {
            return None;
        }
        let begun = old.begun() + 1;
        let new = KeyState::new(BUSY | (old.0 & UNKNOWN), begun, old.acknowledged());
        state.compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst).ok()?;
        Some(self.base + begun)
    }

    /// Ends the write that is in flight for record `number`.
    pub fn end_write(&self, number: u64, end: WriteEnd) {
        let old = self.load(number);
        debug_assert!(old.is_busy(), "a write that ends must have begun");
        let new = match end {
            WriteEnd::Cancelled => KeyState::new(old.0 & UNKNOWN, old.begun() - 1, old.acknowledged()),
            WriteEnd::Unknown => KeyState::new(UNKNOWN, old.begun(), old.acknowledged()),
            WriteEnd::Acknowledged if old.is_unknown() => {
                KeyState::new(UNKNOWN, old.begun(), old.acknowledged())
            }
            WriteEnd::Acknowledged => KeyState::new(0, old.begun(), old.begun()),
        };
        self.state(number).store(new.0, Ordering::SeqCst);
    }

    /// The lower bound for a read that begins now, to be given to [`Oracle::check_read`].
    pub fn begin_read(&self, number: u64) -> u64 {
        self.load(number).acknowledged()
    }

    /// Checks what a read of record `number` returned: every byte, the version's bounds, and that all fields are of
    /// one moment. `lower` is what [`Oracle::begin_read`] said; `versions` is scratch.
    ///
    /// # Errors
    /// What is wrong with the value.
    pub fn check_read(
        &self,
        number: u64,
        key_hash: u64,
        lower: u64,
        value: &[u8],
        versions: &mut Vec<u64>,
    ) -> Result<(), Wrong> {
        let state = self.load(number);
        let newest = check_value(value, self.shape, key_hash, versions)?;
        if !self.shape.has_versions() {
            return Ok(());
        }
        let acknowledged = self.base + lower;
        if lower > 0 && newest < acknowledged {
            return Err(Wrong::Old { found: newest, acknowledged });
        }
        let begun = self.base + state.begun();
        if newest > begun {
            return Err(Wrong::Future { found: newest, begun });
        }
        if newest <= self.base || state.is_unknown() {
            return Ok(());
        }
        match self.mode {
            UpdateMode::Whole => check_one_version(newest, versions),
            UpdateMode::Field => self.check_chain(number, key_hash, newest, versions),
        }
    }

    /// With one field per update, the newest version says which version every field must have.
    fn check_chain(&self, number: u64, key_hash: u64, newest: u64, found: &[u64]) -> Result<(), Wrong> {
        let fields = self.shape.fields;
        let first = self.base + 1;
        let inserted_here = number >= self.records;
        let oldest = newest.saturating_sub(CHAIN_MAX).max(first);
        let mut seen = vec![false; fields];
        for version in (oldest..=newest).rev() {
            if inserted_here && version == first {
                break;
            }
            let field = field_of(key_hash, version, fields);
            if !std::mem::replace(&mut seen[field], true) && found[field] != version {
                return Err(mixed(field, found[field], newest, format!("{version}")));
            }
        }
        for (field, version) in found.iter().enumerate().filter(|(field, _)| !seen[*field]) {
            if inserted_here && oldest == first && *version != first {
                return Err(mixed(field, *version, newest, format!("{first}")));
            }
            if !inserted_here && *version >= oldest {
                return Err(mixed(field, *version, newest, format!("one before {oldest}")));
            }
        }
        Ok(())
    }
}

fn mixed(field: usize, found: u64, record: u64, expected: String) -> Wrong {
    Wrong::Mixed { field, found, record, expected }
}

fn check_one_version(newest: u64, found: &[u64]) -> Result<(), Wrong> {
    match found.iter().enumerate().find(|(_, version)| **version != newest) {
        Some((field, version)) => Err(mixed(field, *version, newest, format!("{newest}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Stamp, key_hash, patch_value, write_value};

    const BASE: u64 = 1_000_000;
    const SHAPE: Shape = Shape { fields: 10, field_bytes: 100 };

    fn oracle(mode: UpdateMode) -> Oracle {
        Oracle::new(BASE, 100, SHAPE, mode)
    }

    fn whole(version: u64) -> Vec<u8> {
        let mut value = Vec::new();
        write_value(&mut value, SHAPE, key_hash(b"k"), Stamp { version, writer: 1 });
        value
    }

    fn check(oracle: &Oracle, number: u64, lower: u64, value: &[u8]) -> Result<(), Wrong> {
        oracle.check_read(number, key_hash(b"k"), lower, value, &mut Vec::new())
    }

    fn write(oracle: &Oracle, number: u64) -> u64 {
        let version = oracle.begin_write(number).unwrap();
        oracle.end_write(number, WriteEnd::Acknowledged);
        version
    }

    #[test]
    fn a_read_is_held_to_both_bounds() {
        let oracle = oracle(UpdateMode::Whole);
        // A value of an earlier run is right until this run has written.
        assert_eq!(check(&oracle, 5, oracle.begin_read(5), &whole(17)), Ok(()));
        assert!(matches!(check(&oracle, 5, 0, &whole(BASE + 1)), Err(Wrong::Future { .. })));

        let lower = oracle.begin_read(5);
        let first = oracle.begin_write(5).unwrap();
        assert_eq!(check(&oracle, 5, lower, &whole(17)), Ok(()));
        assert_eq!(check(&oracle, 5, lower, &whole(first)), Ok(()));
        oracle.end_write(5, WriteEnd::Acknowledged);
        assert_eq!(check(&oracle, 5, lower, &whole(17)), Ok(()), "the read began before the write ended");

        let lower = oracle.begin_read(5);
        assert!(matches!(check(&oracle, 5, lower, &whole(17)), Err(Wrong::Old { .. })));
        assert_eq!(check(&oracle, 5, lower, &whole(first)), Ok(()));
        let second = write(&oracle, 5);
        assert_eq!(check(&oracle, 5, lower, &whole(second)), Ok(()));
        assert!(matches!(check(&oracle, 5, oracle.begin_read(5), &whole(first)), Err(Wrong::Old { .. })));
        assert_eq!(check(&oracle, 6, oracle.begin_read(6), &whole(17)), Ok(()), "keys are independent");
    }

    #[test]
    fn one_write_of_a_key_at_a_time() {
        let oracle = oracle(UpdateMode::Whole);
        assert_eq!(oracle.begin_write(1), Some(BASE + 1));
        assert_eq!(oracle.begin_write(1), None);
        assert_eq!(oracle.begin_write(2), Some(BASE + 1));
        oracle.end_write(1, WriteEnd::Cancelled);
        assert_eq!(oracle.begin_write(1), Some(BASE + 1), "a cancelled write leaves no trace");
    }

    #[test]
    fn an_unknown_outcome_lifts_the_lower_bound_only() {
        let oracle = oracle(UpdateMode::Whole);
        let first = write(&oracle, 1);
        let lost = oracle.begin_write(1).unwrap();
        oracle.end_write(1, WriteEnd::Unknown);
        let third = write(&oracle, 1);
        for version in [first, lost, third] {
            assert_eq!(check(&oracle, 1, oracle.begin_read(1), &whole(version)), Ok(()));
        }
        assert!(check(&oracle, 1, oracle.begin_read(1), &whole(17)).is_err());
        assert!(check(&oracle, 1, oracle.begin_read(1), &whole(third + 1)).is_err());
    }

    #[test]
    fn fields_of_two_moments_are_found() {
        // Record 200 is inserted by this run, record 7 was there before it.
        for number in [7, 200] {
            let oracle = oracle(UpdateMode::Field);
            let mut record = whole(3);
            let mut history = vec![record.clone()];
            for _ in 0..100 {
                let version = write(&oracle, number);
                let stamp = Stamp { version, writer: 0 };
                if number == 200 && version == BASE + 1 {
                    record = whole(version);
                } else {
                    let field = field_of(key_hash(b"k"), version, SHAPE.fields);
                    assert!(patch_value(&mut record, SHAPE, key_hash(b"k"), field, stamp));
                }
                history.push(record.clone());
            }
            for past in &history {
                assert_eq!(check(&oracle, number, 0, past), Ok(()));
            }
            let (old, new) = (&history[90], &history[100]);
            for cut in (100..1000).step_by(100) {
                for torn in [[&old[..cut], &new[cut..]].concat(), [&new[..cut], &old[cut..]].concat()] {
                    if !history.contains(&torn) {
                        let found = check(&oracle, number, 0, &torn);
                        assert!(matches!(found, Err(Wrong::Mixed { .. })), "cut {cut}: {found:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn whole_values_of_two_versions_are_found() {
        let oracle = oracle(UpdateMode::Whole);
        let (first, second) = (write(&oracle, 1), write(&oracle, 1));
        let torn = [&whole(first)[..500], &whole(second)[500..]].concat();
        assert!(matches!(check(&oracle, 1, 0, &torn), Err(Wrong::Mixed { .. })));
    }

    #[test]
    fn the_base_grows() {
        let first = version_base();
        assert!(version_base() >= first);
        assert!(first > 1_600_000_000_000_000_000);
    }
}
