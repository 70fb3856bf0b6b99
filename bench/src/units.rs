//! Sizes, counts and durations as people write them on a command line.

use std::time::Duration;

use thiserror::Error;

/// Text that is not the quantity it should be.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is not {what}; write it like {example}")]
pub struct UnitError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// Splits `text` into its leading number (`_` between digits allowed) and its unit, in lower case.
fn split(text: &str) -> Option<(u64, String)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let number = text[..end].replace('_', "").parse().ok()?;
    Some((number, text[end..].trim().to_ascii_lowercase()))
}

/// Bytes: `1000`, `64B`, `64KiB`, `64MiB`, `1GiB`, `1TiB`, or powers of ten as `64KB`, `64MB`, `1GB`.
pub fn parse_size_bytes(text: &str) -> Result<u64, UnitError> {
    let error =
        || UnitError { text: text.into(), what: "a size in bytes", example: "1000, 64KiB, 64MiB or 1GiB" };
    let (number, unit) = split(text).ok_or_else(error)?;
    let factor = match unit.as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(error()),
    };
    number.checked_mul(factor).ok_or_else(error)
}

/// A number of things: `1000000`, `1_000_000`, `1000k`, `1M`, `1G`.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    let error =
        || UnitError { text: text.into(), what: "a count", example: "1000000, 1_000_000, 100k or 1M" };
    let (number, unit) = split(text).ok_or_else(error)?;
    let factor = match unit.as_str() {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        _ => return Err(error()),
    };
    number.checked_mul(factor).ok_or_else(error)
}

/// A span of time: `10` (seconds), `10s`, `500ms`, `250us`, `2m`, `1h`.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let error = || UnitError { text: text.into(), what: "a duration", example: "10s, 500ms or 2m" };
    let (number, unit) = split(text).ok_or_else(error)?;
    let ns_per_unit: u64 = match unit.as_str() {
        "" | "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return Err(error()),
    };
    number.checked_mul(ns_per_unit).map(Duration::from_nanos).ok_or_else(error)
}

/// `value` with a power-of-1024 unit, for people: `1.5 MiB`.
pub fn show_size_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Nanoseconds for people, three significant digits or more: `312 ns`, `4.21 us`, `1.50 ms`, `2.00 s`.
pub fn show_ns(ns: f64) -> String {
    match ns {
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e6 => format!("{:.2} us", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.2} s", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size_bytes("64MiB"), Ok(67_108_864));
        assert_eq!(parse_size_bytes("64 mib"), Ok(67_108_864));
        assert_eq!(parse_size_bytes("1_000"), Ok(1000));
        assert_eq!(parse_size_bytes("3KB"), Ok(3000));
        for bad in ["", "MiB", "12XB", "-1", "1.5MiB", "99999999999TiB", "1 2", "64M"] {
            assert!(parse_size_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(parse_count("1M"), Ok(1_000_000));
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("007"), Ok(7));
        for bad in ["", "k", "1e6", "-5", "1MiB", "99999999999999999999"] {
            assert!(parse_count(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "10 parsecs", "99999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shown_for_people() {
        assert_eq!(show_size_bytes(1023), "1023 B");
        assert_eq!(show_size_bytes(1_572_864), "1.5 MiB");
        assert_eq!(show_ns(312.4), "312 ns");
        assert_eq!(show_ns(4_210.0), "4.21 us");
        assert_eq!(show_ns(2e9), "2.00 s");
    }
}
