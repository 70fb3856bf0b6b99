//! Values that prove themselves.
//!
//! A value consists of fields of one size. Every field carries what it belongs to, and bytes that follow from it;
//! a reader computes them again. How much fits depends on the field's size:
//!
//! | field | holds | proves |
//! |---|---|---|
//! | 32 bytes or more | id, version, writer, value's length (8 + 8 + 4 + 4 bytes), then pseudo-random bytes of all four | key, field, version, writer, length |
//! | 16 to 31 bytes | version (8 bytes), then pseudo-random bytes of id, version and the value's length | key, field, version, length |
//! | 1 to 15 bytes | pseudo-random bytes of id and the value's length | key, field and length, as far as the bytes go: 1 byte lets 1 fault of 256 pass |
//!
//! The id is a hash of the key and the field's number. Empty values prove only that they are empty.

use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::rng::{GAMMA, mix};

const FULL_HEADER_BYTES: usize = 24;
const FULL_BYTES_MIN: usize = 32;
const SHORT_HEADER_BYTES: usize = 8;
const SHORT_BYTES_MIN: usize = 16;

/// How a value is cut into fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Fields of a value, at least 1.
    pub fields: usize,
    /// Bytes of each.
    pub field_bytes: usize,
}

impl Shape {
    /// Bytes of a value.
    pub const fn value_bytes(self) -> usize {
        self.fields * self.field_bytes
    }

    /// Whether fields carry their version.
    pub const fn has_versions(self) -> bool {
        self.field_bytes >= SHORT_BYTES_MIN
    }

    fn range(self, field: usize) -> std::ops::Range<usize> {
        field * self.field_bytes..(field + 1) * self.field_bytes
    }
}

/// Who wrote a field, and which write it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the write, larger than those of all earlier writes of this key.
    pub version: u64,
    /// Thread that wrote.
    pub writer: u32,
}

/// Why a value cannot be what was stored.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// The value is longer or shorter than values of this run are.
    #[error("{found_bytes} bytes instead of {expected_bytes}; was it stored with other sizes?")]
    Length {
        /// Bytes that a value has.
        expected_bytes: usize,
        /// Bytes that came.
        found_bytes: usize,
    },
    /// The field says that it belongs to another key, another field, or a value of another length.
    #[error("field {field} belongs to another key, field or length")]
    Foreign {
        /// Number of the field.
        field: usize,
    },
    /// The field's bytes do not follow from its header.
    #[error("field {field} is torn or corrupt at byte {at}")]
    Torn {
        /// Number of the field.
        field: usize,
        /// First wrong byte, counted from the field's start.
        at: usize,
    },
    /// Every field is right, but they are of different moments.
    #[error("field {field} has version {found} where the record's version {record} calls for {expected}")]
    Mixed {
        /// Number of the field.
        field: usize,
        /// Its version.
        found: u64,
        /// The newest version among the fields.
        record: u64,
        /// What the field's version has to be.
        expected: String,
    },
    /// A write that was acknowledged before the read began is not visible.
    #[error("version {found} is older than {acknowledged}, acknowledged before the read began")]
    Old {
        /// Version that came.
        found: u64,
        /// Version that had been acknowledged.
        acknowledged: u64,
    },
    /// A version that nobody had begun to write.
    #[error("version {found} is newer than {begun}, the newest begun before the read ended")]
    Future {
        /// Version that came.
        found: u64,
        /// Newest version that had been begun.
        begun: u64,
    },
}

/// The hash of a key that its values carry.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

/// The one field that write number `version` of a key changes when updates write one field. It follows from the
/// version, so that a reader knows from the newest version what every other field's version must be.
#[inline]
pub fn field_of(key_hash: u64, version: u64, fields: usize) -> usize {
    (mix(key_hash ^ mix(version)) % fields.max(1) as u64) as usize
}

/// Where the parts of a field lie, and the seed of its pseudo-random bytes.
fn header(key_hash: u64, field: usize, stamp: Stamp, value_bytes: u32, out: &mut [u8; 24]) -> u64 {
    let id = mix(key_hash ^ mix(field as u64 + 1));
    let owner = (u64::from(stamp.writer) << 32) | u64::from(value_bytes);
    out[..8].copy_from_slice(&id.to_le_bytes());
    out[8..16].copy_from_slice(&stamp.version.to_le_bytes());
    out[16..].copy_from_slice(&owner.to_le_bytes());
    mix(mix(id ^ mix(stamp.version)) ^ owner)
}

/// Bytes `8 * word` and on of the pseudo-random stream of `seed`.
#[inline]
fn stream_word(seed: u64, word: usize) -> [u8; 8] {
    mix(seed.wrapping_add((word as u64 + 1).wrapping_mul(GAMMA))).to_le_bytes()
}

fn fill(body: &mut [u8], seed: u64) {
    let mut chunks = body.chunks_exact_mut(8);
    let mut word = 0;
    for chunk in &mut chunks {
        chunk.copy_from_slice(&stream_word(seed, word));
        word += 1;
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&stream_word(seed, word)[..rest.len()]);
}

/// The first byte of `body` that is not the stream of `seed`.
fn first_difference(body: &[u8], seed: u64) -> Option<usize> {
    let differs = |(word, chunk): (usize, &[u8])| {
        let expected = stream_word(seed, word);
        let at = chunk.iter().zip(&expected).position(|(found, expected)| found != expected)?;
        Some(word * 8 + at)
    };
    body.chunks(8).enumerate().find_map(differs)
}

/// Writes one field.
pub fn write_field(out: &mut [u8], key_hash: u64, field: usize, stamp: Stamp, value_bytes: usize) {
    let value_bytes = value_bytes as u32;
    let mut head = [0; FULL_HEADER_BYTES];
    if out.len() >= FULL_BYTES_MIN {
        let seed = header(key_hash, field, stamp, value_bytes, &mut head);
        let (start, body) = out.split_at_mut(FULL_HEADER_BYTES);
        start.copy_from_slice(&head);
        fill(body, seed);
    } else if out.len() >= SHORT_BYTES_MIN {
        let seed = header(key_hash, field, Stamp { writer: 0, ..stamp }, value_bytes, &mut head);
        let (start, body) = out.split_at_mut(SHORT_HEADER_BYTES);
        start.copy_from_slice(&head[8..16]);
        fill(body, seed);
    } else {
        fill(out, header(key_hash, field, Stamp { version: 0, writer: 0 }, value_bytes, &mut head));
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Checks one field; returns its version, 0 if it carries none.
fn check_field(found: &[u8], key_hash: u64, field: usize, value_bytes: usize) -> Result<u64, Wrong> {
    let value_bytes = value_bytes as u32;
    let mut head = [0; FULL_HEADER_BYTES];
    let (body_at, seed, version) = if found.len() >= FULL_BYTES_MIN {
        let stamp = Stamp { version: word(found, 8), writer: (word(found, 16) >> 32) as u32 };
        let seed = header(key_hash, field, stamp, value_bytes, &mut head);
        if found[..8] != head[..8] || found[16..24] != head[16..] {
            return Err(Wrong::Foreign { field });
        }
        (FULL_HEADER_BYTES, seed, stamp.version)
    } else if found.len() >= SHORT_BYTES_MIN {
        let stamp = Stamp { version: word(found, 0), writer: 0 };
        (SHORT_HEADER_BYTES, header(key_hash, field, stamp, value_bytes, &mut head), stamp.version)
    } else {
        let none = Stamp { version: 0, writer: 0 };
        (0, header(key_hash, field, none, value_bytes, &mut head), 0)
    };
    match first_difference(&found[body_at..], seed) {
        Some(at) => Err(Wrong::Torn { field, at: body_at + at }),
        None => Ok(version),
    }
}

/// Writes a whole value of `shape` into `out`, all fields with the same stamp.
pub fn write_value(out: &mut Vec<u8>, shape: Shape, key_hash: u64, stamp: Stamp) {
    out.resize(shape.value_bytes(), 0);
    for field in 0..shape.fields {
        write_field(&mut out[shape.range(field)], key_hash, field, stamp, shape.value_bytes());
    }
}

/// Writes one field of a value that is there; `false` if the value has another length.
pub fn patch_value(value: &mut [u8], shape: Shape, key_hash: u64, field: usize, stamp: Stamp) -> bool {
    let fits = value.len() == shape.value_bytes();
    if fits {
        write_field(&mut value[shape.range(field)], key_hash, field, stamp, shape.value_bytes());
    }
    fits
}

/// Checks every byte of a value. Writes the fields' versions to `versions` and returns the newest, 0 if they carry
/// none.
///
/// # Errors
/// What the value proves to be instead.
pub fn check_value(value: &[u8], shape: Shape, key_hash: u64, versions: &mut Vec<u64>) -> Result<u64, Wrong> {
    versions.clear();
    if value.len() != shape.value_bytes() {
        return Err(Wrong::Length { expected_bytes: shape.value_bytes(), found_bytes: value.len() });
    }
    for field in 0..shape.fields {
        versions.push(check_field(&value[shape.range(field)], key_hash, field, value.len())?);
    }
    Ok(versions.iter().copied().max().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { version: 77, writer: 3 };

    fn value(key: &[u8], shape: Shape, stamp: Stamp) -> Vec<u8> {
        let mut out = Vec::new();
        write_value(&mut out, shape, key_hash(key), stamp);
        out
    }

    fn check(value: &[u8], shape: Shape, key: &[u8]) -> Result<u64, Wrong> {
        check_value(value, shape, key_hash(key), &mut Vec::new())
    }

    #[test]
    fn every_size_proves_what_it_can() {
        for field_bytes in 0..200 {
            let shape = Shape { fields: 1, field_bytes };
            let good = value(b"key", shape, STAMP);
            assert_eq!(check(&good, shape, b"key"), Ok(if field_bytes >= 16 { 77 } else { 0 }));
            if field_bytes >= 4 {
                assert!(check(&good, shape, b"kez").is_err(), "{field_bytes}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        for field_bytes in [1, 8, 15, 16, 17, 31, 32, 33, 64, 100] {
            let shape = Shape { fields: 2, field_bytes };
            let good = value(b"key", shape, STAMP);
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(check(&bad, shape, b"key").is_err(), "{field_bytes} bytes, bit {bit}");
            }
        }
    }

    #[test]
    fn halves_of_two_versions_are_torn() {
        for field_bytes in [16, 24, 32, 100, 1000] {
            let shape = Shape { fields: 1, field_bytes };
            let old = value(b"key", shape, STAMP);
            let new = value(b"key", shape, Stamp { version: 78, writer: 3 });
            for cut in (8..field_bytes).step_by(8) {
                let torn = [&old[..cut], &new[cut..]].concat();
                assert!(torn == old || torn == new || check(&torn, shape, b"key").is_err());
            }
        }
    }

    #[test]
    fn lengths_and_fields_are_part_of_the_proof() {
        let shape = Shape { fields: 2, field_bytes: 100 };
        let good = value(b"key", shape, STAMP);
        assert_eq!(
            check(&good[..199], shape, b"key"),
            Err(Wrong::Length { expected_bytes: 200, found_bytes: 199 })
        );
        let swapped = [&good[100..], &good[..100]].concat();
        assert_eq!(check(&swapped, shape, b"key"), Err(Wrong::Foreign { field: 0 }));
        let of_one_field = Shape { fields: 1, field_bytes: 100 };
        assert_eq!(check(&good[..100], of_one_field, b"key"), Err(Wrong::Foreign { field: 0 }));
    }

    #[test]
    fn a_patch_changes_one_field() {
        let shape = Shape { fields: 10, field_bytes: 100 };
        let mut record = value(b"key", shape, STAMP);
        let newer = Stamp { version: 90, writer: 1 };
        assert!(patch_value(&mut record, shape, key_hash(b"key"), 4, newer));
        let mut versions = Vec::new();
        assert_eq!(check_value(&record, shape, key_hash(b"key"), &mut versions), Ok(90));
        assert_eq!(versions, [77, 77, 77, 77, 90, 77, 77, 77, 77, 77]);
        assert!(!patch_value(&mut record[1..], shape, key_hash(b"key"), 4, newer));
    }

    #[test]
    fn written_fields_spread_evenly() {
        let mut counts = [0u32; 10];
        for version in 0..10_000 {
            counts[field_of(99, version, 10)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_stream_is_part_of_the_stored_format() {
        // Values stored by one build are checked by another: these bytes must not change.
        let shape = Shape { fields: 1, field_bytes: 32 };
        let found = value(b"user6284781860667377211", shape, Stamp { version: 1, writer: 0 });
        assert_eq!(found[8..24], [1, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0]);
    }
}
