//! The server's clock.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// Now, in ns since 1970: the wall clock as it was at the first call, and the time since then. A wall clock that is set
/// anew moves no expiry.
pub(crate) fn server_clock_ns() -> u64 {
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (start, wall_ns) = *START.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        (Instant::now(), since.map_or(0, |since| since.as_nanos() as u64))
    });
    wall_ns.saturating_add(start.elapsed().as_nanos() as u64)
}
