//! rdma_cm: connections made by IP address. On iWARP it is the only way.
//!
//! ```text
//!   Resolved::resolve ── initialize ── connect ─────────────> queue pair ready to send, CmConnection
//!                                        │ request       ▲ reply, and each side's private data
//!                                        ▼               │
//!   Listener::listen ── next ── Incoming ── initialize ── accept: the same
//! ```
//! Queue pairs are made by the program, on its own [`Context`](super::Context) of the device that rdma_cm names, so that one
//! registration of memory serves connections of both ways. rdma_cm says what to tell the queue pair at each step. What this
//! module puts in place of that: access rights and the receiver timer, because rdma_cm would allow peers to WRITE and leave
//! the timer at its longest; the time-out, which would be 2 s where the path is not measured; and the MTU, if one of the
//! ports has a smaller one.
//!
//! A side that asks has an event channel of its own. A listener has one for all of its connections, so that they need no
//! descriptor each. The side that accepts does not wait for the confirmation: it may be lost, and is then repeated after
//! seconds, while what the peer sends over the queue pair, for which it has to be ready, says as much.
//!
//! On iWARP the kernel itself moves the queue pair to the state in which it sends.

mod address;
mod channel;
mod connect;
mod id;
mod listen;

use std::net::IpAddr;
use std::time::Duration;

pub use channel::check_device_file;
pub use connect::{Connected, Requested, Resolved};
pub use id::CmConnection;
pub use listen::{Incoming, Listener};

use super::error::VerbError;
use super::path::RetryPolicy;
use super::port::Mtu;
use super::queue_pair::RemoteRights;

/// The file by which programs use rdma_cm.
const DEVICE_FILE: &str = "/dev/infiniband/rdma_cm";

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
    /// The smaller of both ports' active MTUs, if that is known: rdma_cm looks at the one of the side that asks alone. It has
    /// no meaning on iWARP.
    pub mtu_max: Mtu,
    /// Repetitions.
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
    /// The kernel's half is not there.
    #[error(
        "{DEVICE_FILE} is missing: modprobe rdma_ucm; in a container pass it: docker run --device=/dev/infiniband"
    )]
    NoDeviceFile,
    /// No device has the address, or leads to it.
    #[error(
        "no RDMA device has the address {address} or leads to it: is it an address of the adapter's own interface, not of \
         another one or the loopback (`kv devices`, `ip route get {address}`)?"
    )]
    NoDevice {
        /// The address.
        address: IpAddr,
    },
    /// Nothing happened in time.
    #[error("nothing happened within {} ms while waiting for {what}; is the peer reachable, and does it run?", after.as_millis())]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The peer said no.
    #[error("the peer rejected the connection (reason {reason}){}{}", rejection(*reason), said(private_data))]
    Rejected {
        /// Reason in the terms of the InfiniBand specification: 8 is no such service, 28 is the peer's program; on iWARP the
        /// system's error number, negative.
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

fn rejection(reason: i32) -> &'static str {
    match reason {
        // -111: ECONNREFUSED.
        8 | -111 => ": nobody listens at this address and port through rdma_cm",
        10 => ": its system still has a connection of the same number; connect again",
        _ => "",
    }
}

/// What the peer's program adds, if that is text.
fn said(private_data: &[u8]) -> String {
    let end = private_data.iter().position(|&byte| byte == 0).unwrap_or(private_data.len());
    match std::str::from_utf8(&private_data[..end]) {
        Ok(text) if !text.is_empty() && !text.contains(char::is_control) => format!(": {text}"),
        _ => String::new(),
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
        "RDMA_CM_EVENT_UNREACHABLE" => {
            ": the peer does not answer; do UDP port 4791 (RoCE) or TCP (iWARP) get through?"
        }
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
        let rejected =
            |data: &[u8]| CmError::Rejected { reason: 28, private_data: data.to_vec() }.to_string();
        assert!(rejected(b"no room\0\0").ends_with("(reason 28): no room"));
        for nothing in [&b""[..], b"\0\0", b"\xff", b"\x1b[2J\0"] {
            assert!(rejected(nothing).ends_with("(reason 28)"));
        }
        let error = CmError::NoDevice { address: "127.0.0.1".parse().unwrap() }.to_string();
        assert!(error.contains("127.0.0.1") && error.contains("kv devices"), "{error}");
        let event = CmError::Event { event: "RDMA_CM_EVENT_ADDR_ERROR", status: -19, what: "the address" }
            .to_string();
        assert!(event.contains("no RDMA device has a route") && event.contains("-19"), "{event}");
        let long = check_private_data(&[0; 57], REQUEST_DATA_MAX_BYTES).unwrap_err().to_string();
        assert!(long.contains("57") && long.contains("56"), "{long}");
        assert!(check_private_data(&[0; 56], REQUEST_DATA_MAX_BYTES).is_ok());
    }
}
