//! The wall clock.

use std::time::SystemTime;

/// Now, in ns since 1970; 0 before that.
pub(crate) fn wall_clock_ns() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
