//! What the server has of RDMA: one device, the region registered once, queues for each worker.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the device and how it is started |
//! | `queues.rs` | a worker's completion queue, its shared receives, and what came for whom |
//! | `buffers.rs` | its registered memory for messages |
//! | `introduction.rs` | a client between welcome and connection |
//! | `pair.rs` | its queue pair when it is connected |
//! | `closing.rs` | queue pairs whose session is over |

mod buffers;
mod closing;
mod introduction;
mod pair;
mod queues;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kv_common::limits::HANDSHAKES_MAX;
use kv_common::region::Words;
use kv_common::transport::verbs::meeting::Protocol;
use kv_common::transport::verbs::port::{ChoosePortError, PortWish, describe};
use kv_common::verbs::cm::{CmError, Listener};
use kv_common::verbs::{
    AsyncEvent, Context, LocalPort, LocalPortError, MemoryRegion, ProtectionDomain, QueuePairEvent,
    RegisterError, RemoteReadable, VerbError,
};
use parking_lot::Mutex;
use tracing::{debug, warn};

use crate::poller::Waker;
use closing::Closing;
pub(crate) use introduction::Introduction;
pub(crate) use pair::{ClientPair, Connected};
pub(crate) use queues::{Fault, Queues, Sent};

/// The server's side of RDMA.
pub(crate) struct Rdma {
    port: LocalPort,
    gid_index: Option<u8>,
    domain: Arc<ProtectionDomain>,
    region: MemoryRegion<RemoteReadable>,
    queues: Vec<Arc<Queues>>,
    closing: Mutex<Vec<Closing>>,
    /// The port with the GID for each local address that clients came by.
    by_address: Mutex<HashMap<IpAddr, LocalPort>>,
    /// Where clients come whom rdma_cm connects, or why they do not.
    cm: Result<Listener, CmError>,
    /// Wakes the accept thread, which ends what is closing.
    waker: Arc<Waker>,
}

/// Why there is no RDMA.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RdmaError {
    /// No device, or none that can be used.
    #[error(transparent)]
    Port(#[from] ChoosePortError),
    /// rdma_cm does not listen, and the device needs it.
    #[error(
        "{device} is an iWARP device, which only rdma_cm connects, and that cannot listen at {address}: {source}"
    )]
    Cm {
        /// The device.
        device: String,
        /// Where clients come by TCP.
        address: SocketAddr,
        /// Why.
        source: CmError,
    },
    /// The region cannot be registered.
    #[error("the region cannot be registered: {0}")]
    Register(#[from] RegisterError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// The device lacks something.
    #[error(
        "{device} has no shared receive queues, which the server needs; take another device (--rdma-device), or --rdma off"
    )]
    NoSharedReceives {
        /// The device.
        device: String,
    },
    /// The device is too small.
    #[error("{device} has no room for the queues of a single client; its limits: {limits}")]
    TooSmall {
        /// The device.
        device: String,
        /// What it can do.
        limits: String,
    },
    /// Memory for messages.
    #[error("no memory for messages: {0}")]
    Memory(#[from] std::io::Error),
}

impl Rdma {
    /// Opens the device, registers the region, and makes the queues of `workers` workers for `clients_max` clients. Listens by
    /// rdma_cm where clients come by TCP, at no other address.
    ///
    /// # Errors
    /// [`RdmaError`]; nothing is left then.
    pub(crate) fn start(
        wish: &PortWish,
        address: SocketAddr,
        region: &Words,
        workers: usize,
        clients_max: usize,
        waker: Arc<Waker>,
    ) -> Result<Rdma, RdmaError> {
        let port = wish.choose(None)?;
        let cm = listen(&port, address)?;
        let domain = ProtectionDomain::allocate(port.context())?;
        let region = MemoryRegion::register(&domain, region)?;
        let queues = (0..workers)
            .map(|index| Ok(Arc::new(Queues::create(&domain, index, clients_max)?)))
            .collect::<Result<_, RdmaError>>()?;
        Ok(Rdma {
            port,
            gid_index: wish.gid_index,
            domain,
            region,
            queues,
            closing: Mutex::default(),
            by_address: Mutex::default(),
            cm,
            waker,
        })
    }

    /// Where rdma_cm brings clients, or why it does not.
    pub(crate) fn cm(&self) -> Result<&Listener, &CmError> {
        self.cm.as_ref()
    }

    /// Device, port, GID and MTU, for people.
    pub(crate) fn describe(&self) -> String {
        describe(&self.port)
    }

    /// Clients that all workers can have.
    pub(crate) fn clients_max(&self) -> usize {
        self.queues.iter().map(|queues| queues.pairs_max()).sum()
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        self.port.context()
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The queues of a worker.
    pub(crate) fn queues(&self, worker: usize) -> &Arc<Queues> {
        &self.queues[worker]
    }

    /// The port, with the GID that suits clients who came by this local address.
    fn port_for(&self, reaching: Option<IpAddr>) -> Result<LocalPort, LocalPortError> {
        let Some(address) = reaching else { return Ok(self.port.clone()) };
        if let Some(port) = self.by_address.lock().get(&address) {
            return Ok(port.clone());
        }
        let number = self.port.number();
        let (port, choice) = LocalPort::choose(self.context(), number, self.gid_index, Some(address))?;
        debug!(%address, port = %describe(&port), why = choice.reason, "GID for clients by this address");
        self.by_address.lock().insert(address, port.clone());
        Ok(port)
    }

    /// What its device speaks.
    pub(crate) fn protocol(&self) -> Protocol {
        Protocol::of(self.context())
    }

    /// Takes what the device has to say.
    pub(crate) fn take_events(&self) {
        loop {
            match self.context().next_event() {
                Ok(None) => return,
                Ok(Some(event)) => self.on_event(event),
                Err(error) => return warn!(%error, "cannot read the RDMA device's events"),
            }
        }
    }

    fn on_event(&self, event: AsyncEvent) {
        let device = &self.context().device().name;
        match event {
            AsyncEvent::QueuePair { number, event: QueuePairEvent::LastReceiveTaken } => {
                self.note_last_receive(number);
            }
            AsyncEvent::QueuePair { .. } => debug!(device, %event, "RDMA device"),
            AsyncEvent::GidChange(_) | AsyncEvent::SubnetChange(_) => {
                self.by_address.lock().clear();
                warn!(device, %event, "RDMA device");
            }
            _ => warn!(device, %event, "RDMA device"),
        }
    }
}

/// Listens at the address of `address`, at a port of rdma_cm's own: on iWARP these are TCP's.
fn listen(port: &LocalPort, address: SocketAddr) -> Result<Result<Listener, CmError>, RdmaError> {
    let device = &port.context().device().name;
    let mut at = address;
    at.set_port(0);
    let listener = Listener::listen(at, HANDSHAKES_MAX as u32).and_then(|listener| match listener.device() {
        Some(route) if route != *device => Err(CmError::WrongDevice { route, queue_pair: device.clone() }),
        _ => Ok(listener),
    });
    match listener {
        Err(source) if port.context().is_iwarp() => {
            Err(RdmaError::Cm { device: device.clone(), address, source })
        }
        listener => Ok(listener),
    }
}
