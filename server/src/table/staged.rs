//! The value of a request, wherever it is.

use kv_common::hash::{PayloadHasher, payload_hash};
use kv_common::region::{Words, bytes_of};
use kv_common::wire::{Refusal, Value};

use super::worker::grown;

/// Words of a piece.
const PIECE_WORDS: usize = 2 << 10;

/// The bytes of `value`. What lies in the staging area is copied into `scratch` first and judged there: the client may
/// write to the area at any time, so that nothing is looked at twice in it. A client whose deadline passed may have
/// used the area for something else meanwhile; the hash tells.
pub(crate) fn value_bytes<'a>(
    value: Value<'a>,
    staging: Option<&Words>,
    scratch: &'a mut Vec<u64>,
) -> Result<&'a [u8], Refusal> {
    let (offset_bytes, len_bytes, hash) = match value {
        Value::Inline(bytes) => return Ok(bytes),
        Value::Staged { offset_bytes, len_bytes, hash } => (offset_bytes, len_bytes as usize, hash),
    };
    let area = area_of(staging, offset_bytes, len_bytes)?;
    let (first_word, skipped_bytes) = (offset_bytes as usize / 8, offset_bytes as usize % 8);
    let words = grown(scratch, (skipped_bytes + len_bytes).div_ceil(8));
    area.copy_out(first_word, words);
    let bytes = &bytes_of(words)[skipped_bytes..skipped_bytes + len_bytes];
    let found = payload_hash(bytes);
    if found != hash { Err(Refusal::StagedChanged { found }) } else { Ok(bytes) }
}

/// Hands the bytes of `value` to `take`, piece by piece, each while it is in the processor's nearest cache. Whether they are
/// what the client announced is known only at the end: if not, what was taken must be dropped.
pub(crate) fn value_pieces(
    value: Value<'_>,
    staging: Option<&Words>,
    scratch: &mut Vec<u64>,
    mut take: impl FnMut(&[u8]),
) -> Result<(), Refusal> {
    let (offset_bytes, len_bytes, hash) = match value {
        Value::Inline(bytes) => {
            take(bytes);
            return Ok(());
        }
        Value::Staged { offset_bytes, len_bytes, hash } => (offset_bytes, len_bytes as usize, hash),
    };
    let area = area_of(staging, offset_bytes, len_bytes)?;
    let mut hasher = PayloadHasher::new();
    let (mut at, end) = (offset_bytes as usize, offset_bytes as usize + len_bytes);
    while at < end {
        let until = end.min((at / 8 + PIECE_WORDS) * 8);
        let words = grown(scratch, until.div_ceil(8) - at / 8);
        area.copy_out(at / 8, words);
        let piece = &bytes_of(words)[at % 8..until - at / 8 * 8];
        hasher.update(piece);
        take(piece);
        at = until;
    }
    let found = hasher.finish();
    if found != hash { Err(Refusal::StagedChanged { found }) } else { Ok(()) }
}

/// The staging area, if these bytes are inside it.
fn area_of(staging: Option<&Words>, offset_bytes: u64, len_bytes: usize) -> Result<&Words, Refusal> {
    let area_bytes = staging.map_or(0, |area| area.len_words() as u64 * 8);
    let end_bytes = offset_bytes.saturating_add(len_bytes as u64);
    staging.filter(|_| end_bytes <= area_bytes).ok_or(Refusal::StagedOutside { end_bytes, area_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(offset_bytes: u64, len_bytes: u32, hash: u64) -> Value<'static> {
        Value::Staged { offset_bytes, len_bytes, hash }
    }

    #[test]
    fn a_staged_value_comes_from_any_byte_of_the_area() {
        let area = Words::zeroed(4);
        let all: Vec<u8> = (0..32).collect();
        area.copy_in(0, &[0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x1716151413121110, 0x1f1e1d1c1b1a1918]);
        for offset in 0..=32 {
            for len in 0..=32 - offset {
                let expected = &all[offset..offset + len];
                let value = staged(offset as u64, len as u32, payload_hash(expected));
                assert_eq!(value_bytes(value, Some(&area), &mut Vec::new()), Ok(expected));
            }
        }
    }

    #[test]
    fn pieces_make_up_the_whole_from_any_byte_of_the_area() {
        let area = Words::zeroed(3 * PIECE_WORDS);
        let words: Vec<u64> =
            (0..area.len_words() as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        area.copy_in(0, &words);
        let all = bytes_of(&words);
        let piece = PIECE_WORDS * 8;
        for offset in [0, 1, 7, 8, piece - 1, piece, piece + 3] {
            for len in [0, 1, 9, piece - 1, piece, piece + 1, 2 * piece - 4] {
                let (expected, mut found) = (&all[offset..offset + len], Vec::new());
                let value = staged(offset as u64, len as u32, payload_hash(expected));
                let taken =
                    value_pieces(value, Some(&area), &mut Vec::new(), |piece| found.extend_from_slice(piece));
                assert_eq!(taken, Ok(()));
                assert!(found == expected, "{len} bytes from {offset}");
                let wrong = staged(offset as u64, len as u32, 1);
                let refused = value_pieces(wrong, Some(&area), &mut Vec::new(), |_| {});
                assert_eq!(refused, Err(Refusal::StagedChanged { found: payload_hash(expected) }));
            }
        }
        let outside =
            value_pieces(staged(8, u32::MAX, 0), Some(&area), &mut Vec::new(), |_| panic!("none is inside"));
        assert!(matches!(outside, Err(Refusal::StagedOutside { .. })));
    }

    #[test]
    fn what_is_outside_the_area_or_changed_is_refused() {
        let area = Words::zeroed(4);
        let mut scratch = Vec::new();
        for (offset, len) in [(0, 33), (32, 1), (33, 0), (u64::MAX, 1), (u64::MAX - 7, u32::MAX)] {
            let end_bytes = offset.saturating_add(len as u64);
            let refused = value_bytes(staged(offset, len, 0), Some(&area), &mut scratch);
            assert_eq!(refused, Err(Refusal::StagedOutside { end_bytes, area_bytes: 32 }));
        }
        let found = payload_hash(&[0; 8]);
        let refused = value_bytes(staged(0, 8, found ^ 1), Some(&area), &mut scratch);
        assert_eq!(refused, Err(Refusal::StagedChanged { found }));
        let refused = value_bytes(staged(0, 1, 0), None, &mut scratch);
        assert_eq!(refused, Err(Refusal::StagedOutside { end_bytes: 1, area_bytes: 0 }));
    }
}
