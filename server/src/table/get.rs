//! GET by SEND: the answer of last resort for a reader that found no answer by itself.
//!
//! One answer has a part of the value if that is large: the client asks for the next one, and sees by the version whether it
//! is of the same value. So the server keeps nothing of a GET between two requests, and holds no block for a client.

use std::ops::Range;

use kv_common::block::{self, Verdict};
use kv_common::hash::KeyHash;
use kv_common::layout::{
    BLOCK_HEADER_BYTES, Lengths, PAGE_HEAD_WORDS, PAGE_PAYLOAD_BYTES, PAGE_WORDS, Place, Run, WINDOW_WORDS,
    is_large, pages_of,
};
use kv_common::limits::ANSWER_MAX_BYTES;
use kv_common::probe::{LineState, Matches, judge_window};
use kv_common::region::bytes_of;

use super::worker::grown;
use super::{Table, Worker};

/// A value, or a part of it, that was copied out of the region.
pub(crate) struct Value<'a> {
    pub(crate) version: u64,
    /// Bytes of the whole value.
    pub(crate) total_bytes: usize,
    pub(crate) bytes: &'a [u8],
}

/// Bytes of a block before its payload, in a class and in pages.
const PAYLOAD_AT_BYTES: usize = PAGE_HEAD_WORDS * 8;

/// What was found without the stripes, or under them.
enum Seen {
    /// In the worker's block.
    Copied(u64, Range<usize>),
    /// A large block, not copied yet.
    Large(u64, Place, Lengths),
}

impl Worker {
    /// The value of `key` behind its first `from_bytes` bytes, as much as one answer may have, or `None` if the key is not
    /// present.
    pub(crate) fn get(&mut self, key: &[u8], from_bytes: u64) -> Option<Value<'_>> {
        let hash = self.table.view.hash(key);
        // Pinned until a large block was copied: it is not used again meanwhile.
        let pinned = self.epoch.pin();
        let seen = match self.look(key, hash) {
            Some((version, value)) => Seen::Copied(version, value),
            None => self.decide(key, hash)?,
        };
        let part = |total_bytes: usize| {
            let start = usize::try_from(from_bytes).map_or(total_bytes, |from| from.min(total_bytes));
            start..total_bytes.min(start.saturating_add(ANSWER_MAX_BYTES))
        };
        Some(match seen {
            Seen::Copied(version, value) => {
                let value = &bytes_of(&self.block)[value];
                Value { version, total_bytes: value.len(), bytes: &value[part(value.len())] }
            }
            Seen::Large(version, place, lengths) => {
                let total_bytes = lengths.value_bytes as usize;
                self.changed.clear();
                let take = |bytes: &[u8]| self.changed.extend_from_slice(bytes);
                self.table.read_value(place, lengths, part(total_bytes), &mut self.block, take);
                drop(pinned);
                Value { version, total_bytes, bytes: &self.changed }
            }
        })
    }

    /// A look at the window without the stripes, as remote readers look. What is found is found; anything else is left
    /// to [`Worker::decide`]. The epoch stays pinned, so that the block is not used again meanwhile.
    fn look(&mut self, key: &[u8], hash: KeyHash) -> Option<(u64, Range<usize>)> {
        let _pinned = self.epoch.pin();
        let home = self.table.index.home(hash);
        let mut window = [0; WINDOW_WORDS];
        self.table.region.copy_out(home.word(), &mut window);
        let mut matches = Matches::none();
        let LineState::Answers { .. } = judge_window(&window, hash, &mut matches) else { return None };
        for &slot in matches.slots() {
            let words = grown(&mut self.block, self.table.view.block_words(slot)?);
            self.table.region.copy_out(slot.place().word(), words);
            let verdict = block::judge(words, key, slot.place(), self.table.view.table_id);
            match verdict {
                Verdict::Found { version, value } => {
                    self.table.note_use(slot);
                    return Some((version, value));
                }
                Verdict::Expiring { version, value, expires_ns } if expires_ns > self.table.now_ns() => {
                    self.table.note_use(slot);
                    return Some((version, value));
                }
                _ => {}
            }
        }
        None
    }

    /// The same under the stripes, where nothing changes: what is not found here is not there.
    /// A large block is not copied under them.
    fn decide(&mut self, key: &[u8], hash: KeyHash) -> Option<Seen> {
        let _held = self.table.stripes.lock(hash.home());
        let home = self.table.index.home(hash);
        let at = self.table.find(key, hash, home).filter(|&at| self.table.is_live(at))?;
        self.table.note_use(at.slot);
        let place = at.slot.place();
        let version = self.table.version_of(place);
        let lengths = self.table.lengths_of(place);
        if is_large(lengths.block_bytes()) {
            return Some(Seen::Large(version, place, lengths));
        }
        let end = lengths.value_end();
        self.table.region.copy_out(place.word(), grown(&mut self.block, end.div_ceil(8)));
        Some(Seen::Copied(version, BLOCK_HEADER_BYTES + key.len()..end))
    }
}

/// The pages of a large block.
fn run_of(place: Place, lengths: Lengths) -> Run {
    Run::at(place, pages_of(lengths.block_bytes())).expect("a large block starts with a page")
}

impl Table {
    /// Hands the bytes `range` of the value of the block at `place`, which has these lengths, to `take`, piece by piece.
    /// `scratch` is private memory for a piece. The block is not used again meanwhile: the caller has pinned an epoch, or
    /// holds the stripes.
    pub(super) fn read_value(
        &self,
        place: Place,
        lengths: Lengths,
        range: Range<usize>,
        scratch: &mut Vec<u64>,
        mut take: impl FnMut(&[u8]),
    ) {
        let value_at = BLOCK_HEADER_BYTES + lengths.key_bytes as usize;
        if !is_large(lengths.block_bytes()) {
            let words = grown(scratch, lengths.block_bytes().div_ceil(8));
            self.region.copy_out(place.word(), words);
            return take(&bytes_of(words)[value_at + range.start..value_at + range.end]);
        }
        let run = run_of(place, lengths);
        // In bytes of the payload.
        let value_at = value_at - PAYLOAD_AT_BYTES;
        let (mut at, end) = (value_at + range.start, value_at + range.end);
        while at < end {
            let (page, first) = (at / PAGE_PAYLOAD_BYTES, at % PAGE_PAYLOAD_BYTES);
            let last = (end - at + first).min(PAGE_PAYLOAD_BYTES);
            let words = grown(scratch, PAGE_WORDS);
            let words = &mut words[first / 8..last.div_ceil(8)];
            self.region.copy_out(run.page_word(page as u64) + PAGE_HEAD_WORDS + first / 8, words);
            take(&bytes_of(words)[first % 8..last - first / 8 * 8]);
            at += last - first;
        }
    }

    /// When the block at `place` expires, which has these lengths and lies in the region.
    pub(super) fn expiry_at(&self, place: Place, lengths: Lengths) -> u64 {
        let at = lengths.value_end() - PAYLOAD_AT_BYTES;
        let (word, shift) = (at / 8, at % 8 * 8);
        let load = |word: usize| {
            self.region.load(if is_large(lengths.block_bytes()) {
                run_of(place, lengths).payload_word(word)
            } else {
                place.word() + PAYLOAD_AT_BYTES / 8 + word
            })
        };
        let low = load(word) >> shift;
        if shift == 0 { low } else { low | load(word + 1) << (64 - shift) }
    }
}
