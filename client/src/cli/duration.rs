//! Times as people write them.

use std::time::Duration;

/// Units, longest name first among those that end alike.
const UNITS: [(&str, u64); 6] =
    [("ms", 1), ("min", 60_000), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A whole number and its unit: `500ms`, `30s`, `5m` or `5min`, `2h`, `7d`; without a unit seconds.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "" => Some(1000),
        unit => UNITS.iter().find(|(name, _)| *name == unit).map(|&(_, ms)| ms),
    };
    let milliseconds = unit_ms.and_then(|unit_ms| number.parse::<u64>().ok()?.checked_mul(unit_ms));
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| "expected a whole number and ms, s, m, h or d, for instance 500ms, 30s, 2h".to_owned())
}

/// Seconds to the millisecond, rounded down: what is left is not overstated.
pub(super) fn format(left: Duration) -> String {
    format!("{}.{:03}s", left.as_secs(), left.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("30", 30_000),
            ("5m", 300_000),
            ("5min", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "-1s", "1.5s", "1 s", "1y", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(format(Duration::from_micros(29_999_900)), "29.999s");
    }
}
