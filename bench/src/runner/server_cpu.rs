//! The processor time that a process has used, from the kernel's own account of each of its threads.

use std::collections::HashMap;
use std::path::PathBuf;

/// Nanoseconds on a processor by thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTimes {
    ns_by_thread: HashMap<String, u64>,
}

impl CpuTimes {
    /// Of all threads of process `pid` now; nothing if it is not there, has ended without being reaped, or the kernel
    /// does not say.
    pub fn read(pid: u32) -> Option<Self> {
        if has_ended(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?) {
            return None;
        }
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

    /// Seconds used between `earlier` and now, those of new threads included. Nothing if a thread has ended
    /// meanwhile: what it used is not known, and the sum of the others would be too small.
    pub fn seconds_since(&self, earlier: &Self) -> Option<f64> {
        if earlier.ns_by_thread.keys().any(|thread| !self.ns_by_thread.contains_key(thread)) {
            return None;
        }
        let used = |(thread, ns): (&String, &u64)| {
            ns.saturating_sub(earlier.ns_by_thread.get(thread).copied().unwrap_or(0))
        };
        Some(self.ns_by_thread.iter().map(used).sum::<u64>() as f64 / 1e9)
    }
}

/// Whether `stat` of a process says that it is a zombie or being removed. The state follows the name, which is in
/// parentheses and may hold any character.
fn has_ended(stat: &str) -> bool {
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    use super::*;

    fn times(of: &[(&str, u64)]) -> CpuTimes {
        CpuTimes { ns_by_thread: of.iter().map(|(thread, ns)| ((*thread).into(), *ns)).collect() }
    }

    #[test]
    fn new_threads_count() {
        let before = times(&[("1", 1_000_000_000), ("2", 5)]);
        let after = times(&[("1", 1_500_000_000), ("2", 5), ("3", 250_000_000)]);
        assert_eq!(after.seconds_since(&before), Some(0.75));
    }

    #[test]
    fn nothing_is_known_once_a_thread_has_ended() {
        let before = times(&[("1", 1_000_000_000), ("2", 5)]);
        let after = times(&[("1", 1_500_000_000), ("3", 250_000_000)]);
        assert_eq!(after.seconds_since(&before), None);
    }

    #[test]
    fn a_zombie_has_no_times() {
        assert!(has_ended("7 (kv) S (x) Z 1 7"));
        assert!(!has_ended("7 (kv) Z 1) S 1 7"));
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        assert!(CpuTimes::read(child.id()).is_some());
        drop(child.stdin.take());
        // Waits for the end without reaping.
        let pid = Pid::from_child(&child);
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        assert_eq!(CpuTimes::read(child.id()), None);
        child.wait().unwrap();
    }

    #[test]
    fn a_busy_process_uses_time_and_one_that_is_not_there_has_none() {
        // Not this process: threads of other tests end meanwhile.
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let before = CpuTimes::read(child.id()).unwrap();
        let mut used_s = Some(0.0);
        while used_s == Some(0.0) {
            std::thread::yield_now();
            used_s = CpuTimes::read(child.id()).and_then(|after| after.seconds_since(&before));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used_s > Some(0.0), "{used_s:?}");
        assert_eq!(CpuTimes::read(u32::MAX), None);
    }
}
