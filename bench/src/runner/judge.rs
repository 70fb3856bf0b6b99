//! The two halves of self-proving values during a run: the author makes what is written, the judge checks what is
//! read.

use super::Shared;
use super::tally::Tally;
use crate::oracle::WriteEnd;
use crate::store::StoreError;
use crate::value::{Stamp, Wrong, check_value, field_of, key_hash, patch_value, write_value};

/// What is checked of the values that come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Their length.
    Length,
    /// Every byte, and that the version is this one or newer.
    Bytes {
        /// Oldest version that is right, 0 for any.
        oldest: u64,
    },
    /// Every byte, and the version against the bounds of the oracle. Right only if nobody else writes.
    Oracle,
}

/// Checks values.
#[derive(Debug)]
pub(super) struct Judge<'a> {
    shared: &'a Shared<'a>,
    versions: Vec<u64>,
}

impl<'a> Judge<'a> {
    pub(super) fn new(shared: &'a Shared<'a>) -> Self {
        Self { shared, versions: Vec::new() }
    }

    /// The lower bound for a read of record `number` that begins now.
    #[inline]
    pub(super) fn begin_read(&self, number: u64) -> u64 {
        self.shared.oracle.as_ref().map_or(0, |oracle| oracle.begin_read(number))
    }

    /// Checks the value that a read of record `number` found, and counts the verdict.
    #[inline]
    pub(super) fn check(&mut self, tally: &mut Tally, number: u64, key: &[u8], lower: u64, value: &[u8]) {
        std::hint::black_box(value);
        let plan = self.shared.plan;
        let verdict = match (plan.verify, &self.shared.oracle) {
            (Verify::Length, _) => {
                if value.len() == plan.shape.value_bytes() {
                    return;
                }
                Err(Wrong::Length { expected_bytes: plan.shape.value_bytes(), found_bytes: value.len() })
            }
            (Verify::Oracle, Some(oracle)) => {
                oracle.check_read(number, key_hash(key), lower, value, &mut self.versions)
            }
            (Verify::Bytes { oldest }, _) => self.check_bytes(key, value, oldest),
            (Verify::Oracle, None) => self.check_bytes(key, value, 0),
        };
        match verdict {
            Ok(()) => tally.verified += 1,
            Err(wrong) => {
                tally.wrong += 1;
                tally.example(|| describe(number, key, &wrong));
            }
        }
    }

    fn check_bytes(&mut self, key: &[u8], value: &[u8], oldest: u64) -> Result<(), Wrong> {
        let shape = self.shared.plan.shape;
        let found = check_value(value, shape, key_hash(key), &mut self.versions)?;
        if shape.has_versions() && found < oldest {
            return Err(Wrong::Old { found, acknowledged: oldest });
        }
        Ok(())
    }
}

#[cold]
fn describe(number: u64, key: &[u8], what: &dyn std::fmt::Display) -> String {
    format!("record {number}, key {}: {what}", String::from_utf8_lossy(key))
}

/// Makes values. With the oracle, one write of a key at a time.
#[derive(Debug)]
pub(super) struct Author<'a> {
    shared: &'a Shared<'a>,
    writer: u32,
    /// Writes of this thread; the version when no oracle gives one.
    writes: u64,
}

impl<'a> Author<'a> {
    pub(super) fn new(shared: &'a Shared<'a>, thread: usize) -> Self {
        Self { shared, writer: thread as u32, writes: 0 }
    }

    /// The stamp of a write of record `number` that begins now; nothing while another one of that key is in flight.
    /// Must be followed by [`Author::end`].
    pub(super) fn begin(&mut self, number: u64) -> Option<Stamp> {
        let version = match &self.shared.oracle {
            Some(oracle) => oracle.begin_write(number)?,
            None => {
                self.writes += 1;
                self.shared.base + self.writes
            }
        };
        Some(Stamp { version, writer: self.writer })
    }

    /// Makes a whole value.
    pub(super) fn write(&self, value: &mut Vec<u8>, key: &[u8], stamp: Stamp) {
        write_value(value, self.shared.plan.shape, key_hash(key), stamp);
    }

    /// Changes the one field that belongs to this write; `false` if `record` has not the length of a record.
    pub(super) fn patch(&self, record: &mut [u8], key: &[u8], stamp: Stamp) -> bool {
        let (shape, hash) = (self.shared.plan.shape, key_hash(key));
        patch_value(record, shape, hash, field_of(hash, stamp.version, shape.fields), stamp)
    }

    /// Ends the write of record `number` that began last.
    pub(super) fn end(&self, number: u64, outcome: Result<(), &StoreError>) {
        if let Some(oracle) = &self.shared.oracle {
            oracle.end_write(
                number,
                match outcome {
                    Ok(()) => WriteEnd::Acknowledged,
                    Err(StoreError::Unknown(_)) => WriteEnd::Unknown,
                    Err(_) => WriteEnd::Cancelled,
                },
            );
        }
    }

    /// Gives up a write of record `number` for which nothing was sent.
    pub(super) fn cancel(&self, number: u64) {
        if let Some(oracle) = &self.shared.oracle {
            oracle.end_write(number, WriteEnd::Cancelled);
        }
    }
}
