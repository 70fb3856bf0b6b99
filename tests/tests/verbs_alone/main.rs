//! What only RDMA can show, with nobody else on the device. Needs an RDMA device.

#[path = "../live/mod.rs"]
mod live;

mod handshakes;
#[cfg(feature = "verbs")]
mod hostile;
#[cfg(feature = "verbs")]
mod meeting;
mod raw_reads;
#[cfg(feature = "verbs")]
mod registered;
mod stopped;

/// Taken by each of these tests: they count what the device and the processors do.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
