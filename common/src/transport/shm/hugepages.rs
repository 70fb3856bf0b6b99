//! How many pages of 2 MiB the machine can give, and what to tell who wants more.

use std::fmt;
use std::fs;
use std::path::Path;

/// Bytes of a hugepage. Every region's length is a multiple of it, whatever pages it is made of.
pub const HUGEPAGE_BYTES: u64 = 2 * 1024 * 1024;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const TRANSPARENT_SHMEM: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Which pages a region may be made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PagePolicy {
    /// Hugepages if there are enough, else ordinary pages and a [`HugepageShortfall`] to be logged.
    #[default]
    Auto,
    /// Hugepages, else an error.
    Require,
    /// Ordinary pages.
    Off,
}

/// The pages that a region is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 2 MiB pages of the hugepage pool.
    Huge,
    /// Ordinary pages, with or without the kernel's leave to merge them to 2 MiB by itself.
    Ordinary {
        /// True if the kernel's settings allow transparent hugepages for such memory.
        transparent_huge: bool,
    },
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge => "2 MiB hugepages",
            Pages::Ordinary { transparent_huge: true } => {
                "ordinary pages, transparent hugepages where the kernel likes"
            }
            Pages::Ordinary { transparent_huge: false } => "ordinary pages",
        })
    }
}

/// The machine did not give the hugepages that were wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugepageShortfall {
    /// Hugepages that the region needs.
    pub wanted: u64,
    /// Hugepages in the pool that are neither used nor promised to someone.
    pub free: u64,
    /// `wanted - free`, or zero if the kernel refused although there were enough (see `refusal`).
    pub missing: u64,
    /// What to run as root to get them.
    pub command: String,
    /// What the kernel said, if the pool seemed large enough.
    pub refusal: Option<String>,
}

impl fmt::Display for HugepageShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} hugepages of 2 MiB wanted, {} free", self.wanted, self.free)?;
        match &self.refusal {
            Some(refusal) => write!(
                f,
                ", but the kernel refused them ({refusal}): look for a limit of this process's control group (hugetlb.2MB.max)"
            ),
            None => write!(f, ", {} missing; as root: {}", self.missing, self.command),
        }
    }
}

/// The pool of 2 MiB pages at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugepagePool {
    /// Pages in the pool.
    pub total: u64,
    /// Pages that are neither used nor promised to a mapping.
    pub free: u64,
}

impl HugepagePool {
    /// The pool as the kernel tells it; empty if the kernel has none.
    pub fn now() -> HugepagePool {
        let count = |file: &str| read_number(&Path::new(POOL).join(file)).unwrap_or(0);
        let free = count("free_hugepages").saturating_sub(count("resv_hugepages"));
        HugepagePool { total: count("nr_hugepages"), free }
    }

    /// What this pool lacks for `wanted` pages; `None` if it lacks nothing.
    pub fn shortfall(self, wanted: u64) -> Option<HugepageShortfall> {
        let missing = wanted.checked_sub(self.free).filter(|&missing| missing > 0)?;
        let command = format!("sysctl vm.nr_hugepages={}", self.total.saturating_add(missing));
        Some(HugepageShortfall { wanted, free: self.free, missing, command, refusal: None })
    }

    /// What to say when the kernel refused `wanted` pages. Somebody else may have been faster, which shows in the pool.
    pub(super) fn refused(self, wanted: u64, refusal: String) -> HugepageShortfall {
        self.shortfall(wanted).unwrap_or_else(|| HugepageShortfall {
            wanted,
            free: self.free,
            missing: 0,
            command: format!("sysctl vm.nr_hugepages={}", self.total.max(wanted)),
            refusal: Some(refusal),
        })
    }
}

/// True if the kernel may use transparent hugepages for shared memory that asks for them.
pub(super) fn transparent_shmem() -> bool {
    fs::read_to_string(TRANSPARENT_SHMEM).is_ok_and(|modes| allows_transparent(&modes))
}

fn allows_transparent(modes: &str) -> bool {
    ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|mode| modes.contains(mode))
}

/// Bytes that can be had as ordinary memory without driving the machine or the control group out of memory; `None` if
/// the kernel does not tell.
pub(super) fn available_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let available = mem_available_bytes(&meminfo)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = control_groups_left_bytes(Path::new("/sys/fs/cgroup"), &groups);
    Some(left.map_or(available, |left| left.min(available)))
}

fn mem_available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The least that is left to any of the control groups (version 2) in `groups`, the text of cgroup(7)'s
/// `/proc/self/cgroup`; `None` if none of them has a limit. `root` is where they are mounted.
fn control_groups_left_bytes(root: &Path, groups: &str) -> Option<u64> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    root.join(own)
        .ancestors()
        .take_while(|group| group.starts_with(root))
        .filter_map(control_group_left_bytes)
        .min()
}

/// What a control group may still take: its limit less what it and those below it use. The cache of files counts as
/// free, as it does in `MemAvailable`: the kernel gives it up before it refuses memory. (Shared memory is not in it.)
fn control_group_left_bytes(group: &Path) -> Option<u64> {
    let limit = read_number(&group.join("memory.max"))?;
    let charged = read_number(&group.join("memory.current")).unwrap_or(0);
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cache = ["inactive_file ", "active_file "].iter().filter_map(|&name| {
        stat.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok()
    });
    let used = cache.fold(charged, u64::saturating_sub);
    Some(limit.saturating_sub(used))
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_the_pool_that_would_be_enough() {
        let pool = HugepagePool { total: 10, free: 3 };
        let shortfall = pool.shortfall(8).unwrap();
        // Seven are in use and stay so: 7 + 8 = 15.
        assert_eq!(shortfall.command, "sysctl vm.nr_hugepages=15");
        assert_eq!((shortfall.wanted, shortfall.free, shortfall.missing), (8, 3, 5));
        assert_eq!(
            shortfall.to_string(),
            "8 hugepages of 2 MiB wanted, 3 free, 5 missing; as root: sysctl vm.nr_hugepages=15"
        );
        assert_eq!(pool.shortfall(3), None);
    }

    #[test]
    fn a_refusal_in_spite_of_free_pages_says_what_the_kernel_said() {
        let shortfall = HugepagePool { total: 10, free: 9 }.refused(8, "Cannot allocate memory".into());
        assert_eq!(shortfall.missing, 0);
        assert!(shortfall.to_string().contains("Cannot allocate memory"), "{shortfall}");
        let raced = HugepagePool { total: 10, free: 0 }.refused(8, "Cannot allocate memory".into());
        assert_eq!((raced.missing, raced.refusal), (8, None));
    }

    #[test]
    fn kernel_files_are_understood() {
        assert!(allows_transparent("always within_size [advise] never deny force\n"));
        assert!(!allows_transparent("always within_size advise [never] deny force\n"));
        let meminfo = "MemTotal:       32000 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(mem_available_bytes(meminfo), Some(2 * 1024 * 1024));
        assert_eq!(mem_available_bytes("MemTotal: 1 kB\n"), None);
    }

    #[test]
    fn what_a_control_group_uses_is_not_available() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, files: &[(&str, &str)]| {
            let group = root.path().join(path);
            fs::create_dir_all(&group).unwrap();
            files.iter().for_each(|(name, text)| fs::write(group.join(name), text).unwrap());
        };
        let left = |groups: &str| control_groups_left_bytes(root.path(), groups);
        group("a/b/c", &[("memory.max", "max\n"), ("memory.current", "5000\n")]);
        assert_eq!(left("0::/a/b/c\n"), None, "nobody has a limit");
        group("a/b", &[("memory.max", "10000\n"), ("memory.current", "7000\n")]);
        assert_eq!(left("4:memory:/x\n0::/a/b/c\n"), Some(3000), "the limit of a group above");
        // 1500 of what is used is cache of files, and 400 of the 2000 of `file` shared memory.
        let stat = "anon 5000\nfile 2000\nshmem 400\ninactive_file 1000\nactive_file 500\n";
        group("a/b", &[("memory.stat", stat)]);
        assert_eq!(left("0::/a/b/c\n"), Some(4500));
        group("a", &[("memory.max", "9000\n"), ("memory.current", "8000\n")]);
        assert_eq!(left("0::/a/b/c\n"), Some(1000), "the tightest group counts");
        group("a/b/c", &[("memory.max", "4000\n")]);
        assert_eq!(left("0::/a/b/c\n"), Some(0), "more used than a lowered limit allows");
        assert_eq!(left("4:memory:/x\n"), None, "no group of version 2");
    }
}
