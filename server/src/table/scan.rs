//! Walks over all keys, part by part: scan and clear.
//!
//! The order is that of the index: segments by the bits that they were split by, the first split first, and in a segment by
//! home. So a segment and the one that it is split into follow each other: a walk that stands in the one at some home has
//! either passed a key, or finds it there at a later home, or in the other segment, which comes next. Keys are locked home by
//! home, and nothing is kept between two parts: the cursor says it all.

use std::sync::Arc;

use kv_common::hash::KeyHash;
use kv_common::layout::{BLOCK_HEADER_BYTES, Counter, DIRECTORY_DEPTH_MAX, HOMES, LineNumber, Place, Slot};
use kv_common::region::bytes_of;

use super::Worker;
use super::index::Role;
use super::lookup::At;
use super::worker::grown;

/// Homes of one part, at most: some 200 us, if they are empty or their keys are in the processor's caches.
const PART_HOMES_MAX: u64 = 1024;
/// Bytes after which a part of a scan ends; the keys of one more home may come behind them.
const PART_BYTES: usize = 8 << 10;
/// Keys after which a part of a clear ends.
const PART_KEYS: u64 = 512;

/// Where a walk stands. 0 as a word is the begin, and the end.
#[derive(Clone, Copy)]
struct Cursor {
    /// The low hash bits of the segment, the first of them on top: segments follow each other in this order.
    position: u64,
    home: u64,
}

impl Cursor {
    const HOME_BITS: u32 = 16;

    /// Any word may come; a walk that begins with one that is no cursor ends at once.
    fn decode(word: u64) -> Option<Cursor> {
        let (position, home) = (word >> Cursor::HOME_BITS, word & ((1 << Cursor::HOME_BITS) - 1));
        (position < 1 << DIRECTORY_DEPTH_MAX && home < HOMES).then_some(Cursor { position, home })
    }

    fn encode(self) -> u64 {
        self.position << Cursor::HOME_BITS | self.home
    }

    /// A hash that belongs to the segment.
    fn hash(self) -> KeyHash {
        KeyHash(self.position.reverse_bits() >> (u64::BITS - DIRECTORY_DEPTH_MAX))
    }

    /// The next home, of the next segment if this was the last one of a segment of that depth.
    fn next(self, depth: u32) -> Option<Cursor> {
        if self.home + 1 < HOMES {
            return Some(Cursor { home: self.home + 1, ..self });
        }
        let below = DIRECTORY_DEPTH_MAX - depth;
        let position = ((self.position >> below) + 1) << below;
        (position < 1 << DIRECTORY_DEPTH_MAX).then_some(Cursor { position, home: 0 })
    }
}

impl Worker {
    /// The keys of the next part of a walk that stands at `cursor`, 0 at its begin: `length:16 | key` each, behind `out`.
    /// Returns where the part after it begins, 0 if there is none.
    ///
    /// Every key that is present from the begin of a walk to its end is in one part at least.
    pub(crate) fn scan(&mut self, cursor: u64, out: &mut Vec<u8>) -> u64 {
        self.walk_part(cursor, |worker, found, _| {
            for &(at, _) in found {
                if worker.table.is_live(at) {
                    worker.push_key(at.slot.place(), out);
                }
            }
            out.len() < PART_BYTES
        })
    }

    /// Deletes the keys of the next part of a walk. Returns how many, and where the part after it begins, as
    /// [`Worker::scan`].
    pub(crate) fn clear(&mut self, cursor: u64) -> (u64, u64) {
        let mut deleted = 0;
        let next = self.walk_part(cursor, |worker, found, retired| {
            for &(at, home) in found {
                retired.push(worker.remove(at, home, Counter::Deletes, None).1);
            }
            deleted += found.len() as u64;
            deleted < PART_KEYS
        });
        (deleted, next)
    }

    /// Visits the keys of one home after the other, each under its stripes, as long as `visit` says so. What it retires is
    /// given back when they are released.
    fn walk_part(
        &mut self,
        cursor: u64,
        mut visit: impl FnMut(&mut Worker, &[(At, LineNumber)], &mut Vec<Slot>) -> bool,
    ) -> u64 {
        let table = Arc::clone(&self.table);
        let Some(mut cursor) = Cursor::decode(cursor) else { return 0 };
        let mut retired = Vec::new();
        for _ in 0..PART_HOMES_MAX {
            let held = table.stripes.lock(cursor.home);
            let segment = table.index.home(cursor.hash()).segment();
            let found = self.keys_of(segment, cursor.home);
            let goes_on = visit(self, &found, &mut retired);
            let next = cursor.next(table.index.state(segment).depth);
            drop(held);
            retired.drain(..).for_each(|slot| self.retire(slot));
            let Some(next) = next else { return 0 };
            cursor = next;
            if !goes_on {
                break;
            }
        }
        cursor.encode()
    }

    /// The slots of the keys of a home, each with the line that is their home: those of this segment, and of the one that it
    /// is being split into.
    fn keys_of(&self, segment: u64, home: u64) -> Vec<(At, LineNumber)> {
        let table = &self.table;
        let target = match table.index.state(segment).role {
            Role::Source { target, .. } => Some(target),
            Role::Plain | Role::Target { .. } => None,
        };
        let mut scratch = Vec::new();
        let mut found = Vec::new();
        for segment in [Some(segment), target].into_iter().flatten() {
            let line = LineNumber::new(segment, home);
            for at in table.lines(line).flat_map(|line| table.slots(line)).filter(|at| !at.slot.is_empty()) {
                let hash = table.hash_of(at.slot.place(), &mut scratch);
                // Not a key of the home before, and not the copy that a split has left.
                if hash.home() == home && table.index.home(hash) == line {
                    found.push((at, line));
                }
            }
        }
        found
    }

    fn push_key(&mut self, place: Place, out: &mut Vec<u8>) {
        let key_bytes = self.table.lengths_of(place).key_bytes;
        let words = grown(&mut self.block, (key_bytes as usize).div_ceil(8));
        self.table.region.copy_out(place.word() + BLOCK_HEADER_BYTES / 8, words);
        out.extend_from_slice(&key_bytes.to_le_bytes());
        out.extend_from_slice(&bytes_of(words)[..key_bytes as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All prefixes of a segment's depth, in the order of a walk, and back.
    #[test]
    fn a_walk_passes_every_prefix_once_whatever_the_depths() {
        for depth in 0..=6 {
            let mut cursor = Some(Cursor { position: 0, home: 0 });
            let mut seen = BTreeSet::new();
            while let Some(at) = cursor {
                assert!(seen.insert(at.hash().prefix(depth)), "depth {depth}");
                cursor = Cursor { home: HOMES - 1, ..at }.next(depth);
            }
            assert_eq!(seen, (0..1 << depth).collect());
        }
    }

    /// The half that a split gives away comes right behind the half that stays.
    #[test]
    fn the_other_half_of_a_split_comes_next() {
        for prefix in 0..8u64 {
            let position = prefix.reverse_bits() >> (u64::BITS - DIRECTORY_DEPTH_MAX);
            let at = Cursor { position, home: HOMES - 1 };
            assert_eq!(at.hash().prefix(3), prefix);
            assert_eq!(at.next(4).unwrap().hash().prefix(4), prefix | 8);
        }
    }

    #[test]
    fn cursors_come_back_from_words_and_others_are_none() {
        for (position, home) in [(0, 1), ((1 << DIRECTORY_DEPTH_MAX) - 1, HOMES - 1)] {
            let word = Cursor { position, home }.encode();
            let back = Cursor::decode(word).unwrap();
            assert_eq!((back.position, back.home), (position, home));
        }
        for word in [HOMES, u64::MAX, 1 << (DIRECTORY_DEPTH_MAX + Cursor::HOME_BITS)] {
            assert!(Cursor::decode(word).is_none(), "{word:#x}");
        }
    }
}
