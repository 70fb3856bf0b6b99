//! Shared receive queues: many queue pairs take their receives from one.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

use super::domain::ProtectionDomain;
use super::error::VerbError;
use super::receive::ReceiveBatch;
use super::requests::PostError;

/// Receives for all queue pairs that were made with it.
///
/// A queue pair that went to the error state may have taken a receive that has not completed yet. It will not complete
/// before [`QueuePairEvent::LastReceiveTaken`](super::QueuePairEvent::LastReceiveTaken) was reported: only then are its
/// buffers free.
pub struct SharedReceiveQueue {
    raw: NonNull<ibv_srq>,
    capacity: u32,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs may be called from any thread, also at once on one queue.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// A queue for at least `capacity` receives. `id` is what asynchronous events name it by.
    ///
    /// # Errors
    /// If the device cannot have it.
    pub fn create(
        domain: &Arc<ProtectionDomain>,
        capacity: u32,
        id: u64,
    ) -> Result<Arc<SharedReceiveQueue>, VerbError> {
        let mut options = ibv_srq_init_attr {
            srq_context: id as usize as *mut _,
            attr: ibv_srq_attr { max_wr: capacity.max(1), max_sge: 1, srq_limit: 0 },
        };
        // SAFETY: the domain lives; the options are valid; `id` is never dereferenced.
        let raw = unsafe { rdma_sys::ibv_create_srq(domain.as_ptr(), &mut options) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            VerbError::last(
                "ibv_create_srq",
                format!("{capacity} receives on {}", domain.context().device().name),
            )
        })?;
        let capacity = options.attr.max_wr.max(capacity);
        Ok(Arc::new(SharedReceiveQueue { raw, capacity, domain: Arc::clone(domain) }))
    }

    /// Receives that it holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Posts receives and empties the batch.
    ///
    /// # Errors
    /// If the queue has no room for all: those that were not taken stay in the batch.
    pub fn post(&self, batch: &mut ReceiveBatch) -> Result<(), PostError> {
        batch.post("ibv_post_srq_recv", |first, refused: &mut *mut _| {
            // SAFETY: the queue lives; `first` is a list of valid requests that nobody else uses during this call. Their
            // ranges were made from memory that is registered for local writes; if it is so no more, the device refuses.
            unsafe { rdma_sys::ibv_post_srq_recv(self.raw.as_ptr(), first, ptr::from_mut(refused)) }
        })
    }

    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep an `Arc` of their shared queue, so none uses it any more; destroyed once.
        if unsafe { rdma_sys::ibv_destroy_srq(self.raw.as_ptr()) } != 0 {
            tracing::error!(
                device = self.domain.context().device().name,
                "a shared receive queue could not be destroyed"
            );
        }
    }
}
