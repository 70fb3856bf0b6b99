//! The side that waits for connections.
#![allow(unsafe_code, reason = "calls librdmacm")]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use rdma_sys::rdma_cm_event_type;

use super::address::RawAddress;
use super::channel::Event;
use super::id::{CmConnection, Id, parameters};
use super::{CmError, CmOptions, REJECT_DATA_MAX_BYTES, REPLY_DATA_MAX_BYTES, check_private_data};
use crate::verbs::error::{VerbError, check};
use crate::verbs::queue_pair::{QueuePair, Rc, ReadyToSend, Reset};

const WHAT: &str = "the peer to finish the connection";

/// Waits for requests.
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

/// A connection that was accepted and that the peer has to confirm.
pub struct Accepting {
    pair: QueuePair<Rc, ReadyToSend>,
    connection: CmConnection,
}

/// What became of an [`Accepting`].
pub enum Finish {
    /// The peer has not confirmed yet.
    Pending(Accepting),
    /// It has.
    Done(QueuePair<Rc, ReadyToSend>, CmConnection),
}

impl Listener {
    /// Listens at `address` on all RDMA devices that have it; port 0 takes a free one. At most `backlog` requests wait.
    ///
    /// # Errors
    /// If the address is taken or on no RDMA device.
    pub fn listen(address: SocketAddr, backlog: u32) -> Result<Listener, VerbError> {
        let id = Id::create()?;
        let mut raw = RawAddress::new(address);
        // SAFETY: the identifier lives, and the address is one.
        let returned = unsafe { rdma_sys::rdma_bind_addr(id.as_ptr(), raw.as_mut_ptr()) };
        check("rdma_bind_addr", returned, || address.to_string())?;
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

    /// Becomes readable when [`Listener::next`] has something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.id.channel.fd()
    }

    /// Takes one request, without waiting.
    ///
    /// # Errors
    /// If the listener is broken, or one request could not be taken over.
    pub fn next(&self) -> Result<Option<Incoming>, VerbError> {
        while let Some(event) = self.id.channel.next()? {
            // Anything else is about a request that came to nothing.
            if event.kind != rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST {
                continue;
            }
            let Event { id, private_data, reads_served_max, reads_started_max, .. } = event;
            let Some(id) = NonNull::new(id) else { continue };
            return Ok(Some(Incoming {
                id: Id::of_request(id)?,
                private_data,
                reads_served_max,
                reads_started_max,
            }));
        }
        Ok(None)
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

    /// Says yes, with `pair`, which must be on the device that the request came by. Post receives before, where the peer may
    /// send at once: with a shared receive queue.
    ///
    /// # Errors
    /// If the peer has given up, or something does not fit. Then the queue pair is destroyed.
    pub fn accept(self, pair: QueuePair<Rc, Reset>, options: &CmOptions) -> Result<Accepting, CmError> {
        check_private_data(options.private_data, REPLY_DATA_MAX_BYTES)?;
        let reads_served_max = options.reads_served_max.min(self.reads_served_max);
        let reads_started_max = options.reads_started_max.min(self.reads_started_max);
        let pair = self.id.initialize(pair, options.rights)?;
        let mut reply = parameters(options, &pair, reads_served_max, reads_started_max);
        let pair = self.id.ready(pair, options, reads_served_max, reads_started_max)?;
        // SAFETY: the identifier lives and has a request; the parameters are valid and so is their private data.
        let returned = unsafe { rdma_sys::rdma_accept(self.id.as_ptr(), &mut reply) };
        check("rdma_accept", returned, || format!("{:?}", self.id.peer()))?;
        Ok(Accepting { pair, connection: CmConnection { id: self.id, reads_started_max, reads_served_max } })
    }
}

impl Accepting {
    /// Becomes readable when [`Accepting::try_finish`] should be called.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.connection.fd()
    }

    /// Looks whether the peer has confirmed, without waiting.
    ///
    /// # Errors
    /// If it will not. Then the queue pair is destroyed.
    pub fn try_finish(self) -> Result<Finish, CmError> {
        match self.connection.id.channel.next()? {
            None => Ok(Finish::Pending(self)),
            Some(event) => self.finished_by(event).map(|(pair, connection)| Finish::Done(pair, connection)),
        }
    }

    /// Waits until the peer has confirmed.
    ///
    /// # Errors
    /// If it does not within `timeout`, or will not. Then the queue pair is destroyed.
    pub fn finish(self, timeout: Duration) -> Result<(QueuePair<Rc, ReadyToSend>, CmConnection), CmError> {
        let event = self.connection.id.channel.wait(WHAT, Instant::now(), timeout)?;
        self.finished_by(event)
    }

    fn finished_by(self, event: Event) -> Result<(QueuePair<Rc, ReadyToSend>, CmConnection), CmError> {
        if event.kind == rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED {
            return Ok((self.pair, self.connection));
        }
        Err(event.into_error(WHAT))
    }
}
