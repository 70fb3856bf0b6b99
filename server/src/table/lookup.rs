//! Where a key is, and where a new one may go. All of this, but what begins with a block, is called under the stripes of the
//! key's home: they keep the lines, the chain, and every block that a slot of these lines names as they are (see `stripes`).

use std::iter;

use kv_common::adversary::{Mutant, mutant};
use kv_common::hash::KeyHash;
use kv_common::layout::{
    BLOCK_HEADER_BYTES, BLOCK_HEADER_WORDS, Header, LINE_SLOTS, Lengths, LineNumber, NOT_LIVE, Place, Slot,
    Span,
};
use kv_common::limits::{KEY_MAX_BYTES, OVERFLOW_CHAIN_MAX};
use kv_common::region::bytes_of;
use kv_common::wire::Refusal;

use super::Table;
use super::stripes::Held;
use super::worker::grown;

/// A slot and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    pub(super) line: LineNumber,
    pub(super) index: usize,
    pub(super) slot: Slot,
}

impl At {
    /// Offset of the slot in words.
    pub(super) fn word(self) -> usize {
        self.line.word() + 1 + self.index
    }
}

/// A key that was found by its block, and its stripes.
pub(super) struct HeldKey<'a> {
    pub(super) _held: Held<'a>,
    pub(super) hash: KeyHash,
    pub(super) home: LineNumber,
    pub(super) at: At,
}

/// Where a new key of a home goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// A free slot.
    Slot(At),
    /// No slot is free: a new overflow line behind `tail`.
    BehindTail(LineNumber),
}

impl Table {
    /// The slot of `key`, if the key is present.
    pub(super) fn find(&self, key: &[u8], hash: KeyHash, home: LineNumber) -> Option<At> {
        self.lines(home).flat_map(|line| self.slots(line)).find(|at| {
            at.slot.fingerprint() == hash.fingerprint() && self.block_has_key(at.slot.place(), key)
        })
    }

    /// Where a key of `home` that is not present goes: into the emptier of the two lines of the window, else into a
    /// free slot of the overflow chain, else into a new overflow line.
    pub(super) fn room(&self, home: LineNumber) -> Result<Room, Refusal> {
        let free_slots = |line| self.free_slots(line).count();
        let emptier = if free_slots(home.next()) > free_slots(home) { home.next() } else { home };
        let in_chain = self.chain(home).flat_map(|line| self.slots(line)).filter(|at| at.slot.is_empty());
        if let Some(at) = self.free_slots(emptier).chain(in_chain).next() {
            return Ok(Room::Slot(at));
        }
        let chain_lines = self.chain(home).count();
        if chain_lines >= OVERFLOW_CHAIN_MAX {
            return Err(Refusal::HomeFull { chain_lines: chain_lines as u64 });
        }
        Ok(Room::BehindTail(self.chain(home).last().unwrap_or(home)))
    }

    /// The lines where a key of `home` may be.
    pub(super) fn lines(&self, home: LineNumber) -> impl Iterator<Item = LineNumber> {
        [home, home.next()].into_iter().chain(self.chain(home))
    }

    /// The overflow lines of `home`, in the chain's order.
    pub(super) fn chain(&self, home: LineNumber) -> impl Iterator<Item = LineNumber> {
        iter::successors(self.overflow_after(home), |&line| self.overflow_after(line))
            .take(OVERFLOW_CHAIN_MAX)
    }

    /// The slots of a line, empty ones too.
    pub(super) fn slots(&self, line: LineNumber) -> impl Iterator<Item = At> {
        (0..LINE_SLOTS).map(move |index| {
            let slot = Slot(self.region.load(line.word() + 1 + index));
            At { line, index, slot }
        })
    }

    /// The slots of a home line that a new key may take.
    pub(super) fn free_slots(&self, line: LineNumber) -> impl Iterator<Item = At> {
        let shared = self.index.shared_with(line);
        let is_free_there =
            move |index| shared.is_none_or(|other| self.region.load(other.word() + 1 + index) == 0);
        self.slots(line).filter(move |at| at.slot.is_empty() && is_free_there(at.index))
    }

    /// The copy of a slot that a split has left in the segment that the key comes from, if it is still there. A write
    /// changes both: whoever is led to the old one finds the same block there.
    pub(super) fn twin(&self, home: LineNumber, at: At) -> Option<At> {
        if mutant(Mutant::ForgetTwin) {
            return None;
        }
        let source = self.index.source_of(home.segment())?;
        let old_home = LineNumber::new(source, home.in_segment());
        // A slot names its block, and no two keys have the same one.
        self.lines(old_home).flat_map(|line| self.slots(line)).find(|old| old.slot == at.slot)
    }

    /// The header of a line.
    pub(super) fn header(&self, line: LineNumber) -> Header {
        Header(self.region.load(line.word()))
    }

    /// The version of a present key's block.
    pub(super) fn version_of(&self, place: Place) -> u64 {
        let word0 = self.region.load(place.word());
        assert!(word0 & NOT_LIVE == 0, "the block of a present key is live between writes");
        word0
    }

    /// The lengths of a present key's block.
    pub(super) fn lengths_of(&self, place: Place) -> Lengths {
        Lengths::decode(self.region.load(place.word() + 2))
    }

    fn overflow_after(&self, line: LineNumber) -> Option<LineNumber> {
        let next = self.header(line).next();
        (next != 0).then(|| line.sibling(next))
    }

    /// The hash of the key in a present key's block.
    pub(super) fn hash_of(&self, place: Place, scratch: &mut Vec<u64>) -> KeyHash {
        let key_bytes = self.lengths_of(place).key_bytes as usize;
        let words = grown(scratch, key_bytes.div_ceil(8));
        self.region.copy_out(place.word() + BLOCK_HEADER_WORDS, words);
        self.view.hash(&bytes_of(words)[..key_bytes])
    }

    /// The key that seems to be in a block, without the stripes.
    pub(super) fn key_at(&self, place: Place, span: Span) -> Option<Vec<u8>> {
        if self.region.load(place.word()) & NOT_LIVE != 0 {
            return None;
        }
        let lengths = self.lengths_of(place);
        let key_bytes = lengths.key_bytes as usize;
        let is_key = (1..=KEY_MAX_BYTES).contains(&key_bytes)
            && (BLOCK_HEADER_BYTES + key_bytes) as u64 <= span.bytes();
        if !is_key {
            return None;
        }
        let mut words = vec![0; key_bytes.div_ceil(8)];
        self.region.copy_out(place.word() + BLOCK_HEADER_WORDS, &mut words);
        Some(bytes_of(&words)[..key_bytes].to_vec())
    }

    /// Holds the stripes of the key whose block of class `span` is at `place`, if a present key has it.
    pub(super) fn hold_key_at(&self, place: Place, span: Span) -> Option<HeldKey<'_>> {
        let key = self.key_at(place, span)?;
        let hash = self.view.hash(&key);
        let held = self.stripes.lock(hash.home());
        let home = self.index.home(hash);
        // Without the stripes the block could have been any; if a slot of its key names it, it is what it says.
        let at = self.find(&key, hash, home).filter(|at| at.slot.place() == place)?;
        Some(HeldKey { _held: held, hash, home, at })
    }

    fn block_has_key(&self, place: Place, key: &[u8]) -> bool {
        let key_word = place.word() + BLOCK_HEADER_WORDS;
        self.lengths_of(place).key_bytes as usize == key.len()
            && key
                .chunks(8)
                .enumerate()
                .all(|(i, part)| self.region.load(key_word + i).to_le_bytes()[..part.len()] == *part)
    }
}
