//! The hash of a key and what its bits are for.
//!
//! xxh3-64 with the table's seed. Low bits choose the directory entry, the next the home line, the top ones are the
//! fingerprint: disjoint, so that keys of one line do not share fingerprints more often than others.
//!
//! ```text
//! bit 0                    24                           48              63
//! | directory, at most 18  | home line, 24 bits         | fingerprint:16 |
//! ```

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use crate::layout::HOMES;

/// The hash of a key under a table's seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hashes `key`.
    #[inline]
    pub fn new(seed: u64, key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(key, seed))
    }

    /// The low `depth` bits: the index into a directory of that depth.
    #[inline]
    pub fn prefix(self, depth: u32) -> u64 {
        self.0 & ((1 << depth) - 1)
    }

    /// The home line inside an index segment.
    #[inline]
    pub fn home(self) -> u64 {
        ((self.0 >> 24 & 0xff_ffff) * HOMES) >> 24
    }

    /// The fingerprint, never 0.
    #[inline]
    pub fn fingerprint(self) -> u16 {
        ((self.0 >> 48) as u16).max(1)
    }
}

/// The hash without a seed of the payload of a block. A seed costs 34 ns more per KiB in this implementation.
#[inline]
pub fn payload_hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The same of bytes that come piece by piece.
pub struct PayloadHasher(Box<Xxh3>);

impl PayloadHasher {
    /// Of no bytes yet.
    pub fn new() -> PayloadHasher {
        PayloadHasher(Box::new(Xxh3::new()))
    }

    /// Takes the next bytes.
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes so far.
    pub fn finish(&self) -> u64 {
        self.0.digest()
    }
}

impl Default for PayloadHasher {
    fn default() -> PayloadHasher {
        PayloadHasher::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the reference implementation (xxhash 0.8, `XXH3_64bits_withSeed`).
    #[test]
    fn the_hash_is_xxh3() {
        assert_eq!(KeyHash::new(0, b""), KeyHash(0x2d06_8005_38d3_94c2));
        assert_eq!(payload_hash(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn pieces_hash_to_what_the_whole_does() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| (i % 251) as u8).collect();
        for piece_bytes in [1, 7, 64, 255, 256, 257, 1000, 4999] {
            let mut hasher = PayloadHasher::new();
            bytes.chunks(piece_bytes).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), payload_hash(&bytes), "pieces of {piece_bytes}");
        }
    }

    #[test]
    fn homes_are_spread_and_never_the_last_line() {
        assert_eq!(KeyHash(0xff_ffff << 24).home(), HOMES - 1);
        assert_eq!(KeyHash(0).home(), 0);
        assert_eq!(KeyHash(0).fingerprint(), 1);
        let mut seen = vec![0u32; HOMES as usize];
        for i in 0..HOMES * 20 {
            seen[KeyHash::new(7, &i.to_le_bytes()).home() as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (1..=60).contains(&n)), "20 keys per home on average");
    }
}
