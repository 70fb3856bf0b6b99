//! Counters: values that are decimal numbers of 64 bits with sign, as [`crate::wire::Op::Add`] makes and takes them.

/// The text of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterText {
    bytes: [u8; CounterText::BYTES_MAX],
    start: u8,
}

impl CounterText {
    /// Bytes of the longest: -9223372036854775808.
    pub const BYTES_MAX: usize = 20;

    /// The text of `value`: no sign before positive numbers, no zero before other digits.
    pub fn new(value: i64) -> CounterText {
        let mut text =
            CounterText { bytes: [0; CounterText::BYTES_MAX], start: CounterText::BYTES_MAX as u8 };
        let mut left = value.unsigned_abs();
        loop {
            text.push_front(b'0' + (left % 10) as u8);
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if value < 0 {
            text.push_front(b'-');
        }
        text
    }

    fn push_front(&mut self, byte: u8) {
        self.start -= 1;
        self.bytes[self.start as usize] = byte;
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }
}

/// The number that `bytes` are the text of, exactly as [`CounterText::new`] writes it; `None` if they are not. What could
/// be read in more than one way (`+1`, `007`, `-0`, ` 1`) is no counter: an add would change its other bytes.
pub fn parse(bytes: &[u8]) -> Option<i64> {
    let value = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (CounterText::new(value).as_bytes() == bytes).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_reads_in_more_than_one_way_is_no_counter() {
        for bytes in
            ["", "-", "+1", "007", "-0", " 1", "1 ", "1\n", "1.0", "1e3", "0x1", "9223372036854775808", "٣"]
        {
            assert_eq!(parse(bytes.as_bytes()), None, "{bytes:?}");
        }
        assert_eq!(parse(&[0; 8]), None);
        assert_eq!(parse(&[0xff, b'1']), None);
    }

    proptest! {
        #[test]
        fn numbers_are_written_as_everywhere(value in prop_oneof![any::<i64>(), -20i64..20, Just(i64::MIN), Just(i64::MAX)]) {
            let text = CounterText::new(value);
            let expected = value.to_string();
            prop_assert_eq!(text.as_bytes(), expected.as_bytes());
            prop_assert_eq!(parse(text.as_bytes()), Some(value));
        }
    }
}
