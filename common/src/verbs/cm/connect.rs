//! The side that asks for a connection.
#![allow(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::ptr;
use std::time::{Duration, Instant};

use rdma_sys::rdma_cm_event_type;

use super::address::RawAddress;
use super::channel::EventChannel;
use super::id::{CmConnection, Id, parameters};
use super::listen::{no_device, not_loopback};
use super::{CmError, CmOptions, REQUEST_DATA_MAX_BYTES, check_private_data};
use crate::verbs::error::check;
use crate::verbs::queue_pair::{Init, QueuePair, Rc, ReadyToSend, RemoteRights, Reset};

/// A peer's address to which a device and a route were found.
pub struct Resolved {
    id: Id,
    device: String,
    port: u8,
}

/// A connection that was asked for. Dropping it takes that back.
pub struct Requested {
    pair: QueuePair<Rc, Init>,
    id: Id,
}

/// A connection that was asked for and made.
pub struct Connected {
    /// Ready to send.
    pub pair: QueuePair<Rc, ReadyToSend>,
    /// The connection.
    pub connection: CmConnection,
    /// What the peer sent along; filled with zeroes to more than it sent.
    pub private_data: Vec<u8>,
}

impl Resolved {
    /// Finds device and route to `peer`, from the address `source` if that is given and else as the system routes, within
    /// `timeout`.
    ///
    /// # Errors
    /// If no RDMA device leads there.
    pub fn resolve(
        peer: SocketAddr,
        source: Option<SocketAddr>,
        timeout: Duration,
    ) -> Result<Resolved, CmError> {
        not_loopback(peer)?;
        let begun = Instant::now();
        let id = Id::create(EventChannel::create()?)?;
        let timeout_ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX).max(1);
        let mut address = RawAddress::new(peer);
        let mut source = source.map(RawAddress::new);
        let source = source.as_mut().map_or(ptr::null_mut(), RawAddress::as_mut_ptr);
        // SAFETY: the identifier lives; both addresses are such, or the source is null: then the route decides.
        let returned =
            unsafe { rdma_sys::rdma_resolve_addr(id.as_ptr(), source, address.as_mut_ptr(), timeout_ms) };
        check("rdma_resolve_addr", returned, || peer.to_string()).map_err(no_device(peer))?;
        let expect = |kind, what| {
            let event = id.channel.wait(what, begun, timeout)?;
            if event.kind == kind { Ok(()) } else { Err(event.into_error(what)) }
        };
        expect(rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED, "the peer's address")?;
        // SAFETY: the identifier lives and its address is resolved.
        let returned = unsafe { rdma_sys::rdma_resolve_route(id.as_ptr(), timeout_ms) };
        check("rdma_resolve_route", returned, || peer.to_string()).map_err(no_device(peer))?;
        expect(rdma_cm_event_type::RDMA_CM_EVENT_ROUTE_RESOLVED, "the route to the peer")?;
        let (device, port) = id.device().unwrap_or_default();
        Ok(Resolved { id, device, port })
    }

    /// Name of the device to open.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Its port.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// Brings `pair` to the state in which it takes receives.
    ///
    /// # Errors
    /// If it is on another device than the one that was found. Then it is destroyed, as in all that follows.
    pub fn initialize(
        &self,
        pair: QueuePair<Rc, Reset>,
        rights: RemoteRights,
    ) -> Result<QueuePair<Rc, Init>, CmError> {
        self.id.initialize(pair, rights)
    }

    /// Asks the peer to connect `pair`.
    ///
    /// # Errors
    /// If that cannot be asked.
    pub fn request(self, pair: QueuePair<Rc, Init>, options: &CmOptions) -> Result<Requested, CmError> {
        check_private_data(options.private_data, REQUEST_DATA_MAX_BYTES)?;
        let mut request = parameters(options, &pair, options.reads_served_max, options.reads_started_max);
        // SAFETY: the identifier lives and has a route; the parameters are valid and so is their private data.
        let returned = unsafe { rdma_sys::rdma_connect(self.id.as_ptr(), &mut request) };
        let returned = check("rdma_connect", returned, || format!("{:?}", self.id.peer()));
        match returned {
            // Software iWARP connects at once.
            Err(error) if error.errno() == Some(libc::ECONNREFUSED) => {
                return Err(CmError::Rejected { reason: -libc::ECONNREFUSED, private_data: Vec::new() });
            }
            returned => returned?,
        }
        Ok(Requested { pair, id: self.id })
    }

    /// Connects `pair`. Gives it back ready to send.
    ///
    /// # Errors
    /// If the peer refuses or does not answer within `timeout`.
    pub fn connect(
        self,
        pair: QueuePair<Rc, Init>,
        options: &CmOptions,
        timeout: Duration,
    ) -> Result<Connected, CmError> {
        self.request(pair, options)?.finish(options, timeout)
    }
}

impl Requested {
    /// Waits for the peer's answer, and confirms it.
    ///
    /// # Errors
    /// If the peer refuses or does not answer within `timeout`.
    pub fn finish(self, options: &CmOptions, timeout: Duration) -> Result<Connected, CmError> {
        let Requested { pair, id } = self;
        let what = "the peer's answer";
        let answer = id.channel.wait(what, Instant::now(), timeout)?;
        let reads_served_max = options.reads_served_max.min(answer.reads_served_max);
        let reads_started_max = options.reads_started_max.min(answer.reads_started_max);
        let pair = match answer.kind {
            rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_RESPONSE => {
                let pair = id.ready(pair, options, reads_served_max, reads_started_max)?;
                // SAFETY: the identifier lives and has a response that waits for this.
                let returned = unsafe { rdma_sys::rdma_establish(id.as_ptr()) };
                check("rdma_establish", returned, || format!("{:?}", id.peer()))?;
                pair
            }
            // iWARP: the kernel has moved the queue pair.
            rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED => pair.assume_moved(),
            _ => return Err(answer.into_error(what)),
        };
        let connection = CmConnection { id, reads_started_max, reads_served_max };
        Ok(Connected { pair, connection, private_data: answer.private_data })
    }
}
