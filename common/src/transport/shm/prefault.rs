//! Making all pages of a mapping, so that no access fails later.

use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use memmap2::{Advice, MmapRaw};

/// Bytes per call into the kernel: between two calls progress is told, and a stop is noticed.
const CHUNK_BYTES: usize = 64 * 1024 * 1024;

/// Clearing pages is bound by the memory's bandwidth, which a few cores use up.
const THREADS_MAX: usize = 8;

/// How far the pages of a region are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefaultProgress {
    /// Bytes that have their pages.
    pub done_bytes: u64,
    /// Bytes of the region.
    pub total_bytes: u64,
}

/// The kernel could not make a page.
#[derive(Debug)]
pub(super) struct PrefaultError {
    /// Start of the chunk in which it happened.
    pub(super) at_bytes: u64,
    pub(super) source: io::Error,
}

/// Makes all pages of `mapping`, on several cores, or says why that is impossible. `progress` is called by this thread
/// after each chunk.
pub(super) fn prefault(
    mapping: &MmapRaw,
    progress: &mut dyn FnMut(PrefaultProgress),
) -> Result<(), PrefaultError> {
    let total = mapping.len();
    let chunks = total.div_ceil(CHUNK_BYTES);
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX).min(chunks);
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (report, reports) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (report, next, stop) = (report.clone(), &next, &stop);
            thread::Builder::new()
                .spawn_scoped(scope, move || populate_chunks(mapping, next, stop, report))
                .map_err(|source| {
                    stop.store(true, Ordering::Relaxed);
                    PrefaultError { at_bytes: 0, source }
                })?;
        }
        drop(report);
        let mut done = 0;
        let mut result = Ok(());
        for populated in reports {
            match populated {
                Ok(bytes) => {
                    done += bytes;
                    progress(PrefaultProgress { done_bytes: done as u64, total_bytes: total as u64 });
                }
                Err(error) => {
                    stop.store(true, Ordering::Relaxed);
                    result = Err(error);
                }
            }
        }
        result
    })
}

/// One thread's share: chunk after chunk until there are no more, or somebody failed.
fn populate_chunks(
    mapping: &MmapRaw,
    next: &AtomicUsize,
    stop: &AtomicBool,
    report: mpsc::Sender<Result<usize, PrefaultError>>,
) {
    while !stop.load(Ordering::Relaxed) {
        let at = next.fetch_add(CHUNK_BYTES, Ordering::Relaxed);
        if at >= mapping.len() {
            break;
        }
        let bytes = CHUNK_BYTES.min(mapping.len() - at);
        let populated = mapping
            .advise_range(Advice::PopulateWrite, at, bytes)
            .map(|()| bytes)
            .map_err(|source| PrefaultError { at_bytes: at as u64, source });
        let failed = populated.is_err();
        // The receiver outlives the threads: it ends when all of them are done.
        if report.send(populated).is_err() || failed {
            break;
        }
    }
}
