//! The value of a request, wherever it is.

use kv_common::hash::payload_hash;
use kv_common::region::{Words, bytes_of};
use kv_common::wire::{Refusal, Value};

use super::worker::grown;

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
    let area_bytes = staging.map_or(0, |area| area.len_words() as u64 * 8);
    let end_bytes = offset_bytes.saturating_add(len_bytes as u64);
    let Some(area) = staging.filter(|_| end_bytes <= area_bytes) else {
        return Err(Refusal::StagedOutside { end_bytes, area_bytes });
    };
    // Both fit usize now, because they are inside the area.
    let (first_word, skipped_bytes) = (offset_bytes as usize / 8, offset_bytes as usize % 8);
    let words = grown(scratch, (skipped_bytes + len_bytes).div_ceil(8));
    area.copy_out(first_word, words);
    let bytes = &bytes_of(words)[skipped_bytes..skipped_bytes + len_bytes];
    let found = payload_hash(bytes);
    if found != hash { Err(Refusal::StagedChanged { found }) } else { Ok(bytes) }
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
