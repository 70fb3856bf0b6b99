//! The processor time that a process has used, from the kernel's own account of each of its threads.

use std::collections::HashMap;
use std::path::PathBuf;

/// Nanoseconds on a processor by thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTimes {
    ns_by_thread: HashMap<String, u64>,
}

impl CpuTimes {
    /// Of all threads of process `pid` now; nothing if it is not there or the kernel does not say.
    pub fn read(pid: u32) -> Option<Self> {
        let tasks = PathBuf::from(format!("/proc/{pid}/task"));
        let mut ns_by_thread = HashMap::new();
        for task in std::fs::read_dir(tasks).ok()?.flatten() {
            // A thread may end between the listing and the reading.
            let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let ns = text.split_whitespace().next()?.parse().ok()?;
            ns_by_thread.insert(task.file_name().to_string_lossy().into_owned(), ns);
        }
        (!ns_by_thread.is_empty()).then_some(Self { ns_by_thread })
    }

    /// Seconds used between `earlier` and now, those of new threads included. What threads used that have ended
    /// meanwhile is lost.
    pub fn seconds_since(&self, earlier: &Self) -> f64 {
        let used = |(thread, ns): (&String, &u64)| {
            ns.saturating_sub(earlier.ns_by_thread.get(thread).copied().unwrap_or(0))
        };
        self.ns_by_thread.iter().map(used).sum::<u64>() as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: &[(&str, u64)]) -> CpuTimes {
        CpuTimes { ns_by_thread: of.iter().map(|(thread, ns)| ((*thread).into(), *ns)).collect() }
    }

    #[test]
    fn new_threads_count_and_ended_ones_do_not() {
        let before = times(&[("1", 1_000_000_000), ("2", 5)]);
        let after = times(&[("1", 1_500_000_000), ("3", 250_000_000)]);
        assert!((after.seconds_since(&before) - 0.75).abs() < 1e-12);
    }

    #[test]
    fn a_busy_process_uses_time_and_one_that_is_not_there_has_none() {
        let before = CpuTimes::read(std::process::id()).unwrap();
        let mut after = before.clone();
        let mut x = 0u64;
        while after.seconds_since(&before) <= 0.0 {
            x = std::hint::black_box(x.wrapping_mul(3) + 1);
            after = CpuTimes::read(std::process::id()).unwrap();
        }
        assert_eq!(CpuTimes::read(u32::MAX), None);
    }
}
