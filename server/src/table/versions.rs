//! Versions: one number per write, never used twice in the table's life.

use std::sync::atomic::{AtomicU64, Ordering};

use kv_common::layout::superblock;
use kv_common::limits::VERSION_RESERVE;
use kv_common::region::Words;
use parking_lot::Mutex;

/// The largest version that a table may start with. A billion writes per second take 73 years from here to 2^63, where
/// versions would look like blocks that are not live.
pub(super) const FIRST_VERSION_MAX: u64 = 3 << 61;

/// The next version, and the ceiling in the superblock that is raised before a version above it is used: after a crash
/// the next start begins at the ceiling.
pub(super) struct Versions {
    next: AtomicU64,
    /// What the superblock says.
    ceiling: AtomicU64,
    raising: Mutex<()>,
}

impl Versions {
    /// Starts at `first` and stores the first ceiling.
    pub(super) fn new(region: &Words, first: u64) -> Versions {
        assert!((1..=FIRST_VERSION_MAX).contains(&first), "checked by the caller");
        let versions =
            Versions { next: AtomicU64::new(first), ceiling: AtomicU64::new(first), raising: Mutex::new(()) };
        versions.raise(region, first);
        versions
    }

    /// A version above all that were given out before. Called under the stripes of the key that it is for, so that the
    /// versions of a key rise in the order of its writes.
    pub(super) fn next(&self, region: &Words) -> u64 {
        let version = self.next.fetch_add(1, Ordering::Relaxed);
        if version >= self.ceiling.load(Ordering::Acquire) {
            self.raise(region, version);
        }
        version
    }

    /// The next version, not drawn.
    pub(super) fn peek(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    #[cold]
    fn raise(&self, region: &Words, version: u64) {
        let _raising = self.raising.lock();
        let ceiling = self.ceiling.load(Ordering::Relaxed);
        if version >= ceiling {
            // Others may have drawn versions beyond this reserve meanwhile: each comes here and raises further.
            let ceiling = version + VERSION_RESERVE;
            region.store_release(superblock::VERSION_CEILING, ceiling);
            self.ceiling.store(ceiling, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_above_every_version_given_out() {
        let region = Words::zeroed(64);
        let versions = Versions::new(&region, 7);
        assert_eq!(versions.next(&region), 7);
        for _ in 0..2 * VERSION_RESERVE + 5 {
            assert!(versions.next(&region) < region.load(superblock::VERSION_CEILING));
        }
        assert_eq!(versions.next(&region), 7 + 2 * VERSION_RESERVE + 6);
    }
}
