//! Event channels of rdma_cm.
#![allow(unsafe_code, reason = "calls librdmacm")]

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_sys::{rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{CmError, DEVICE_FILE};
use crate::verbs::context::nonblocking;
use crate::verbs::error::VerbError;

/// Looks whether this process can use rdma_cm at all.
///
/// # Errors
/// [`CmError::NoDeviceFile`].
pub fn check_device_file() -> Result<(), CmError> {
    check_device_file_at(Path::new(DEVICE_FILE))
}

/// Without its file the library would wait for it.
fn check_device_file_at(path: &Path) -> Result<(), CmError> {
    if path.exists() { Ok(()) } else { Err(CmError::NoDeviceFile) }
}

/// Where events of identifiers arrive.
pub(super) struct EventChannel(NonNull<rdma_event_channel>);

// SAFETY: librdmacm may be called from any thread, and the pointer is only used in such calls.
unsafe impl Send for EventChannel {}
// SAFETY: as for `Send`.
unsafe impl Sync for EventChannel {}

/// A copy of what an event says; the event itself is acknowledged.
pub(super) struct Event {
    pub(super) kind: u32,
    pub(super) status: i32,
    pub(super) private_data: Vec<u8>,
    pub(super) reads_served_max: u8,
    pub(super) reads_started_max: u8,
    /// A request's new identifier, which its taker has to destroy. Of other events it may be gone.
    pub(super) id: *mut rdma_cm_id,
}

impl EventChannel {
    pub(super) fn create() -> Result<Arc<EventChannel>, CmError> {
        check_device_file()?;
        // SAFETY: no arguments; the result is checked for null.
        let raw = NonNull::new(unsafe { rdma_sys::rdma_create_event_channel() });
        let raw = raw.ok_or_else(|| VerbError::last("rdma_create_event_channel", DEVICE_FILE))?;
        let channel = EventChannel(raw);
        nonblocking(channel.fd()).map_err(|source| VerbError {
            verb: "fcntl",
            subject: "an event channel".into(),
            source,
        })?;
        Ok(Arc::new(channel))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives; the library closes the descriptor in `drop`; the result borrows `self`.
        unsafe { BorrowedFd::borrow_raw(self.0.as_ref().fd) }
    }

    pub(super) fn as_ptr(&self) -> *mut rdma_event_channel {
        self.0.as_ptr()
    }

    /// Takes one event, without waiting.
    pub(super) fn next(&self) -> Result<Option<Event>, VerbError> {
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: the channel lives, and there is a place for the event.
        if unsafe { rdma_sys::rdma_get_cm_event(self.as_ptr(), &mut raw) } != 0 {
            let error = VerbError::last("rdma_get_cm_event", "an event channel");
            return if matches!(error.errno(), Some(libc::EAGAIN | libc::EINTR)) {
                Ok(None)
            } else {
                Err(error)
            };
        }
        // SAFETY: the library gave an event, which is valid until it is acknowledged.
        let event = copy(unsafe { &*raw });
        // SAFETY: taken once, acknowledged once; nothing of it is used any more.
        unsafe { rdma_sys::rdma_ack_cm_event(raw) };
        Ok(Some(event))
    }

    /// Takes one event, waiting until `timeout` after `begun`.
    pub(super) fn wait(
        &self,
        what: &'static str,
        begun: Instant,
        timeout: Duration,
    ) -> Result<Event, CmError> {
        loop {
            if let Some(event) = self.next()? {
                return Ok(event);
            }
            let left =
                timeout.checked_sub(begun.elapsed()).ok_or(CmError::Timeout { what, after: timeout })?;
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
            match poll(&mut [PollFd::new(&self.fd(), PollFlags::IN)], Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(VerbError::from_errno("poll", what, errno.raw_os_error()).into()),
            }
        }
    }
}

fn copy(raw: &rdma_cm_event) -> Event {
    let mut event = Event {
        kind: raw.event,
        status: raw.status,
        private_data: Vec::new(),
        reads_served_max: 0,
        reads_started_max: 0,
        id: raw.id,
    };
    let has_parameters = matches!(
        raw.event,
        rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST
            | rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE
            | rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED
            | rdma_cm_event_type::RDMA_CM_EVENT_REJECTED
    );
    if has_parameters {
        // SAFETY: for these events of a connection the library has filled this field of the union.
        let parameters = unsafe { &raw.param.conn };
        event.reads_served_max = parameters.responder_resources;
        event.reads_started_max = parameters.initiator_depth;
        if !parameters.private_data.is_null() {
            // SAFETY: the library says that so many bytes are there, until the event is acknowledged.
            let data = unsafe {
                std::slice::from_raw_parts(
                    parameters.private_data.cast::<u8>(),
                    usize::from(parameters.private_data_len),
                )
            };
            event.private_data = data.to_vec();
        }
    }
    event
}

impl Event {
    /// This event as the reason why `what` did not happen.
    pub(super) fn into_error(self, what: &'static str) -> CmError {
        if self.kind == rdma_cm_event_type::RDMA_CM_EVENT_REJECTED {
            return CmError::Rejected { reason: self.status, private_data: self.private_data };
        }
        CmError::Event { event: name(self.kind), status: self.status, what }
    }
}

fn name(kind: u32) -> &'static str {
    use rdma_cm_event_type::*;
    match kind {
        RDMA_CM_EVENT_ADDR_RESOLVED => "RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => "RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => "RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => "RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => "RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => "RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => "RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => "RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => "RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => "RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => "RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => "RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_ADDR_CHANGE => "RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => "an unknown event of rdma_cm",
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: identifiers keep an `Arc` of their channel and are destroyed before it; destroyed once.
        unsafe { rdma_sys::rdma_destroy_event_channel(self.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_missing_is_named_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rdma_cm");
        let error = check_device_file_at(&path).unwrap_err().to_string();
        assert!(error.contains(DEVICE_FILE) && error.contains("modprobe rdma_ucm"), "{error}");
        std::fs::write(&path, "").unwrap();
        assert!(check_device_file_at(&path).is_ok());
    }
}
