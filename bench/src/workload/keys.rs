//! Keys as YCSB writes them: `user` and the decimal digits of a hash of the record's number.

const FNV_OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_PRIME: u64 = 1_099_511_628_211;
const PREFIX: &[u8] = b"user";
/// Digits of the largest hash, 2^63.
const DIGITS_MAX: usize = 19;

/// Bytes of the longest key that is written without padding.
const KEY_BYTES_MAX: usize = PREFIX.len() + DIGITS_MAX;
/// Bytes of the shortest keys that all have one size: 12 digits number more records than a run can have.
pub const KEY_SIZE_MIN: usize = PREFIX.len() + 12;

/// YCSB's hash of a number: FNV-1a with 64 bits over its eight bytes, the low one first, made positive as a signed
/// number.
#[inline]
pub const fn fnv_hash(number: u64) -> u64 {
    let mut hash = FNV_OFFSET_BASIS;
    let mut octet = 0;
    while octet < 8 {
        hash = (hash ^ ((number >> (8 * octet)) & 0xFF)).wrapping_mul(FNV_PRIME);
        octet += 1;
    }
    hash.cast_signed().unsigned_abs()
}

/// How a record's number becomes its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyFormat {
    /// Decimal digits at least; zeros fill up in front (YCSB's property `zeropadding`).
    digits_min: usize,
    /// The digits are those of the number itself and not of its hash (YCSB's `insertorder=ordered`).
    is_ordered: bool,
}

impl KeyFormat {
    /// Keys of exactly `bytes` bytes, or nothing if that is less than [`KEY_SIZE_MIN`]. Where the longest hash would not fit,
    /// below 23 bytes, they have the record's number.
    pub const fn of_size_bytes(bytes: usize) -> Option<Self> {
        if bytes < KEY_SIZE_MIN {
            return None;
        }
        Some(Self { digits_min: bytes - PREFIX.len(), is_ordered: bytes < KEY_BYTES_MAX })
    }

    /// Bytes of the longest key of this format.
    pub fn bytes_max(self) -> usize {
        PREFIX.len() + if self.is_ordered { self.digits_min } else { self.digits_min.max(DIGITS_MAX) }
    }

    /// Writes the key of record `number`, which has at most 12 digits, to the start of `out`, which must hold
    /// [`KeyFormat::bytes_max`] bytes. Returns the key's length in bytes.
    #[inline]
    pub fn write(self, number: u64, out: &mut [u8]) -> usize {
        let mut rest = if self.is_ordered { number } else { fnv_hash(number) };
        let digits = ((rest.max(1).ilog10() + 1) as usize).max(self.digits_min);
        let bytes = PREFIX.len() + digits;
        let out = &mut out[..bytes];
        out[..PREFIX.len()].copy_from_slice(PREFIX);
        for digit in out[PREFIX.len()..].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        bytes
    }

    /// The key of record `number`.
    pub fn key(self, number: u64) -> Vec<u8> {
        let mut key = vec![0; self.bytes_max()];
        let bytes = self.write(number, &mut key);
        key.truncate(bytes);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_keys_of_ycsb() {
        let golden: [(u64, &str); 7] = [
            (0, "user6284781860667377211"),
            (1, "user8517097267634966620"),
            (2, "user1820151046732198393"),
            (3, "user4052466453699787802"),
            (999, "user2071219101098386137"),
            (1_000_000, "user1011632231655643464"),
            (1 << 31, "user5860980763039959109"),
        ];
        for (number, key) in golden {
            assert_eq!(String::from_utf8(KeyFormat::default().key(number)).unwrap(), key);
        }
    }

    #[test]
    fn the_same_digits_padded_to_a_size() {
        let format = KeyFormat::of_size_bytes(24).unwrap();
        assert_eq!(format.key(0), b"user06284781860667377211");
        assert_eq!(KeyFormat::of_size_bytes(40).unwrap().key(0), b"user000000000000000006284781860667377211");
        assert!((0..10_000).all(|number| format.key(number).len() == 24));
    }

    #[test]
    fn keys_too_short_for_a_hash_have_the_number() {
        let format = KeyFormat::of_size_bytes(16).unwrap();
        assert_eq!(format.bytes_max(), 16);
        assert_eq!(format.key(0), b"user000000000000");
        assert_eq!(format.key(99_999_999), b"user000099999999");
        assert_eq!(KeyFormat::of_size_bytes(22).unwrap().key(1), b"user000000000000000001");
        assert_eq!(KeyFormat::of_size_bytes(23).unwrap().key(1), b"user8517097267634966620");
        assert_eq!(KeyFormat::of_size_bytes(15), None);
    }

    #[test]
    fn digits_as_the_standard_library_writes_them() {
        for number in (0..5000).chain([u64::MAX, 1 << 63, 12_345_678_901]) {
            let expected = format!("user{}", fnv_hash(number));
            assert_eq!(KeyFormat::default().key(number), expected.as_bytes());
        }
    }

    #[test]
    fn the_high_byte_first_is_another_hash() {
        // The commonest fault of a port; the golden vectors must tell the two apart.
        assert_ne!(fnv_hash(1), fnv_hash(1u64.swap_bytes()));
        assert_ne!(fnv_hash(1u64.swap_bytes()), 8_517_097_267_634_966_620);
    }
}
