//! Servers that run for real, in this process or in one of their own, and what tests of them have in common.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod bypass;
pub(crate) mod bystander;
pub(crate) mod device;
pub(crate) mod helper;
pub(crate) mod peer;
pub(crate) mod procfs;
pub(crate) mod programs;
pub(crate) mod server;
pub(crate) mod tcp_peer;

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

/// No wait of these tests is expected to take more than a moment; one that takes this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The end of patience, from now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Looks again and again until `look` finds something.
pub(crate) fn wait_for<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    try_wait_for(look).unwrap_or_else(|| panic!("waited in vain: {what}"))
}

/// As `wait_for`; `None` when patience is at its end.
pub(crate) fn try_wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = deadline();
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Says loudly that a test could not run here, and why; with `KV_TESTS_NOT_RUN` also in the file of that name.
pub(crate) fn not_run(test: &str, why: &str) {
    eprintln!("\n*** NOT RUN: {test}: {why} ***\n");
    let Some(path) = std::env::var_os("KV_TESTS_NOT_RUN") else { return };
    let mut list = File::options().create(true).append(true).open(path).expect("a file to append to");
    writeln!(list, "{test}: {why}").expect("it can be written");
}

/// Bytes that only `tag` and `len_bytes` decide, so that a value proves whose it is and that it is whole.
pub(crate) fn value_of(tag: u64, len_bytes: usize) -> Vec<u8> {
    let mut random = Random::new(tag ^ (len_bytes as u64) << 40);
    let mut bytes = Vec::with_capacity(len_bytes + 8);
    while bytes.len() < len_bytes {
        bytes.extend_from_slice(&random.next().to_le_bytes());
    }
    bytes.truncate(len_bytes);
    bytes
}

/// A generator whose numbers repeat themselves when a test is run again (SplitMix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
