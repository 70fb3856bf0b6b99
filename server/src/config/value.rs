//! Values as people write them.

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// Bytes written as `64GiB`, `512MiB`, `16KiB` or a plain number.
///
/// # Errors
/// What was expected, in words.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    let bytes_per_unit = match unit {
        "" => 1,
        unit => UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, bytes)| *bytes)
            .ok_or_else(|| expected_size(number, unit))?,
    };
    if number.is_empty() {
        return Err(expected_size(number, unit));
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(bytes_per_unit))
        .ok_or_else(|| "too large; expected fewer than 2^64 bytes".to_owned())
}

fn expected_size(number: &str, unit: &str) -> String {
    let form = "expected a size as 64GiB, 512MiB or plain bytes";
    // 64GB, 64G, 64gib: the binary unit is meant, but guessing could be wrong by a tenth.
    let meant = UNITS.iter().find(|(name, _)| {
        let initial = |text: &str| text.chars().next().map(|c| c.to_ascii_uppercase());
        !number.is_empty() && unit.len() <= 3 && initial(name) == initial(unit)
    });
    match meant {
        Some((name, _)) => format!("{form}; did you mean {number}{name}?"),
        None => form.to_owned(),
    }
}

/// Bytes in the largest unit that expresses them exactly; [`parse_size`] reads it back.
pub fn format_size(bytes: u64) -> String {
    let (name, bytes_per_unit) = UNITS
        .iter()
        .find(|(_, unit)| bytes != 0 && bytes.is_multiple_of(*unit))
        .unwrap_or(&UNITS[UNITS.len() - 1]);
    format!("{}{name}", bytes / bytes_per_unit)
}

pub(super) fn number_between(text: &str, low: u64, high: u64) -> Result<u64, String> {
    match text.trim().parse::<u64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from {low} to {high}")),
    }
}

/// The value that `text` names.
pub(super) fn choice<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

/// The name of `value`: the inverse of [`choice`].
pub(super) fn name_of<T: Copy + PartialEq>(value: T, choices: &[(&'static str, T)]) -> &'static str {
    choices.iter().find(|(_, known)| *known == value).expect("each value has a name").0
}
