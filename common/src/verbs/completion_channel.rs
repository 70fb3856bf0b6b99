//! Completion channels: sleep until a completion queue has something.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::ibv_comp_channel;

use super::context::{Context, nonblocking};
use super::error::VerbError;

/// Events of completion queues, through a descriptor that can be waited for.
pub struct CompletionChannel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread, and the pointer is only used in such calls.
unsafe impl Send for CompletionChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// A new one.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn create(context: &Arc<Context>) -> Result<Arc<CompletionChannel>, VerbError> {
        let subject = || context.device().name.clone();
        // SAFETY: the context is open; the result is checked for null.
        let raw = unsafe { rdma_sys::ibv_create_comp_channel(context.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| VerbError::last("ibv_create_comp_channel", subject()))?;
        let channel = CompletionChannel { raw, context: Arc::clone(context) };
        nonblocking(channel.fd()).map_err(|source| VerbError {
            verb: "fcntl",
            subject: subject(),
            source,
        })?;
        Ok(Arc::new(channel))
    }

    /// Becomes readable when an armed queue got a completion.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, and the field does not change.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the library closes it in `drop`; the result borrows `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Takes one event: the id of the queue that got a completion. That queue is not armed any more. `None`: no event.
    ///
    /// # Errors
    /// If the channel is broken.
    pub fn next_event(&self) -> Result<Option<u64>, VerbError> {
        let (mut queue, mut id) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives; both places are valid for one pointer.
        if unsafe { rdma_sys::ibv_get_cq_event(self.as_ptr(), &mut queue, &mut id) } != 0 {
            let error = VerbError::last("ibv_get_cq_event", self.context.device().name.clone());
            return if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        // SAFETY: `ibv_destroy_cq` waits until each event that was taken is acknowledged, so the queue is still there. Once.
        unsafe { rdma_sys::ibv_ack_cq_events(queue, 1) };
        Ok(Some(id as usize as u64))
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.raw.as_ptr()
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        // SAFETY: queues keep an `Arc` of their channel, so none uses it any more; destroyed once.
        if unsafe { rdma_sys::ibv_destroy_comp_channel(self.raw.as_ptr()) } != 0 {
            tracing::error!(
                device = self.context.device().name,
                "a completion channel could not be destroyed"
            );
        }
    }
}
