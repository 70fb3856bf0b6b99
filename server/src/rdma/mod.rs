//! What the server has of RDMA: one device, the region registered once, queues for each worker.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the device and how it is started |
//! | `queues.rs` | a worker's completion queue, its shared receives, and what came for whom |
//! | `buffers.rs` | its registered memory for messages |
//! | `introduction.rs` | a client between welcome and connection |
//! | `closing.rs` | queue pairs whose session is over |

mod buffers;
mod closing;
mod introduction;
mod queues;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use kv_common::region::Words;
use kv_common::transport::verbs::port::{ChoosePortError, PortWish, describe};
use kv_common::verbs::{
    AsyncEvent, Context, LocalPort, LocalPortError, MemoryRegion, ProtectionDomain, QueuePairEvent,
    RegisterError, RemoteReadable, VerbError,
};
use parking_lot::Mutex;
use tracing::{debug, warn};

use crate::poller::Waker;
use closing::Closing;
pub(crate) use introduction::{Connected, Introduction};
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
    /// Wakes the accept thread, which ends what is closing.
    waker: Arc<Waker>,
}

/// Why there is no RDMA.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RdmaError {
    /// No device, or none that can be used.
    #[error(transparent)]
    Port(#[from] ChoosePortError),
    /// The region cannot be registered.
    #[error("the region cannot be registered: {0}")]
    Register(#[from] RegisterError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
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
    /// Opens the device, registers the region, and makes the queues of `workers` workers for `clients_max` clients.
    ///
    /// # Errors
    /// [`RdmaError`]; nothing is left then.
    pub(crate) fn start(
        wish: &PortWish,
        region: &Words,
        workers: usize,
        clients_max: usize,
        waker: Arc<Waker>,
    ) -> Result<Rdma, RdmaError> {
        let port = wish.choose(None)?;
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
            waker,
        })
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
