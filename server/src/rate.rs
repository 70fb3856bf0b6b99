//! Log lines that anybody can provoke are written now and then only.

use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// Lets one line per second through and counts the others.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl RateLimit {
    /// `Some` if a line may be written now: the number of lines that were not since the last one.
    pub(crate) fn permits(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_per_interval_and_the_others_are_counted() {
        let (mut limit, start) = (RateLimit::default(), Instant::now());
        assert_eq!(limit.permits(start), Some(0));
        assert_eq!((limit.permits(start), limit.permits(start + INTERVAL / 2)), (None, None));
        assert_eq!(limit.permits(start + INTERVAL), Some(2));
        assert_eq!(limit.permits(start + INTERVAL * 3), Some(0));
    }
}
