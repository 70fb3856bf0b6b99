//! The staging area: memory that this client lends to the server, in two halves, so that one can be filled while the server
//! takes what is in the other.

use kv_common::hash::payload_hash;
use kv_common::region::{Words, bytes_of_mut};
use kv_common::wire::Value;

/// Which halves are lent, a bit each.
pub(super) type Halves = u8;

/// What is lent, and what lies ready to be sent.
#[derive(Debug, Default)]
pub(super) struct Staging {
    lent: Halves,
    /// Bytes that were copied for a message which could not be sent yet.
    ready: Option<Ready>,
}

/// Bytes in the area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    /// The operation whose they are.
    op: usize,
    pub(super) halves: Halves,
    pub(super) at_word: usize,
    len_bytes: usize,
    hash: u64,
}

impl Ready {
    pub(super) fn len_words(&self) -> usize {
        self.len_bytes.div_ceil(8)
    }

    /// As the value of a message.
    pub(super) fn value(&self) -> Value<'static> {
        let (offset_bytes, len_bytes) = (self.at_word as u64 * 8, self.len_bytes as u32);
        Value::Staged { offset_bytes, len_bytes, hash: self.hash }
    }
}

impl Staging {
    /// Copies `bytes` of an operation to where the server may take them; none if there is no room now. What was copied for this
    /// operation's message before, and not sent, is there still.
    pub(super) fn fill(&mut self, area: &Words, op: usize, bytes: &[u8]) -> Option<Ready> {
        if let Some(ready) = self.ready.filter(|ready| ready.op == op) {
            return Some(ready);
        }
        if let Some(unsent) = self.ready.take() {
            self.give_back(unsent.halves);
        }
        let (at_word, halves) = self.room(area.len_words(), bytes.len().div_ceil(8))?;
        copy(area, at_word, bytes);
        self.lent |= halves;
        let ready = Ready { op, halves, at_word, len_bytes: bytes.len(), hash: payload_hash(bytes) };
        self.ready = Some(ready);
        Some(ready)
    }

    fn room(&self, area_words: usize, len_words: usize) -> Option<(usize, Halves)> {
        let half_words = half_bytes(area_words) / 8;
        match self.lent {
            0 if len_words > half_words => (len_words <= area_words).then_some((0, 3)),
            _ if len_words > half_words => None,
            lent if lent & 1 == 0 => Some((0, 1)),
            lent if lent & 2 == 0 => Some((half_words, 2)),
            _ => None,
        }
    }

    /// The message that names what lay ready was sent.
    pub(super) fn sent(&mut self) {
        self.ready = None;
    }

    /// The server has answered it.
    pub(super) fn give_back(&mut self, halves: Halves) {
        self.lent &= !halves;
    }

    /// An operation has ended: what lies ready for it is not sent.
    pub(super) fn forget(&mut self, op: usize) {
        if let Some(ready) = self.ready.take_if(|ready| ready.op == op) {
            self.give_back(ready.halves);
        }
    }
}

/// Bytes of a half of an area of so many words.
pub(super) fn half_bytes(area_words: usize) -> usize {
    area_words / 2 * 8
}

/// Copies bytes into the area, which nobody reads there at the moment.
fn copy(area: &Words, at_word: usize, bytes: &[u8]) {
    let mut chunk = [0u64; 512];
    for (i, part) in bytes.chunks(size_of_val(&chunk)).enumerate() {
        let words = part.len().div_ceil(8);
        chunk[words - 1] = 0;
        bytes_of_mut(&mut chunk)[..part.len()].copy_from_slice(part);
        area.copy_in(at_word + i * chunk.len(), &chunk[..words]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_lent_one_after_the_other_and_both_to_what_needs_both() {
        let (area, mut staging) = (Words::zeroed(16), Staging::default());
        let fill = |staging: &mut Staging, op, len: usize| {
            let ready = staging.fill(&area, op, &vec![op as u8; len]);
            staging.sent();
            ready.map(|ready| (ready.at_word, ready.halves))
        };
        assert_eq!(fill(&mut staging, 1, 64), Some((0, 1)));
        assert_eq!(fill(&mut staging, 2, 9), Some((8, 2)));
        assert_eq!(fill(&mut staging, 3, 1), None);
        staging.give_back(1);
        assert_eq!(fill(&mut staging, 3, 65), None, "it needs both");
        assert_eq!(fill(&mut staging, 4, 1), Some((0, 1)));
        staging.give_back(3);
        assert_eq!(fill(&mut staging, 3, 65), Some((0, 3)));
        staging.give_back(3);
        assert_eq!(fill(&mut staging, 3, 129), None, "it never fits");
    }

    #[test]
    fn what_lies_ready_is_copied_once_and_forgotten_with_its_operation() {
        let (area, mut staging) = (Words::zeroed(16), Staging::default());
        let ready = staging.fill(&area, 7, b"abc").unwrap();
        assert_eq!(staging.fill(&area, 7, b"xyz").map(|ready| ready.value()), Some(ready.value()));
        assert_eq!(area.load(0), u64::from_le_bytes(*b"abc\0\0\0\0\0"));
        staging.forget(8);
        assert_eq!(staging.lent, 1);
        assert!(staging.fill(&area, 8, b"other").is_some(), "it comes in the place of what was not sent");
        staging.forget(8);
        assert_eq!(staging.lent, 0);
    }
}
