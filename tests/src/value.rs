//! Values that prove which write they are from.

/// Bytes from which on a value names its write.
pub const NAMED_BYTES_MIN: usize = 4;

/// The value of `len_bytes` bytes of write `write` to `key`: the write's number, then bytes that depend on it, on the
/// key and on the length. Any cut, mixture or shift of two values is no value.
pub fn make(write: u32, key: &[u8], len_bytes: usize) -> Vec<u8> {
    let mut value = write.to_le_bytes().to_vec();
    let mut state =
        key.iter().fold(write as u64 ^ (len_bytes as u64) << 40, |state, &byte| step(state ^ byte as u64));
    while value.len() < len_bytes {
        state = step(state);
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(len_bytes);
    value
}

/// The write that a value names, if it is long enough to name one. Whether it is that write's value is for
/// [`make`] to say.
pub fn write_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn step(state: u64) -> u64 {
    let mixed = (state ^ state >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9).wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_differ_by_write_key_and_length() {
        let value = make(7, b"key", 40);
        assert_eq!(write_of(&value), Some(7));
        assert_ne!(value[4..], make(8, b"key", 40)[4..]);
        assert_ne!(value, make(7, b"kez", 40));
        assert_ne!(value[..32], make(7, b"key", 32)[..]);
        assert_eq!(write_of(&make(7, b"key", 3)), None);
        assert!(make(7, b"key", 0).is_empty());
    }
}
