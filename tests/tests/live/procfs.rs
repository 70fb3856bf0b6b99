//! What the kernel knows about a process.

use std::fs;
use std::time::{Duration, Instant};

use super::wait_for;

/// A thread as proc(5) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) name: String,
    /// `R`, `S`, `T`, ...
    pub(crate) state: char,
    /// Time on a processor: the first field of schedstat.
    pub(crate) run: Duration,
    /// Times that it was put on a processor: the third one.
    pub(crate) slices: u64,
}

/// The threads of a process, in the order of their numbers.
pub(crate) fn threads(pid: u32) -> Vec<Thread> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let mut numbers: Vec<u64> =
        entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    numbers.sort_unstable();
    numbers.into_iter().filter_map(|number| thread(&format!("/proc/{pid}/task/{number}"))).collect()
}

/// `None` if it has ended meanwhile.
fn thread(dir: &str) -> Option<Thread> {
    let stat = fs::read_to_string(format!("{dir}/stat")).ok()?;
    let schedstat = fs::read_to_string(format!("{dir}/schedstat")).ok()?;
    let (before, after) = stat.rsplit_once(')')?;
    let numbers: Vec<u64> = schedstat.split_whitespace().map(|number| number.parse().unwrap()).collect();
    Some(Thread {
        name: before.split_once('(')?.1.to_owned(),
        state: after.trim_start().chars().next()?,
        run: Duration::from_nanos(numbers[0]),
        slices: numbers[2],
    })
}

/// Those whose names start with `prefix`.
pub(crate) fn threads_named(pid: u32, prefix: &str) -> Vec<Thread> {
    threads(pid).into_iter().filter(|thread| thread.name.starts_with(prefix)).collect()
}

/// Descriptors that the process has open.
pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Mappings of clients' channels that the process has.
pub(crate) fn channels(pid: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("kv-channel")).count()
}

/// Memory of the process that is in use, shared memory included.
pub(crate) fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

/// The threads of a server whose workers have gone to sleep.
pub(crate) fn at_rest(pid: u32) -> Vec<Thread> {
    let workers = |threads: &[Thread]| -> Vec<Thread> {
        threads.iter().filter(|thread| thread.name.starts_with("kv-worker")).cloned().collect()
    };
    let mut before = threads(pid);
    let mut since = Instant::now();
    wait_for("the workers sleep", || {
        let now = threads(pid);
        if workers(&now) != workers(&before) {
            (before, since) = (now, Instant::now());
            return None;
        }
        let is_asleep = workers(&now).iter().all(|worker| worker.state == 'S');
        // Looking for messages ends after less than a millisecond, and this is a hundred.
        (is_asleep && since.elapsed() > Duration::from_millis(100)).then_some(now)
    })
}
