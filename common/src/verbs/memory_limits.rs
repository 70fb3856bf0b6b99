//! What limits the registration of memory, looked at before the device is asked.

use std::fmt;
use std::fs;

use rustix::process::{Resource, getrlimit};

use super::error::VerbError;

/// `CAP_IPC_LOCK` of linux/capability.h: its holder is not bound by RLIMIT_MEMLOCK.
const CAP_IPC_LOCK: u32 = 14;

/// The limits that hold for one registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes that were asked for.
    pub wanted_bytes: u64,
    /// Bytes of the pages that the memory is made of, if known.
    pub page_bytes: Option<u64>,
    /// RLIMIT_MEMLOCK, soft; none is no limit.
    pub memlock_soft_bytes: Option<u64>,
    /// RLIMIT_MEMLOCK, hard; none is no limit.
    pub memlock_hard_bytes: Option<u64>,
    /// Bytes that this process has registered or locked already.
    pub locked_bytes: u64,
    /// True if RLIMIT_MEMLOCK does not bind this process.
    pub may_lock_all: bool,
    /// Bytes of the device's largest memory region.
    pub region_max_bytes: u64,
}

/// Why memory was not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// There is nothing to register.
    #[error("memory of 0 bytes cannot be registered")]
    Empty,
    /// The device cannot have a region of this size. It is never cut to what fits.
    #[error(
        "the device registers at most max_mr_size bytes at once: {0}; use less memory, or another device"
    )]
    BeyondDevice(Box<MemoryLimits>),
    /// The process may not lock that much.
    #[error("the process may not lock that much memory: {0}{remedy}", remedy = MEMLOCK_REMEDY)]
    BeyondMemlock(Box<MemoryLimits>),
    /// The device or the kernel refused.
    #[error("{error}: {limits}{}", refused_remedy(error))]
    Refused {
        /// What the verb said.
        error: VerbError,
        /// What is known about limits.
        limits: Box<MemoryLimits>,
    },
    /// The limits could not be found out.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

const MEMLOCK_REMEDY: &str = "; allow it: in a shell `ulimit -l unlimited` (as root, or after raising the hard limit in \
     /etc/security/limits.d), in a systemd unit `LimitMEMLOCK=infinity`, in a container `--ulimit memlock=-1:-1` or \
     `--cap-add=IPC_LOCK`";

fn refused_remedy(error: &VerbError) -> &'static str {
    match error.errno() {
        Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM) => MEMLOCK_REMEDY,
        Some(libc::EFAULT) => "; part of the memory is not mapped, or not writable",
        Some(libc::EOPNOTSUPP) => "; memory of this kind (a file, device memory) cannot be registered",
        _ => "",
    }
}

impl MemoryLimits {
    /// The limits for `wanted_bytes` at `address` now.
    pub(super) fn now(wanted_bytes: u64, region_max_bytes: u64) -> MemoryLimits {
        let memlock = getrlimit(Resource::Memlock);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        MemoryLimits {
            wanted_bytes,
            page_bytes: None,
            memlock_soft_bytes: memlock.current,
            memlock_hard_bytes: memlock.maximum,
            locked_bytes: kib_of(&status, "VmPin:") + kib_of(&status, "VmLck:"),
            may_lock_all: has_capability(&status, CAP_IPC_LOCK),
            region_max_bytes,
        }
    }

    /// Adds what takes long to find out, for an error.
    pub(super) fn with_pages_at(mut self, address: usize) -> MemoryLimits {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        self.page_bytes = page_bytes_at(&maps, address);
        self
    }

    /// Whether the registration can succeed.
    pub(super) fn check(self) -> Result<MemoryLimits, RegisterError> {
        if self.wanted_bytes == 0 {
            return Err(RegisterError::Empty);
        }
        if self.wanted_bytes > self.region_max_bytes {
            return Err(RegisterError::BeyondDevice(Box::new(self)));
        }
        let after = self.locked_bytes.saturating_add(self.wanted_bytes);
        if !self.may_lock_all && self.memlock_soft_bytes.is_some_and(|limit| after > limit) {
            return Err(RegisterError::BeyondMemlock(Box::new(self)));
        }
        Ok(self)
    }
}

impl fmt::Display for MemoryLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit =
            |bytes: Option<u64>| bytes.map_or("unlimited".to_owned(), |bytes| format!("{bytes} bytes"));
        write!(f, "{} bytes wanted", self.wanted_bytes)?;
        if let Some(page_bytes) = self.page_bytes {
            write!(f, " in pages of {page_bytes}")?;
        }
        write!(
            f,
            ", {} bytes locked already; RLIMIT_MEMLOCK soft {}, hard {}{}; max_mr_size {} bytes",
            self.locked_bytes,
            limit(self.memlock_soft_bytes),
            limit(self.memlock_hard_bytes),
            if self.may_lock_all { " (not binding: CAP_IPC_LOCK)" } else { "" },
            self.region_max_bytes,
        )
    }
}

/// The bytes of a line `NAME   N kB` of /proc/self/status; 0 if there is none.
fn kib_of(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn has_capability(status: &str, number: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|rest| u64::from_str_radix(rest.trim(), 16).ok())
        .is_some_and(|mask| mask >> number & 1 == 1)
}

/// `KernelPageSize` of the mapping that `address` is in, from the text of /proc/self/smaps.
fn page_bytes_at(smaps: &str, address: usize) -> Option<u64> {
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let bounds = range.and_then(|(from, to)| {
            Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
        });
        if let Some((from, to)) = bounds {
            inside = (from..to).contains(&address);
        } else if inside && line.starts_with("KernelPageSize:") {
            return Some(kib_of(line, "KernelPageSize:")).filter(|&bytes| bytes > 0);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> MemoryLimits {
        MemoryLimits {
            wanted_bytes: 64 << 20,
            page_bytes: Some(4096),
            memlock_soft_bytes: Some(8 << 20),
            memlock_hard_bytes: None,
            locked_bytes: 1 << 20,
            may_lock_all: false,
            region_max_bytes: 1 << 30,
        }
    }

    #[test]
    fn what_cannot_succeed_is_refused_with_numbers_and_remedy() {
        let text = limits().check().unwrap_err().to_string();
        for part in
            ["67108864 bytes", "pages of 4096", "soft 8388608", "hard unlimited", "max_mr_size 1073741824"]
        {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        for part in ["ulimit -l", "LimitMEMLOCK=infinity", "--cap-add=IPC_LOCK"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
        let larger = MemoryLimits { wanted_bytes: 2 << 30, ..limits() };
        assert!(matches!(larger.check(), Err(RegisterError::BeyondDevice(_))));
        assert!(matches!(MemoryLimits { wanted_bytes: 0, ..limits() }.check(), Err(RegisterError::Empty)));
    }

    #[test]
    fn limits_are_exact_and_count_what_is_locked() {
        let fits = MemoryLimits { wanted_bytes: 7 << 20, ..limits() };
        assert!(fits.clone().check().is_ok());
        assert!(MemoryLimits { wanted_bytes: (7 << 20) + 1, ..fits.clone() }.check().is_err());
        assert!(MemoryLimits { may_lock_all: true, ..limits() }.check().is_ok());
        assert!(MemoryLimits { memlock_soft_bytes: None, ..limits() }.check().is_ok());
    }

    #[test]
    fn the_kernel_s_text_is_understood() {
        let status = "Name:\tx\nVmLck:\t       4 kB\nVmPin:\t   65536 kB\nCapEff:\t0000000000004000\n";
        assert_eq!(kib_of(status, "VmPin:"), 64 << 20);
        assert_eq!(kib_of(status, "VmNone:"), 0);
        assert!(has_capability(status, CAP_IPC_LOCK));
        assert!(!has_capability(status, CAP_IPC_LOCK + 1));
        let smaps = "7f0000000000-7f0000200000 rw-s 00000000 00:0f 3 /anon_hugepage (deleted)\nSize: 2048 kB\n\
                     KernelPageSize:     2048 kB\n7f0000200000-7f0000201000 rw-p 00000000 00:00 0\n\
                     KernelPageSize:        4 kB\n";
        assert_eq!(page_bytes_at(smaps, 0x7f00_001f_ffff), Some(2 << 20));
        assert_eq!(page_bytes_at(smaps, 0x7f00_0020_0000), Some(4096));
        assert_eq!(page_bytes_at(smaps, 0x1000), None);
    }
}
