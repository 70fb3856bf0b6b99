//! Events that belong to no request: ports, GIDs, broken queues, the device itself.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ffi::c_void;
use std::{fmt, ptr};

use rdma_sys::{ibv_cq, ibv_event_type, ibv_qp, ibv_srq};

use super::context::Context;
use super::error::VerbError;

/// Something happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A port became active.
    PortActive(u8),
    /// A port went down: connections through it fail unless it comes back within their retries.
    PortDown(u8),
    /// The GID table of a port changed: addresses have to be chosen again.
    GidChange(u8),
    /// The LID, the partition table or the subnet manager of a port changed.
    SubnetChange(u8),
    /// The device failed. Nothing of it works any more.
    DeviceFatal,
    /// Something about the queue pair with this number.
    QueuePair {
        /// Its number.
        number: u32,
        /// What.
        event: QueuePairEvent,
    },
    /// The completion queue with this id broke; usually more arrived than it holds.
    CompletionQueueError {
        /// The id that it was made with.
        id: u64,
    },
    /// The shared receive queue with this id broke.
    SharedReceiveError {
        /// The id that it was made with.
        id: u64,
    },
    /// Another event, by its number in `enum ibv_event_type`.
    Other(u32),
}

/// What happened to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairEvent {
    /// It broke.
    Fatal,
    /// The peer did something that is not allowed.
    InvalidRequest,
    /// The peer accessed what it must not.
    AccessViolation,
    /// A packet came before the connection was finished.
    Established,
    /// It is in the error state and has taken its last receive from its shared receive queue.
    LastReceiveTaken,
    /// Another event, by its number in `enum ibv_event_type`.
    Other(u32),
}

impl fmt::Display for AsyncEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AsyncEvent::PortActive(port) => write!(f, "port {port} is active"),
            AsyncEvent::PortDown(port) => {
                write!(f, "port {port} went down: check cable, switch and interface")
            }
            AsyncEvent::GidChange(port) => {
                write!(f, "the GIDs of port {port} changed: was an address added or removed?")
            }
            AsyncEvent::SubnetChange(port) => write!(f, "the subnet of port {port} changed"),
            AsyncEvent::DeviceFatal => f.write_str("the device failed: look at dmesg"),
            AsyncEvent::QueuePair { number, event } => write!(f, "queue pair {number:#x}: {event:?}"),
            AsyncEvent::CompletionQueueError { id } => {
                write!(f, "completion queue {id} broke: did it overrun?")
            }
            AsyncEvent::SharedReceiveError { id } => write!(f, "shared receive queue {id} broke"),
            AsyncEvent::Other(number) => write!(f, "event {number}"),
        }
    }
}

/// `struct ibv_async_event`, with the type as a number: the generated one is a Rust enum, which must not hold numbers that
/// a newer library may have.
#[repr(C)]
struct RawEvent {
    element: Element,
    kind: u32,
}

#[repr(C)]
union Element {
    queue: *mut ibv_cq,
    pair: *mut ibv_qp,
    shared: *mut ibv_srq,
    port: i32,
    any: *mut c_void,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<rdma_sys::ibv_async_event>());

impl Context {
    /// Takes one event; `None` if there is none. [`Context::async_fd`] tells when to look.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn next_event(&self) -> Result<Option<AsyncEvent>, VerbError> {
        let mut raw = RawEvent { element: Element { any: ptr::null_mut() }, kind: u32::MAX };
        // SAFETY: the context is open and `raw` has the layout of the library's struct.
        if unsafe { rdma_sys::ibv_get_async_event(self.as_ptr(), (&raw mut raw).cast()) } != 0 {
            let error = VerbError::last("ibv_get_async_event", self.device().name.clone());
            return if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        // SAFETY: the event was just taken and is not acknowledged yet.
        let event = unsafe { read(&raw) };
        // SAFETY: taken once, acknowledged once, with the layout of the library's struct.
        unsafe { rdma_sys::ibv_ack_async_event((&raw mut raw).cast()) };
        Ok(Some(event))
    }
}

/// # Safety
/// `raw` must have been filled by the library and not be acknowledged: until then the object that it points to is there,
/// because destroying one waits for the acknowledgement of its events.
unsafe fn read(raw: &RawEvent) -> AsyncEvent {
    use ibv_event_type::*;
    let is = |kind: ibv_event_type| raw.kind == kind as u32;
    // SAFETY: called below for the kinds of which verbs.h says that they are about a port, a queue pair, a completion queue
    // or a shared receive queue, each for its own field; the caller promises that the object is there.
    let port = || u8::try_from(unsafe { raw.element.port }).unwrap_or(0);
    // SAFETY: as above.
    let pair = |event| AsyncEvent::QueuePair { number: unsafe { (*raw.element.pair).qp_num }, event };
    // SAFETY: as above; the field is the id that the queue was made with.
    let queue = || unsafe { (*raw.element.queue).cq_context } as usize as u64;
    // SAFETY: as above; the field is the id that the queue was made with.
    let shared = || unsafe { (*raw.element.shared).srq_context } as usize as u64;
    match raw.kind {
        _ if is(IBV_EVENT_PORT_ACTIVE) => AsyncEvent::PortActive(port()),
        _ if is(IBV_EVENT_PORT_ERR) => AsyncEvent::PortDown(port()),
        _ if is(IBV_EVENT_GID_CHANGE) => AsyncEvent::GidChange(port()),
        _ if is(IBV_EVENT_LID_CHANGE)
            || is(IBV_EVENT_PKEY_CHANGE)
            || is(IBV_EVENT_SM_CHANGE)
            || is(IBV_EVENT_CLIENT_REREGISTER) =>
        {
            AsyncEvent::SubnetChange(port())
        }
        _ if is(IBV_EVENT_DEVICE_FATAL) => AsyncEvent::DeviceFatal,
        _ if is(IBV_EVENT_QP_FATAL) => pair(QueuePairEvent::Fatal),
        _ if is(IBV_EVENT_QP_REQ_ERR) => pair(QueuePairEvent::InvalidRequest),
        _ if is(IBV_EVENT_QP_ACCESS_ERR) => pair(QueuePairEvent::AccessViolation),
        _ if is(IBV_EVENT_COMM_EST) => pair(QueuePairEvent::Established),
        _ if is(IBV_EVENT_QP_LAST_WQE_REACHED) => pair(QueuePairEvent::LastReceiveTaken),
        kind if is(IBV_EVENT_SQ_DRAINED) || is(IBV_EVENT_PATH_MIG) || is(IBV_EVENT_PATH_MIG_ERR) => {
            pair(QueuePairEvent::Other(kind))
        }
        _ if is(IBV_EVENT_CQ_ERR) => AsyncEvent::CompletionQueueError { id: queue() },
        _ if is(IBV_EVENT_SRQ_ERR) => AsyncEvent::SharedReceiveError { id: shared() },
        other => AsyncEvent::Other(other),
    }
}
