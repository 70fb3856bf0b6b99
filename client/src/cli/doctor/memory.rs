//! Memory: what may be locked, and huge pages.

use kv_common::transport::shm::mapping::HugepagePool;
use rustix::process::{Resource, getrlimit};

use super::Finding;

/// What a client registers at most by itself: its READ buffers and its staging area.
const CLIENT_LOCKS_BYTES: u64 = 16 << 20;

pub(super) fn check() -> Vec<Finding> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let memlock = getrlimit(Resource::Memlock).current;
    vec![memlock_finding(memlock, may_lock_all(&status)), hugepages_finding(HugepagePool::now())]
}

/// CAP_IPC_LOCK, bit 14 of the effective capabilities.
fn may_lock_all(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
}

fn memlock_finding(limit: Option<u64>, may_lock_all: bool) -> Finding {
    const CHECK: &str = "memlock";
    let remedy = "`ulimit -l unlimited` (limits.d), LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1:-1 for \
                  a container; the server needs at least its --memory";
    match limit {
        None => Finding::ok(CHECK, "unlimited"),
        Some(bytes) if may_lock_all => {
            Finding::ok(CHECK, format!("{bytes} bytes, not binding: this process has CAP_IPC_LOCK"))
        }
        Some(bytes) if bytes < CLIENT_LOCKS_BYTES => Finding::failed(
            CHECK,
            format!("{bytes} bytes may be locked; a client over RDMA registers up to {CLIENT_LOCKS_BYTES}"),
            remedy,
        ),
        Some(bytes) => Finding::warning(
            CHECK,
            format!(
                "{bytes} bytes may be locked: enough for a client, and for a server with less memory than that"
            ),
            remedy,
        ),
    }
}

fn hugepages_finding(pool: HugepagePool) -> Finding {
    const CHECK: &str = "hugepages";
    let found = format!("{} free of {} pages of 2 MiB", pool.free, pool.total);
    if pool.free == 0 {
        let remedy = "a server wants its --memory divided by 2 MiB, and two more: sysctl vm.nr_hugepages=N (best at boot: \
                      hugepages=N); without them it takes ordinary pages, which a network adapter translates more slowly";
        return Finding::warning(CHECK, found, remedy);
    }
    Finding::ok(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn memlock_is_judged_by_limit_and_capability() {
        let level = |limit, may| memlock_finding(limit, may).level;
        assert_eq!(level(None, false), Level::Ok);
        assert_eq!(level(Some(64 << 10), true), Level::Ok);
        assert_eq!(level(Some(64 << 10), false), Level::Failed);
        assert_eq!(level(Some(64 << 20), false), Level::Warning);
        assert!(may_lock_all("CapEff:\t000001ffffffffff\n") && !may_lock_all("CapEff:\t0000000000000000\n"));
    }

    #[test]
    fn hugepages_are_good_if_some_are_free() {
        let finding = hugepages_finding(HugepagePool { total: 900, free: 100 });
        assert_eq!((finding.level, &*finding.found), (Level::Ok, "100 free of 900 pages of 2 MiB"));
        let none = hugepages_finding(HugepagePool { total: 900, free: 0 });
        assert_eq!(none.level, Level::Warning);
        assert!(none.remedy.unwrap().contains("vm.nr_hugepages"));
    }
}
