//! Time as the benchmark sees it: ticks, and what a tick is worth.
//!
//! An operation takes 150 to 450 ns and `Instant::now` about 29, so the time-stamp counter is read instead wherever
//! it can be trusted: when the kernel says that it ticks at one rate in every state of the processor. The counter is
//! calibrated against the monotonic clock at start.

#![allow(unsafe_code)] // reads the processor's time-stamp counter

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time. Statically dispatched; tests use [`FakeClock`].
pub trait Clock: Clone + Send + Sync {
    /// Ticks now, read before an operation: nothing of the operation starts earlier, and everything before it is
    /// done.
    fn begin(&self) -> u64;

    /// Ticks now, read after an operation: all loads of the operation have completed.
    fn end(&self) -> u64;

    /// What `ticks` are in nanoseconds.
    fn ns(&self, ticks: u64) -> u64;

    /// What `ns` are in ticks.
    fn ticks(&self, ns: u64) -> u64;

    /// Returns when the time is `at` ticks or later.
    fn wait_until(&self, at: u64);
}

/// Binary digits after the point in `SystemClock::ns_per_tick_scaled`.
const SCALE_BITS: u32 = 32;

/// The time of this machine, from the time-stamp counter or from the monotonic clock.
#[derive(Debug, Clone)]
pub struct SystemClock {
    origin: Instant,
    ns_per_tick_scaled: u64,
    tsc: bool,
}

impl SystemClock {
    /// Chooses the source and calibrates it, which takes about 40 ms.
    pub fn start() -> Self {
        let monotonic = Self { origin: Instant::now(), ns_per_tick_scaled: 1 << SCALE_BITS, tsc: false };
        if !tsc::trusted(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()) {
            return monotonic;
        }
        match tsc::calibrate() {
            Some(ns_per_tick) => Self {
                ns_per_tick_scaled: (ns_per_tick * (1u64 << SCALE_BITS) as f64).round() as u64,
                tsc: true,
                ..monotonic
            },
            None => monotonic,
        }
    }

    /// What the ticks come from, for the report.
    pub fn source(&self) -> &'static str {
        if self.tsc { "time-stamp counter" } else { "monotonic clock" }
    }

    fn monotonic_ns(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl Clock for SystemClock {
    #[inline]
    fn begin(&self) -> u64 {
        if self.tsc { tsc::begin() } else { self.monotonic_ns() }
    }

    #[inline]
    fn end(&self) -> u64 {
        if self.tsc { tsc::end() } else { self.monotonic_ns() }
    }

    #[inline]
    fn ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick_scaled)) >> SCALE_BITS) as u64
    }

    fn ticks(&self, ns: u64) -> u64 {
        ((u128::from(ns) << SCALE_BITS) / u128::from(self.ns_per_tick_scaled)) as u64
    }

    fn wait_until(&self, at: u64) {
        // Long waits sleep, because the server may need this core; the last stretch spins, because a sleep ends late.
        const SPIN_NS: u64 = 200_000;
        loop {
            let now = self.begin();
            if now >= at {
                return;
            }
            let left_ns = self.ns(at - now);
            if left_ns > SPIN_NS {
                std::thread::sleep(Duration::from_nanos(left_ns - SPIN_NS));
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod tsc {
    use std::arch::x86_64::{__rdtscp, _mm_lfence, _rdtsc};
    use std::time::{Duration, Instant};

    /// Whether `cpuinfo` says that the counter ticks at one rate, in sleep states too, and that `rdtscp` exists.
    pub(super) fn trusted(cpuinfo: &str) -> bool {
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        ["constant_tsc", "nonstop_tsc", "rdtscp"]
            .iter()
            .all(|want| flags.split(' ').any(|flag| flag == *want))
    }

    #[inline]
    pub(super) fn begin() -> u64 {
        // The counter alone may be read before earlier loads have completed, and their waiting would be charged to
        // the operation.
        fence();
        // SAFETY: `rdtsc` is part of every x86-64 processor, touches no memory, and user space may execute it:
        // otherwise the calibration at start would already have ended the process.
        let ticks = unsafe { _rdtsc() };
        fence();
        ticks
    }

    #[inline]
    pub(super) fn end() -> u64 {
        let mut processor = 0;
        // SAFETY: `trusted` saw the rdtscp flag before this clock was chosen; the instruction writes only the
        // local variable whose address it gets.
        unsafe { __rdtscp(&raw mut processor) }
    }

    #[inline]
    #[allow(unused_unsafe)] // newer compilers than the oldest supported one know that the intrinsic is safe
    fn fence() {
        // SAFETY: `lfence` is part of SSE2 and so of every x86-64 processor; it touches no memory.
        unsafe { _mm_lfence() }
    }

    /// One reading of both clocks: the counter, and the middle of the narrowest of several brackets around it.
    fn both() -> (u64, Instant) {
        let mut best: Option<(Duration, u64, Instant)> = None;
        for _ in 0..16 {
            let before = Instant::now();
            let ticks = end();
            let width = before.elapsed();
            if best.is_none_or(|(narrowest, ..)| width < narrowest) {
                best = Some((width, ticks, before + width / 2));
            }
        }
        let (_, ticks, at) = best.expect("the loop above runs at least once");
        (ticks, at)
    }

    /// Nanoseconds per tick, or nothing if two measurements of 20 ms differ by more than 0.1 %.
    pub(super) fn calibrate() -> Option<f64> {
        let (first, second) = (measure()?, measure()?);
        ((first - second).abs() <= 1e-3 * first).then_some((first + second) / 2.0)
    }

    fn measure() -> Option<f64> {
        let (ticks_0, at_0) = both();
        std::thread::sleep(Duration::from_millis(20));
        let (ticks_1, at_1) = both();
        let ticks = ticks_1.checked_sub(ticks_0).filter(|ticks| *ticks > 0)?;
        Some((at_1 - at_0).as_nanos() as f64 / ticks as f64)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod tsc {
    pub(super) fn trusted(_cpuinfo: &str) -> bool {
        false
    }

    pub(super) fn begin() -> u64 {
        unreachable!("the counter is read only where it is trusted")
    }

    pub(super) fn end() -> u64 {
        unreachable!("the counter is read only where it is trusted")
    }

    pub(super) fn calibrate() -> Option<f64> {
        None
    }
}

/// A clock that moves only when told to, for tests: one tick is one nanosecond.
#[derive(Debug, Clone, Default)]
pub struct FakeClock {
    now_ns: Arc<AtomicU64>,
}

impl FakeClock {
    /// Lets `ns` pass.
    pub fn advance(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn begin(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn end(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    fn ns(&self, ticks: u64) -> u64 {
        ticks
    }

    fn ticks(&self, ns: u64) -> u64 {
        ns
    }

    fn wait_until(&self, at: u64) {
        self.now_ns.fetch_max(at, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_runs_backwards_and_converts_both_ways() {
        let clock = SystemClock::start();
        let mut last = clock.begin();
        for _ in 0..10_000 {
            let now = clock.end();
            assert!(now >= last);
            last = now;
        }
        let second_ticks = clock.ticks(1_000_000_000);
        assert!(clock.ns(second_ticks).abs_diff(1_000_000_000) < 10);
    }

    #[test]
    fn waits_at_least_as_long_as_asked() {
        let clock = SystemClock::start();
        let at = clock.begin() + clock.ticks(300_000);
        clock.wait_until(at);
        assert!(clock.begin() >= at);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_counter_that_may_change_its_rate_is_not_used() {
        assert!(tsc::trusted("model\t: 1\nflags\t\t: fpu tsc rdtscp constant_tsc nonstop_tsc"));
        assert!(!tsc::trusted("flags\t\t: fpu tsc rdtscp constant_tsc"));
        assert!(!tsc::trusted("flags\t\t: fpu tsc rdtscp nonstop_tsc_not constant_tsc"));
        assert!(!tsc::trusted(""));
    }

    #[test]
    fn the_fake_moves_only_when_told() {
        let clock = FakeClock::default();
        let other = clock.clone();
        assert_eq!(clock.begin(), 0);
        other.advance(700);
        assert_eq!(clock.end(), 700);
        clock.wait_until(500);
        assert_eq!(clock.begin(), 700);
        clock.wait_until(900);
        assert_eq!(other.begin(), 900);
    }
}
