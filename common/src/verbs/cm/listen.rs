//! The side that waits for connections.
#![allow(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rdma_sys::rdma_cm_event_type;

use super::address::RawAddress;
use super::channel::{Event, EventChannel};
use super::id::{CmConnection, Id, parameters};
use super::{CmError, CmOptions, REJECT_DATA_MAX_BYTES, REPLY_DATA_MAX_BYTES, check_private_data};
use crate::verbs::error::{VerbError, check};
use crate::verbs::queue_pair::{Init, QueuePair, Rc, ReadyToSend, RemoteRights, Reset};

/// On iWARP a port that the system chose may be one of TCP's that is taken: then another is asked for, so many times.
const TRIES: usize = 8;

/// Waits for requests. One descriptor serves it and all connections that come of them.
pub struct Listener {
    id: Id,
    address: SocketAddr,
}

/// A request for a connection. Dropping it rejects it.
pub struct Incoming {
    id: Id,
    private_data: Vec<u8>,
    reads_served_max: u8,
    reads_started_max: u8,
}

impl Listener {
    /// Listens at `address`, and nowhere else, on the RDMA device that has it, or for an unspecified address on all; port 0
    /// takes a free one. At most `backlog` requests wait; the system rejects the others.
    ///
    /// # Errors
    /// If the address is taken or on no RDMA device. An address of the loopback is never taken: the kernel's rdma_cm would
    /// listen on all (tried on Linux 6.1).
    pub fn listen(address: SocketAddr, backlog: u32) -> Result<Listener, CmError> {
        not_loopback(address)?;
        let is_taken = |error: &CmError| matches!(error, CmError::Verb(error) if error.errno() == Some(libc::EADDRINUSE));
        let tries = if address.port() == 0 { TRIES } else { 1 };
        let mut last = Listener::try_listen(address, backlog);
        for _ in 1..tries {
            match &last {
                Err(error) if is_taken(error) => last = Listener::try_listen(address, backlog),
                _ => break,
            }
        }
        last
    }

    fn try_listen(address: SocketAddr, backlog: u32) -> Result<Listener, CmError> {
        let id = Id::create(EventChannel::create()?)?;
        let mut raw = RawAddress::new(address);
        // SAFETY: the identifier lives, and the address is one.
        let returned = unsafe { rdma_sys::rdma_bind_addr(id.as_ptr(), raw.as_mut_ptr()) };
        check("rdma_bind_addr", returned, || address.to_string()).map_err(no_device(address))?;
        // SAFETY: the identifier lives and is bound.
        let returned =
            unsafe { rdma_sys::rdma_listen(id.as_ptr(), i32::try_from(backlog).unwrap_or(i32::MAX).max(1)) };
        check("rdma_listen", returned, || address.to_string())?;
        let address = id.local().unwrap_or(address);
        Ok(Listener { id, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The one device that has its address; none if it listens on all.
    pub fn device(&self) -> Option<String> {
        self.id.device().map(|(name, _)| name)
    }

    /// Becomes readable when [`Listener::next`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.id.channel.fd()
    }

    /// Takes one request, without waiting.
    ///
    /// # Errors
    /// If the listener is broken.
    pub fn next(&self) -> Result<Option<Incoming>, VerbError> {
        while let Some(event) = self.id.channel.next()? {
            // Anything else is about a connection that was accepted, and whose end is told in other ways, or that came to
            // nothing.
            if event.kind != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
                continue;
            }
            let Event { id, private_data, reads_served_max, reads_started_max, .. } = event;
            let Some(id) = NonNull::new(id) else { continue };
            let id = Id::of_request(id, &self.id.channel);
            return Ok(Some(Incoming { id, private_data, reads_served_max, reads_started_max }));
        }
        Ok(None)
    }
}

/// The loopback belongs to no adapter.
pub(super) fn not_loopback(address: SocketAddr) -> Result<(), CmError> {
    match address.ip().to_canonical() {
        ip if ip.is_loopback() => Err(CmError::NoDevice { address: ip }),
        _ => Ok(()),
    }
}

/// A system that knows no RDMA device of this address says that there is no such device.
pub(super) fn no_device(address: SocketAddr) -> impl Fn(VerbError) -> CmError {
    move |error| match error.errno() {
        Some(libc::ENODEV | libc::EADDRNOTAVAIL) => CmError::NoDevice { address: address.ip() },
        _ => error.into(),
    }
}

impl Incoming {
    /// What the peer sent along; longer than what it sent, filled with zeroes.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The device that it came by, and its port.
    pub fn device(&self) -> Option<(String, u8)> {
        self.id.device()
    }

    /// The peer's address.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.id.peer()
    }

    /// Says no.
    ///
    /// # Errors
    /// If the peer has given up already, or the data is too long.
    pub fn reject(self, private_data: &[u8]) -> Result<(), CmError> {
        check_private_data(private_data, REJECT_DATA_MAX_BYTES)?;
        // SAFETY: the identifier lives; the data is valid and its length was checked to be below 256.
        let returned = unsafe {
            rdma_sys::rdma_reject(self.id.as_ptr(), private_data.as_ptr().cast(), private_data.len() as u8)
        };
        Ok(check("rdma_reject", returned, || format!("{:?}", self.peer()))?)
    }

    /// Brings `pair` to the state in which it takes receives.
    ///
    /// # Errors
    /// If it is on another device than the one that the request came by. Then it is destroyed, as in all that follows.
    pub fn initialize(
        &self,
        pair: QueuePair<Rc, Reset>,
        rights: RemoteRights,
    ) -> Result<QueuePair<Rc, Init>, CmError> {
        self.id.initialize(pair, rights)
    }

    /// Says yes, with `pair`. Post receives before, because the peer may send at once. This side may not send before it has
    /// received something: only then the peer is known to be ready.
    ///
    /// # Errors
    /// If the peer has given up, or something does not fit.
    pub fn accept(
        self,
        pair: QueuePair<Rc, Init>,
        options: &CmOptions,
    ) -> Result<(QueuePair<Rc, ReadyToSend>, CmConnection), CmError> {
        check_private_data(options.private_data, REPLY_DATA_MAX_BYTES)?;
        let reads_served_max = options.reads_served_max.min(self.reads_served_max);
        let reads_started_max = options.reads_started_max.min(self.reads_started_max);
        let mut reply = parameters(options, &pair, reads_served_max, reads_started_max);
        let pair = self.id.ready(pair, options, reads_served_max, reads_started_max)?;
        // SAFETY: the identifier lives and has a request; the parameters are valid and so is their private data.
        let returned = unsafe { rdma_sys::rdma_accept(self.id.as_ptr(), &mut reply) };
        check("rdma_accept", returned, || format!("{:?}", self.id.peer()))?;
        Ok((pair, CmConnection { id: self.id, reads_started_max, reads_served_max }))
    }
}
