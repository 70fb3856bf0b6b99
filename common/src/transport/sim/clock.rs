//! A client's own clock.

use super::rng::Rng;

/// A monotonic clock that begins anywhere, runs too fast or too slowly, and leaps.
pub(super) struct OwnClock {
    ahead_ns: u64,
    /// Of a million ns of the fabric's time it counts so many more, or fewer.
    drift_ppm: i64,
}

impl OwnClock {
    pub(super) fn draw(rng: &mut Rng, drift_ppm_max: u64) -> OwnClock {
        let drift_ppm = rng.below(2 * drift_ppm_max + 1) as i64 - drift_ppm_max as i64;
        OwnClock { ahead_ns: rng.below(1 << 50), drift_ppm }
    }

    /// Its client was stopped for so long, in a time that is nobody else's.
    pub(super) fn leap(&mut self, ns: u64) {
        self.ahead_ns += ns;
    }

    pub(super) fn at(&self, now_ns: u64) -> u64 {
        let drift_ns = i128::from(now_ns) * i128::from(self.drift_ppm) / 1_000_000;
        now_ns + self.ahead_ns.saturating_add_signed(drift_ns as i64)
    }
}
