//! Queue pairs, whose type knows kind and state.
//!
//! ```text
//!   Reset --initialize--> Init --ready_to_receive--> ReadyToReceive --ready_to_send--> ReadyToSend
//!                          |             |                  |                               |
//!                          +-------------+--- into_error ---+-------------------------------+--> Error --reset--> Reset
//! ```
//! A step that fails destroys the queue pair. The device may put a queue pair into the error state at any time; then
//! requests of a `ReadyToSend` one complete with errors, and [`QueuePair::into_error`] makes the type follow.
#![allow(unsafe_code, reason = "calls libibverbs")]

mod kind;
mod post;
mod state;
mod transition;

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys::{ibv_qp, ibv_qp_cap, ibv_qp_init_attr};

pub use kind::{Connected, Kind, Rc, Uc, Ud, Writes};
pub use state::{Error, Init, Posts, ReadyToReceive, ReadyToSend, Receives, Reset, State};
pub use transition::RemoteRights;

use super::address_handle::AddressHandle;
use super::completion_queue::CompletionQueue;
use super::domain::ProtectionDomain;
use super::error::VerbError;
use super::shared_receive::SharedReceiveQueue;

/// A queue pair of kind `K` in state `S`.
pub struct QueuePair<K: Kind, S: State> {
    inner: Inner,
    _type: PhantomData<(K, S)>,
}

/// The device's object and all that it depends on.
struct Inner {
    raw: NonNull<ibv_qp>,
    capacity: Capacity,
    uses_shared_receive: bool,
    domain: Arc<ProtectionDomain>,
    /// Those that datagrams were sent to; the device may still use one.
    handles: Vec<Arc<AddressHandle>>,
    /// Kept alive, and never used through here.
    _queues: (Arc<CompletionQueue>, Arc<CompletionQueue>, Option<Arc<SharedReceiveQueue>>),
}

// SAFETY: libibverbs may be called from any thread; one at a time uses it, because everything takes `&mut self` or `self`.
unsafe impl Send for Inner {}
// SAFETY: through `&Inner` only fields are read that never change, and the state is queried, which libibverbs allows.
unsafe impl Sync for Inner {}

/// How many requests a queue pair takes, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Requests in the send queue.
    pub sends: u32,
    /// Receives in its own receive queue; with a shared one it has none.
    pub receives: u32,
    /// Bytes of an inline request.
    pub inline_bytes: u32,
}

/// What a queue pair is made of.
#[derive(Clone)]
pub struct QueuePairOptions<'a> {
    /// Where its memory is registered.
    pub domain: &'a Arc<ProtectionDomain>,
    /// Completions of its send queue.
    pub send_queue: &'a Arc<CompletionQueue>,
    /// Completions of its receives.
    pub receive_queue: &'a Arc<CompletionQueue>,
    /// Where its receives come from, if not from its own queue.
    pub shared_receive: Option<&'a Arc<SharedReceiveQueue>>,
    /// What it should take. `inline_bytes` is a wish: [`QueuePair::capacity`] says what was granted.
    pub capacity: Capacity,
}

impl<K: Kind> QueuePair<K, Reset> {
    /// A new one.
    ///
    /// # Errors
    /// If the device cannot have it, or its parts are of different devices or domains.
    pub fn create(options: &QueuePairOptions) -> Result<QueuePair<K, Reset>, VerbError> {
        let context = options.domain.context();
        let subject = || format!("{} on {}, {:?}", K::NAME, context.device().name, options.capacity);
        let of_one_device = [options.send_queue, options.receive_queue]
            .iter()
            .all(|queue| Arc::ptr_eq(queue.context(), context))
            && options.shared_receive.is_none_or(|shared| Arc::ptr_eq(shared.domain(), options.domain));
        if !of_one_device {
            return Err(VerbError::from_errno("ibv_create_qp", subject(), libc::EINVAL));
        }
        let (raw, capacity) = create_raw::<K>(options, options.capacity.inline_bytes)
            .or_else(|errno| match options.capacity.inline_bytes {
                0 => Err(errno),
                // Some devices refuse a wish for inline bytes that they cannot grant, instead of granting less.
                _ => create_raw::<K>(options, 0),
            })
            .map_err(|errno| VerbError::from_errno("ibv_create_qp", subject(), errno))?;
        Ok(QueuePair::from_inner(Inner {
            raw,
            capacity,
            uses_shared_receive: options.shared_receive.is_some(),
            domain: Arc::clone(options.domain),
            handles: Vec::new(),
            _queues: (
                Arc::clone(options.send_queue),
                Arc::clone(options.receive_queue),
                options.shared_receive.cloned(),
            ),
        }))
    }
}

fn create_raw<K: Kind>(
    options: &QueuePairOptions,
    inline_bytes: u32,
) -> Result<(NonNull<ibv_qp>, Capacity), i32> {
    let receives = if options.shared_receive.is_some() { 0 } else { options.capacity.receives };
    let mut raw_options = ibv_qp_init_attr {
        qp_context: ptr::null_mut(),
        send_cq: options.send_queue.as_ptr(),
        recv_cq: options.receive_queue.as_ptr(),
        srq: options.shared_receive.map_or(ptr::null_mut(), |shared| shared.as_ptr()),
        cap: ibv_qp_cap {
            max_send_wr: options.capacity.sends,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: u32::from(receives > 0),
            max_inline_data: inline_bytes,
        },
        qp_type: K::TYPE,
        sq_sig_all: 0,
    };
    // SAFETY: domain, queues and shared queue live, and are of one device (checked by the caller).
    let raw = unsafe { rdma_sys::ibv_create_qp(options.domain.as_ptr(), &mut raw_options) };
    let raw = NonNull::new(raw)
        .ok_or_else(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL))?;
    let granted = Capacity {
        sends: raw_options.cap.max_send_wr,
        receives: if options.shared_receive.is_some() { 0 } else { raw_options.cap.max_recv_wr },
        inline_bytes: raw_options.cap.max_inline_data,
    };
    Ok((raw, granted))
}

impl<K: Kind, S: State> QueuePair<K, S> {
    fn from_inner(inner: Inner) -> QueuePair<K, S> {
        QueuePair { inner, _type: PhantomData }
    }

    /// Its number, by which the peer and completions name it.
    pub fn number(&self) -> u32 {
        // SAFETY: the queue pair lives, and the field does not change.
        unsafe { self.inner.raw.as_ref() }.qp_num
    }

    /// What it takes.
    pub fn capacity(&self) -> Capacity {
        self.inner.capacity
    }

    /// The domain that it belongs to.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.inner.domain
    }

    /// True if its receives come from a shared receive queue.
    pub fn uses_shared_receive(&self) -> bool {
        self.inner.uses_shared_receive
    }

    fn as_ptr(&self) -> *mut ibv_qp {
        self.inner.raw.as_ptr()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: destroyed once; all it depends on is dropped after this. Every asynchronous event was acknowledged when it
        // was taken, so this does not wait.
        if unsafe { rdma_sys::ibv_destroy_qp(self.raw.as_ptr()) } != 0 {
            tracing::error!(
                device = self.domain.context().device().name,
                "a queue pair could not be destroyed"
            );
        }
    }
}
