//! Numbers of the command line, and of what a peer asks for, within bounds.

/// A number out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{flag} is {found}; it must be {from} to {to}")]
pub struct OutOfRange {
    /// The flag.
    pub flag: &'static str,
    /// What was given.
    pub found: u64,
    /// Smallest.
    pub from: u64,
    /// Largest.
    pub to: u64,
}

/// The number, if it is `from` to `to`.
pub(crate) fn in_range(flag: &'static str, found: u64, from: u64, to: u64) -> Result<u64, OutOfRange> {
    if (from..=to).contains(&found) { Ok(found) } else { Err(OutOfRange { flag, found, from, to }) }
}
