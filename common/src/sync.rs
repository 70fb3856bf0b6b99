//! The atomics of the product, or loom's when the model checker runs (`--cfg loom`).
//!
//! Everything that touches shared words takes its atomics from here, so that what loom explores is the product's own
//! source and no stand-in.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// One round of a bounded busy-wait.
#[inline]
pub fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
