//! Completion queues.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_cq, ibv_wc};

use super::completion::Completion;
use super::completion_channel::CompletionChannel;
use super::context::Context;
use super::error::{VerbError, check};

/// Where completions of one or more queue pairs arrive.
///
/// To sleep: poll, [arm](CompletionQueue::arm), poll again (something may have come in between), and only then wait for
/// the channel's descriptor; then take the channel's events and begin again.
pub struct CompletionQueue {
    raw: NonNull<ibv_cq>,
    capacity: u32,
    id: u64,
    channel: Option<Arc<CompletionChannel>>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread, also at once on one queue: polling takes the queue's lock.
unsafe impl Send for CompletionQueue {}
// SAFETY: as for `Send`.
unsafe impl Sync for CompletionQueue {}

/// Room for the completions of one poll, to be reused.
pub struct Completions(Box<[ibv_wc]>);

// SAFETY: its fields are integers; the union in it holds one.
unsafe impl Send for Completions {}

impl Completions {
    /// Room for `capacity` completions, at least one.
    pub fn with_capacity(capacity: usize) -> Completions {
        // SAFETY: every field of `ibv_wc` is an integer or a union of integers, for which zero is a value.
        Completions((0..capacity.max(1)).map(|_| unsafe { mem::zeroed() }).collect())
    }
}

impl CompletionQueue {
    /// A queue for at least `capacity` completions, which must never be exceeded: a queue that overruns breaks everything
    /// attached to it. `id` is what the channel's events name it by. `vector` is the interrupt that it uses; it is taken
    /// modulo those that there are.
    ///
    /// # Errors
    /// If the device has no such queue left.
    pub fn create(
        context: &Arc<Context>,
        capacity: u32,
        id: u64,
        channel: Option<&Arc<CompletionChannel>>,
        vector: u32,
    ) -> Result<Arc<CompletionQueue>, VerbError> {
        let error = |error: VerbError| VerbError {
            subject: format!("{capacity} entries on {}", context.device().name),
            ..error
        };
        if channel.is_some_and(|channel| !Arc::ptr_eq(channel.context(), context)) {
            return Err(error(VerbError::from_errno("ibv_create_cq", "", libc::EINVAL)));
        }
        let entries = i32::try_from(capacity.max(1));
        let entries = entries.map_err(|_| error(VerbError::from_errno("ibv_create_cq", "", libc::EINVAL)))?;
        // SAFETY: the context is open, the channel (or null) is of this context; `id` is never dereferenced.
        let raw = unsafe {
            rdma_sys::ibv_create_cq(
                context.as_ptr(),
                entries,
                id as usize as *mut _,
                channel.map_or(ptr::null_mut(), |channel| channel.as_ptr()),
                (vector % context.completion_vectors().max(1)).cast_signed(),
            )
        };
        let raw = NonNull::new(raw).ok_or_else(|| error(VerbError::last("ibv_create_cq", "")))?;
        // SAFETY: the queue was just made.
        let granted = unsafe { raw.as_ref() }.cqe;
        Ok(Arc::new(CompletionQueue {
            raw,
            capacity: u32::try_from(granted).unwrap_or(capacity),
            id,
            channel: channel.cloned(),
            context: Arc::clone(context),
        }))
    }

    /// Completions that it holds.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// What its channel's events name it by.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its channel.
    pub fn channel(&self) -> Option<&Arc<CompletionChannel>> {
        self.channel.as_ref()
    }

    /// Takes what has arrived, as much as there is room for, in order.
    ///
    /// # Errors
    /// If the queue is broken, for instance by an overrun.
    #[inline]
    pub fn poll<'room>(
        &self,
        room: &'room mut Completions,
    ) -> Result<impl ExactSizeIterator<Item = Completion<'room>> + use<'room>, VerbError> {
        let entries = i32::try_from(room.0.len()).unwrap_or(i32::MAX);
        // SAFETY: the queue lives and `room` has place for `entries` completions.
        let found = unsafe { rdma_sys::ibv_poll_cq(self.as_ptr(), entries, room.0.as_mut_ptr()) };
        let found = usize::try_from(found).map_err(|_| {
            VerbError::from_errno("ibv_poll_cq", self.context.device().name.clone(), found.saturating_neg())
        })?;
        Ok(room.0[..found].iter().map(Completion::new))
    }

    /// Asks for one event on the channel at the next completion; with `solicited_only`, at the next one that its sender
    /// marked, or that failed. Poll once more before waiting.
    ///
    /// # Errors
    /// If the device refuses.
    pub fn arm(&self, solicited_only: bool) -> Result<(), VerbError> {
        // SAFETY: the queue lives.
        let returned = unsafe { rdma_sys::ibv_req_notify_cq(self.as_ptr(), i32::from(solicited_only)) };
        check("ibv_req_notify_cq", returned, || self.context.device().name.clone())
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs keep an `Arc` of their queues, so none uses it any more; every event taken was acknowledged
        // at once, so this does not wait; destroyed once.
        if unsafe { rdma_sys::ibv_destroy_cq(self.raw.as_ptr()) } != 0 {
            tracing::error!(device = self.context.device().name, "a completion queue could not be destroyed");
        }
    }
}
