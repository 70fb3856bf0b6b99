//! A client between welcome and connection: this server has told its half and waits for the client's, and where rdma_cm
//! connects them, for its request.

use std::net::IpAddr;
use std::sync::Arc;

use kv_common::limits::RDMA_REQUESTS_IN_FLIGHT_MAX;
use kv_common::transport::verbs::exchange::{Half, REQUEST_MAX_BYTES, Side};
use kv_common::verbs::cm::{CmOptions, Incoming};
use kv_common::verbs::{
    Capacity, Endpoint, Init, LocalPort, Path, QueuePair, QueuePairOptions, Rc, RemoteRights, Reset,
    RetryPolicy, State,
};

use super::pair::{ClientPair, Connected};
use super::queues::SENDS_PER_PAIR;
use super::{Queues, Rdma, RdmaError};

/// Bytes of a reply that are wished to go inline.
const INLINE_BYTES: u32 = 220;

/// A queue pair that does not know its peer yet. Dropping it leaves nothing.
pub(crate) struct Introduction<S: State> {
    /// Dropped before its entry: nothing comes for it any more then.
    pair: QueuePair<Rc, S>,
    entry: Entry,
    port: LocalPort,
    endpoint: Endpoint,
    rdma: Arc<Rdma>,
}

/// What came for a queue pair is kept as long as this is.
struct Entry {
    number: u32,
    queues: Option<Arc<Queues>>,
}

impl Entry {
    fn new(number: u32, queues: &Arc<Queues>) -> Entry {
        queues.register(number);
        Entry { number, queues: Some(Arc::clone(queues)) }
    }

    /// The queue pair is connected; closing it forgets it.
    fn keep(mut self) -> Arc<Queues> {
        self.queues.take().expect("it is there until it is kept or dropped")
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(queues) = self.queues.take() {
            queues.forget(self.number);
        }
    }
}

impl Rdma {
    /// A queue pair for a client of `worker` who came by the local address `reaching`; none if the device has no room for
    /// one more.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn introduce(
        self: &Arc<Rdma>,
        worker: usize,
        reaching: Option<IpAddr>,
    ) -> Result<Option<Introduction<Reset>>, RdmaError> {
        let queues = self.queues(worker);
        if !queues.make_room()? {
            return Ok(None);
        }
        let port = self.port_for(reaching).map_err(|error| RdmaError::Port(error.into()))?;
        let options = QueuePairOptions {
            domain: self.domain(),
            send_queue: &queues.completions,
            receive_queue: &queues.completions,
            shared_receive: Some(&queues.receives),
            capacity: Capacity { sends: SENDS_PER_PAIR as u32, receives: 0, inline_bytes: INLINE_BYTES },
        };
        let pair: QueuePair<Rc, Reset> = QueuePair::create(&options)?;
        let endpoint = Endpoint::new(pair.number(), &port)?;
        let entry = Entry::new(pair.number(), queues);
        Ok(Some(Introduction { pair, entry, port, endpoint, rdma: Arc::clone(self) }))
    }
}

impl<S: State> Introduction<S> {
    /// This server's half.
    pub(crate) fn half(&self) -> [u8; 64] {
        let half = Half {
            endpoint: self.endpoint,
            memory: self.rdma.region.remote(),
            receive_bytes: REQUEST_MAX_BYTES as u32,
            receives: RDMA_REQUESTS_IN_FLIGHT_MAX as u32,
        };
        half.encode(Side::Server)
    }
}

impl Introduction<Reset> {
    /// Ties the queue pair to the port.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn initialize(self) -> Result<Introduction<Init>, RdmaError> {
        let Introduction { pair, entry, port, endpoint, rdma } = self;
        // Clients READ, and write nothing.
        let pair = pair.initialize(port.number(), RemoteRights::Read)?;
        Ok(Introduction { pair, entry, port, endpoint, rdma })
    }

    /// Accepts the connection request of the client with this half.
    ///
    /// # Errors
    /// What to tell the client.
    pub(crate) fn accept(self, incoming: Incoming, client: Half) -> Result<Connected, String> {
        let Introduction { pair, entry, port, endpoint, rdma } = self;
        let peer = incoming.peer();
        let options = CmOptions {
            rights: RemoteRights::Read,
            reads_started_max: endpoint.reads_started_max,
            reads_served_max: endpoint.reads_served_max,
            mtu_max: endpoint.mtu.min(client.endpoint.mtu),
            retry: RetryPolicy::default(),
            private_data: &[],
        };
        let pair = incoming.initialize(pair, options.rights).map_err(|error| error.to_string())?;
        let (pair, connection) = incoming.accept(pair, &options).map_err(|error| error.to_string())?;
        let path = format!(
            "by rdma_cm from {} on {}:{}, READs {} out and {} in",
            peer.map_or("an unknown address".to_owned(), |peer| peer.to_string()),
            port.context().device().name,
            port.number(),
            connection.reads_started_max(),
            connection.reads_served_max()
        );
        let pair = ClientPair::new(pair, Some(connection), entry.keep(), &rdma);
        Ok(Connected { pair, client, path })
    }
}

impl Introduction<Init> {
    /// Connects to the client with this half.
    ///
    /// # Errors
    /// What to tell the client.
    pub(crate) fn connect(self, client: Half) -> Result<Connected, String> {
        let Introduction { pair, entry, port, endpoint, rdma } = self;
        let path = Path::new(&port, &endpoint, &client.endpoint, RetryPolicy::default())
            .map_err(|error| error.to_string())?;
        let pair = pair.connect(&path).map_err(|error| error.to_string())?;
        let pair = ClientPair::new(pair, None, entry.keep(), &rdma);
        Ok(Connected { pair, client, path: path.to_string() })
    }
}
