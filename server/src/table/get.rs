//! GET by SEND: the answer of last resort for a reader that found no answer by itself.

use std::ops::Range;

use kv_common::block::{self, Verdict};
use kv_common::hash::KeyHash;
use kv_common::layout::{BLOCK_HEADER_BYTES, WINDOW_WORDS};
use kv_common::probe::{LineState, Matches, judge_window};
use kv_common::region::bytes_of;

use super::Worker;
use super::worker::grown;

/// A value that was copied out of the region.
pub(crate) struct Value<'a> {
    pub(crate) version: u64,
    pub(crate) bytes: &'a [u8],
}

impl Worker {
    /// The value of `key`, or `None` if the key is not present.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<Value<'_>> {
        let hash = self.table.view.hash(key);
        let (version, value) = match self.look(key, hash) {
            Some(found) => found,
            None => self.decide(key, hash)?,
        };
        Some(Value { version, bytes: &bytes_of(&self.block)[value] })
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
    fn decide(&mut self, key: &[u8], hash: KeyHash) -> Option<(u64, Range<usize>)> {
        let _held = self.table.stripes.lock(hash.home());
        let home = self.table.index.home(hash);
        let at = self.table.find(key, hash, home).filter(|&at| self.table.is_live(at))?;
        self.table.note_use(at.slot);
        let place = at.slot.place();
        let version = self.table.version_of(place);
        let end = self.table.lengths_of(place).value_end();
        self.table.region.copy_out(place.word(), grown(&mut self.block, end.div_ceil(8)));
        Some((version, BLOCK_HEADER_BYTES + key.len()..end))
    }
}
