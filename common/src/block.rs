//! Blocks: how a writer makes one, and how a reader judges the bytes that a READ brought.
//!
//! A block proves itself: its check covers version, key, value, its own place and the table. So the words of one READ
//! may come from any moments in any order, the block may have been freed, reused or overwritten meanwhile: what passes
//! is a value that this key had at the moment when word 0 was fetched.

use std::ops::Range;

use crate::adversary::{Mutant, mutant};
use crate::hash::payload_hash;
use crate::layout::{
    BLOCK_HEADER_BYTES, BLOCK_HEADER_WORDS, EXPIRES, EXPIRY_BYTES, Lengths, NOT_LIVE, Place,
};
use crate::limits::{KEY_MAX_BYTES, VALUE_MAX_BYTES};
use crate::region::{bytes_of, bytes_of_mut};

/// Keeps the factor of the check far from 0 for every place of a table whose id is small: 2^64 / the golden ratio.
const CHECK_KEY: u64 = 0x9e37_79b9_7f4a_7c15;

/// What the bytes of a READ turned out to be. Only `Found`, `Expiring` and `OtherKey` are facts; the rest says "look again".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The wanted key's value, as it was when word 0 was fetched.
    Found {
        /// The version: the token for compare-and-set.
        version: u64,
        /// Where the value lies in the bytes that were judged.
        value: Range<usize>,
    },
    /// The same of a value whose time ends: if it has ended, the key is absent.
    Expiring {
        /// See `Found`.
        version: u64,
        /// See `Found`.
        value: Range<usize>,
        /// When it ends, ns since 1970 by the server's clock.
        expires_ns: u64,
    },
    /// The block is being written or is dead.
    NotLive,
    /// A valid block, of another key.
    OtherKey,
    /// Not a block as a whole: torn by a writer, reused meanwhile, or never a block.
    Torn,
}

/// The check word of a block: the payload's xxh3-64, folded with the version, the place and the table id.
///
/// `payload` is what lies from byte 16 of the block to its end: lengths, key, value.
#[inline]
pub fn check(payload: &[u8], version: u64, place: Place, table_id: u64) -> u64 {
    check_of(hash_of(payload), version, place, table_id)
}

/// The part of the check that depends on the payload alone: a writer computes it before it takes any lock.
#[inline]
pub fn hash_of(payload: &[u8]) -> u64 {
    payload_hash(if mutant(Mutant::CheckWithoutPayload) { &payload[..8] } else { payload })
}

/// The check word of a block whose payload hashes to `hash` (see [`hash_of`]): the two halves of a 128-bit product,
/// xored, which is the step that xxh3 itself is made of. A second xxh3 would cost a GET 8 % more instructions.
#[inline]
pub fn check_of(hash: u64, version: u64, place: Place, table_id: u64) -> u64 {
    let version = if mutant(Mutant::CheckWithoutVersion) { 0 } else { version };
    let product = u128::from(hash ^ version) * u128::from(table_id ^ place.0 ^ CHECK_KEY);
    product as u64 ^ (product >> 64) as u64
}

/// Writes the payload of the block of `key` and `value`, and of their expiry if they have one, into `words`, private memory that starts with the block's word
/// 2: the words after the last byte's are not touched, those before it are. Returns the bytes of the payload.
///
/// Panics if key or value exceed their limits or the payload does not fit: the caller has checked them.
pub fn encode_payload(words: &mut [u64], key: &[u8], value: &[u8], expires_ns: Option<u64>) -> usize {
    assert!(!key.is_empty() && key.len() <= KEY_MAX_BYTES, "a key has 1 to {KEY_MAX_BYTES} bytes");
    assert!(value.len() <= VALUE_MAX_BYTES, "a value has at most {VALUE_MAX_BYTES} bytes");
    let flags = if expires_ns.is_some() { EXPIRES } else { 0 };
    let lengths = Lengths { value_bytes: value.len() as u32, key_bytes: key.len() as u16, flags };
    let (key_end, value_end) = (8 + key.len(), 8 + key.len() + value.len());
    let end = value_end + expires_ns.map_or(0, |_| EXPIRY_BYTES);
    words[end.div_ceil(8) - 1] = 0;
    words[0] = lengths.encode();
    let bytes = bytes_of_mut(words);
    bytes[8..key_end].copy_from_slice(key);
    bytes[key_end..value_end].copy_from_slice(value);
    if let Some(expires_ns) = expires_ns {
        bytes[value_end..end].copy_from_slice(&expires_ns.to_le_bytes());
    }
    end
}

/// Writes the block of `key` and `value` into `words`, private memory, ready to be copied to `place`: the words after
/// the last byte's are not touched, those before it are. Returns the words used.
///
/// Panics if key or value exceed their limits or the block does not fit: the caller has checked them.
pub fn encode(
    words: &mut [u64],
    key: &[u8],
    value: &[u8],
    version: u64,
    place: Place,
    table_id: u64,
) -> usize {
    assert!(version & NOT_LIVE == 0, "versions are below 2^63");
    let payload_bytes = encode_payload(&mut words[2..], key, value, None);
    words[0] = version;
    words[1] = check(&bytes_of(&words[2..])[..payload_bytes], version, place, table_id);
    2 + payload_bytes.div_ceil(8)
}

/// Judges `words`, which a READ of the block at `place` brought, for the wanted `key`.
// A call of it would be a tenth of a GET.
#[inline(always)]
pub fn judge(words: &[u64], key: &[u8], place: Place, table_id: u64) -> Verdict {
    if words.len() < BLOCK_HEADER_WORDS {
        return Verdict::Torn;
    }
    let word0 = words[0];
    if word0 & NOT_LIVE != 0 && !mutant(Mutant::SkipLive) {
        return Verdict::NotLive;
    }
    let version = word0 & !NOT_LIVE;
    let lengths = Lengths::decode(words[2]);
    if lengths.flags != 0 {
        return judge_expiring(words, key, place, table_id);
    }
    let end = lengths.value_end();
    let bytes = bytes_of(words);
    if end > bytes.len() {
        return Verdict::Torn;
    }
    let is_whole = mutant(Mutant::SkipCheck) || check(&bytes[16..end], version, place, table_id) == words[1];
    if !is_key(&bytes[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + lengths.key_bytes as usize], key) {
        return if is_whole { Verdict::OtherKey } else { Verdict::Torn };
    }
    if !is_whole {
        return Verdict::Torn;
    }
    Verdict::Found { version, value: BLOCK_HEADER_BYTES + lengths.key_bytes as usize..end }
}

/// The same for a live block with flags: apart, so that those without do not pay for it.
#[cold]
fn judge_expiring(words: &[u64], key: &[u8], place: Place, table_id: u64) -> Verdict {
    let version = words[0] & !NOT_LIVE;
    let lengths = Lengths::decode(words[2]);
    let bytes = bytes_of(words);
    let Some(payload) = bytes.get(16..lengths.block_bytes()).filter(|_| lengths.flags == EXPIRES) else {
        return Verdict::Torn;
    };
    if !mutant(Mutant::SkipCheck) && check(payload, version, place, table_id) != words[1] {
        return Verdict::Torn;
    }
    let key_end = BLOCK_HEADER_BYTES + lengths.key_bytes as usize;
    if !is_key(&bytes[BLOCK_HEADER_BYTES..key_end], key) {
        return Verdict::OtherKey;
    }
    let expires_ns = expiry_of(words).expect("the flag is set and the block is whole");
    Verdict::Expiring { version, value: key_end..lengths.value_end(), expires_ns }
}

/// When a block expires whose words are known to be whole; `None` if it does not, or the lengths do not fit.
pub fn expiry_of(words: &[u64]) -> Option<u64> {
    let lengths = Lengths::decode(*words.get(2)?);
    let bytes = bytes_of(words).get(lengths.value_end()..).filter(|_| lengths.expires())?;
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

#[inline]
fn is_key(found: &[u8], wanted: &[u8]) -> bool {
    if mutant(Mutant::SkipKey) {
        return true;
    }
    if mutant(Mutant::PrefixKey) {
        return found.starts_with(wanted);
    }
    is_same(found, wanted)
}

/// Whether two keys are equal: without the call that `==` makes, whose cost shows in a GET.
#[inline]
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() || a.len() < 8 {
        return a == b;
    }
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let ((words_a, _), (words_b, _)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let same = words_a.iter().zip(words_b).all(|(a, b)| word(a) == word(b));
    // The last 8 bytes, whichever of them were compared already.
    same && a.last_chunk::<8>() == b.last_chunk::<8>()
}

/// The key of a block whose words are known to be whole (the server's own memory, under the stripes); `None` if the
/// lengths do not fit.
pub fn key_of(words: &[u64]) -> Option<&[u8]> {
    let lengths = Lengths::decode(*words.get(2)?);
    bytes_of(words).get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + lengths.key_bytes as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place(4711);
    const TABLE: u64 = 0x7ab1e;

    fn block(key: &[u8], value: &[u8]) -> Vec<u64> {
        let mut words = vec![u64::MAX; 64];
        let used = encode(&mut words, key, value, 42, PLACE, TABLE);
        assert!(words[used..].iter().all(|&w| w == u64::MAX), "words after the block are not touched");
        words
    }

    #[test]
    fn a_block_is_found_and_its_value_is_the_one_written() {
        for value in [&b""[..], b"v", b"eight by", b"a value of some length"] {
            let words = block(b"key", value);
            let Verdict::Found { version, value: range } = judge(&words, b"key", PLACE, TABLE) else {
                panic!()
            };
            assert_eq!((version, &bytes_of(&words)[range]), (42, value));
        }
    }

    /// The bytes as the layout document draws them; the check by an independent implementation of its formula.
    #[test]
    fn golden_block() {
        let words = block(b"key", b"value");
        assert_eq!(&bytes_of(&words)[16..32], b"\x05\0\0\0\x03\0\0\0keyvalue");
        let inner = xxhash_rust::xxh3::xxh3_64(b"\x05\0\0\0\x03\0\0\0keyvalue");
        // The long multiplication by hand, in halves of 32 bits.
        let (a, b) = (inner ^ 42, 0x9e37_79b9_7f4a_7c15u64 ^ 0x7ab1e ^ 4711);
        let (a_high, a_low, b_high, b_low) = (a >> 32, a & 0xffff_ffff, b >> 32, b & 0xffff_ffff);
        let middle =
            ((a_low * b_low) >> 32) + ((a_high * b_low) & 0xffff_ffff) + ((a_low * b_high) & 0xffff_ffff);
        let high = a_high * b_high + ((a_high * b_low) >> 32) + ((a_low * b_high) >> 32) + (middle >> 32);
        assert_eq!(words[1], a.wrapping_mul(b) ^ high);
    }

    #[test]
    fn prefixes_and_other_keys_are_other_keys() {
        let words = block(b"key", b"value");
        for key in [&b"k"[..], b"ke", b"keyv", b"kez", b"other"] {
            assert_eq!(judge(&words, key, PLACE, TABLE), Verdict::OtherKey, "{key:?}");
        }
    }

    /// Behind a value that ends anywhere in a word, and under the check.
    #[test]
    fn an_expiry_is_found_and_proved() {
        for len in 0..20 {
            let value: Vec<u8> = (0..len).collect();
            let mut words = vec![u64::MAX; 16];
            words[0] = 42;
            let bytes = encode_payload(&mut words[2..], b"key", &value, Some(0x1234_5678_9abc_def0));
            assert_eq!(bytes, 8 + 3 + len as usize + 8);
            words[1] = check(&bytes_of(&words[2..])[..bytes], 42, PLACE, TABLE);
            let (end, expires_ns) = (27 + len as usize, 0x1234_5678_9abc_def0);
            let found = Verdict::Expiring { version: 42, value: 27..end, expires_ns };
            assert_eq!(judge(&words, b"key", PLACE, TABLE), found);
            assert_eq!(judge(&words, b"kez", PLACE, TABLE), Verdict::OtherKey);
            assert_eq!(expiry_of(&words), Some(expires_ns));
            for at in end..end + 8 {
                let mut torn = words.clone();
                crate::region::bytes_of_mut(&mut torn)[at] ^= 1;
                assert_eq!(judge(&torn, b"key", PLACE, TABLE), Verdict::Torn, "byte {at}");
            }
            assert_eq!(judge(&words[..end.div_ceil(8)], b"key", PLACE, TABLE), Verdict::Torn, "cut");
        }
        assert_eq!(expiry_of(&block(b"key", b"value")), None);
    }

    #[test]
    fn a_key_that_differs_in_any_one_byte_is_another_key() {
        for len in 1..40 {
            let key: Vec<u8> = (0..len).collect();
            let words = block(&key, b"value");
            assert!(matches!(judge(&words, &key, PLACE, TABLE), Verdict::Found { .. }), "{len}");
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 0x80;
                assert_eq!(judge(&words, &other, PLACE, TABLE), Verdict::OtherKey, "byte {at} of {len}");
            }
        }
    }

    #[test]
    fn another_place_or_table_is_torn_and_a_mark_is_not_live() {
        let mut words = block(b"key", b"value");
        assert_eq!(judge(&words, b"key", Place(4712), TABLE), Verdict::Torn);
        assert_eq!(judge(&words, b"key", PLACE, TABLE + 1), Verdict::Torn);
        words[0] |= NOT_LIVE;
        assert_eq!(judge(&words, b"key", PLACE, TABLE), Verdict::NotLive);
    }

    proptest! {
        #[test]
        fn any_change_of_one_word_is_noticed(at in 0usize..5, flip in 1u64..) {
            let mut words = block(b"a key of 16 byte", b"");
            words.truncate(5);
            words[at] ^= flip;
            let verdict = judge(&words, b"a key of 16 byte", PLACE, TABLE);
            prop_assert!(matches!(verdict, Verdict::Torn | Verdict::NotLive), "{:?}", verdict);
        }

        #[test]
        fn arbitrary_words_are_judged_without_panic(words in proptest::collection::vec(any::<u64>(), 0..40), key: Vec<u8>) {
            let verdict = judge(&words, &key, PLACE, TABLE);
            prop_assert!(matches!(verdict, Verdict::Torn | Verdict::NotLive), "{:?}", verdict);
        }

        #[test]
        fn plausible_lengths_in_arbitrary_words_do_not_panic(
            mut words in proptest::collection::vec(any::<u64>(), 3..40), value_bytes in 0u32..400, key_bytes in 0u16..400, flags in 0u16..3,
        ) {
            words[0] &= !NOT_LIVE;
            words[2] = Lengths { value_bytes, key_bytes, flags }.encode();
            let verdict = judge(&words, b"key", PLACE, TABLE);
            prop_assert_eq!(verdict, Verdict::Torn);
        }
    }
}
