//! What the tests of shared memory have in common.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use rustix::fs::FlockOperation;

const HUGEPAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Says loudly that a test, or a part of one, could not run here, and why. With `KV_TESTS_NOT_RUN` set to a file's path a
/// line is added to that file, so that a script can count.
pub(crate) fn not_run(test: &str, why: &str) {
    eprintln!("\n*** NOT RUN: {test}: {why} ***\n");
    let Some(path) = std::env::var_os("KV_TESTS_NOT_RUN") else { return };
    let mut list = File::options()
        .create(true)
        .append(true)
        .open(path)
        .expect("KV_TESTS_NOT_RUN is a file to append to");
    writeln!(list, "{test}: {why}").expect("KV_TESTS_NOT_RUN can be written");
}

/// True if the tests run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Free hugepages for one test; the pool is as before when this is dropped.
pub(crate) struct Hugepages {
    before: u64,
    /// Held by one test of the machine at a time, whatever its process.
    _lock: File,
}

impl Hugepages {
    /// Waits for other tests that change the pool, and makes `pages` free ones beside those that are in use or free already.
    /// `None`, and a loud note, if this machine cannot give them.
    pub(crate) fn take(test: &str, pages: u64) -> Option<Hugepages> {
        let lock = Hugepages::lock();
        let before = pool();
        if !is_root() || fs::write(HUGEPAGES, (before + pages).to_string()).is_err() {
            not_run(test, "hugepages can be made by root only");
            return None;
        }
        let taken = Hugepages { before, _lock: lock };
        if pool() < before + pages {
            not_run(test, "the machine has no memory in pieces of 2 MiB");
            return None;
        }
        Some(taken)
    }

    /// Keeps other tests from changing the pool while the result lives.
    pub(crate) fn lock() -> File {
        let path: PathBuf = std::env::temp_dir().join("kv-tests-hugepages.lock");
        // It may be another user's: reading is enough to lock it.
        let lock = File::open(&path)
            .or_else(|_| File::options().create(true).append(true).open(&path))
            .expect("the temporary directory can be written");
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).expect("a file can be locked");
        lock
    }
}

impl Drop for Hugepages {
    fn drop(&mut self) {
        fs::write(HUGEPAGES, self.before.to_string()).expect("the pool could be changed before");
    }
}

fn pool() -> u64 {
    fs::read_to_string(HUGEPAGES).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
