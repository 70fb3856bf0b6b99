//! rdma_cm: connections made by IP address, without a control connection of one's own. On iWARP it is the only way.
//!
//! ```text
//!   Resolved::resolve ── Resolved::connect ───────────────────────────────> queue pair ready to send, CmConnection
//!                               │ request, private data        ▲ reply, private data
//!                               ▼                              │
//!   Listener::listen ── Listener::next ── Incoming ── accept ── Accepting ── finish ──> the same
//! ```
//! Queue pairs are made by the program, on its own [`Context`](super::Context) of the device that rdma_cm names, so that one
//! registration of memory serves connections of both ways. rdma_cm says what to tell the queue pair at each step; access
//! rights and the receiver timer are this module's own, because rdma_cm would allow peers to WRITE and leave the timer at
//! its longest.
//!
//! Each connection has an event channel of its own, so its descriptor tells about it alone.
//!
//! Tried on soft-RoCE. For iWARP, where the kernel itself moves the queue pair and READs and WRITEs may only begin after the
//! connection is established, the steps are those that librdmacm documents; they have not been tried on a device.

mod address;
mod channel;
mod connect;
mod id;
mod listen;

use std::time::Duration;

pub use connect::{Connected, Resolved};
pub use id::{CmConnection, ConnectionEvent};
pub use listen::{Accepting, Finish, Incoming, Listener};

use super::error::VerbError;
use super::path::RetryPolicy;
use super::queue_pair::RemoteRights;

/// Bytes of private data in a request; the network's format leaves no more.
pub const REQUEST_DATA_MAX_BYTES: usize = 56;
/// Bytes of private data in a reply.
pub const REPLY_DATA_MAX_BYTES: usize = 196;
/// Bytes of private data in a rejection.
pub const REJECT_DATA_MAX_BYTES: usize = 148;

/// What a side wants of a connection.
#[derive(Clone, Copy, Debug)]
pub struct CmOptions<'a> {
    /// What the peer may do through the queue pair.
    pub rights: RemoteRights,
    /// READs that this side wants to have in flight.
    pub reads_started_max: u8,
    /// READs of the peer that this side serves at once.
    pub reads_served_max: u8,
    /// Repetitions. The wait for acknowledgements is computed by rdma_cm from the path.
    pub retry: RetryPolicy,
    /// Goes to the peer with the request or the reply.
    pub private_data: &'a [u8],
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum CmError {
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Nothing happened in time.
    #[error("nothing happened within {} ms while waiting for {what}; is the peer reachable, and does it run?", after.as_millis())]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The peer said no.
    #[error("the peer rejected the connection (reason {reason}){}", no_listener(*reason))]
    Rejected {
        /// Reason in the terms of the InfiniBand specification: 8 is no such service, 28 is the peer's program.
        reason: i32,
        /// What the peer's program adds.
        private_data: Vec<u8>,
    },
    /// Something else happened.
    #[error("{event} (status {status}) while waiting for {what}{}", event_remedy(event))]
    Event {
        /// Its name in rdma_cma.h.
        event: &'static str,
        /// Its status.
        status: i32,
        /// What was waited for.
        what: &'static str,
    },
    /// More private data than fits.
    #[error("{len_bytes} bytes of private data, and {max_bytes} fit")]
    PrivateData {
        /// Bytes.
        len_bytes: usize,
        /// Bytes that fit.
        max_bytes: usize,
    },
    /// The queue pair is on another device than the route.
    #[error(
        "the route to the peer is through {route}, the queue pair is on {queue_pair}; open {route} for this peer"
    )]
    WrongDevice {
        /// The device that rdma_cm found.
        route: String,
        /// The device of the queue pair.
        queue_pair: String,
    },
}

fn no_listener(reason: i32) -> &'static str {
    match reason {
        8 => ": nobody listens at this address and port through rdma_cm",
        _ => "",
    }
}

fn event_remedy(event: &str) -> &'static str {
    match event {
        "RDMA_CM_EVENT_ADDR_ERROR" => {
            ": no RDMA device has a route to this address (`ip route get`, `kv devices`)"
        }
        "RDMA_CM_EVENT_ROUTE_ERROR" => {
            ": the peer's address was found, the way to it was not (subnet manager?)"
        }
        "RDMA_CM_EVENT_UNREACHABLE" => ": the peer does not answer; does UDP port 4791 get through?",
        "RDMA_CM_EVENT_DEVICE_REMOVAL" => ": the device was removed",
        _ => "",
    }
}

fn check_private_data(data: &[u8], max_bytes: usize) -> Result<(), CmError> {
    if data.len() > max_bytes {
        return Err(CmError::PrivateData { len_bytes: data.len(), max_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let rejected = CmError::Rejected { reason: 8, private_data: Vec::new() }.to_string();
        assert!(rejected.contains("nobody listens"), "{rejected}");
        let event = CmError::Event { event: "RDMA_CM_EVENT_ADDR_ERROR", status: -19, what: "the address" }
            .to_string();
        assert!(event.contains("no RDMA device has a route") && event.contains("-19"), "{event}");
        let long = check_private_data(&[0; 57], REQUEST_DATA_MAX_BYTES).unwrap_err().to_string();
        assert!(long.contains("57") && long.contains("56"), "{long}");
        assert!(check_private_data(&[0; 56], REQUEST_DATA_MAX_BYTES).is_ok());
    }
}
