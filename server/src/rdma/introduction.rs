//! A client between welcome and connection: this server has told its half and waits for the client's.

use std::net::IpAddr;
use std::sync::Arc;

use kv_common::limits::{RDMA_REPLIES_IN_FLIGHT_MAX, RDMA_REQUESTS_IN_FLIGHT_MAX};
use kv_common::transport::verbs::exchange::{Half, REQUEST_MAX_BYTES, Side};
use kv_common::verbs::{
    Capacity, Endpoint, Init, LocalPort, Path, QueuePair, QueuePairOptions, Rc, ReadyToSend, RemoteRights,
    Reset, RetryPolicy,
};

use super::queues::SENDS_PER_PAIR;
use super::{Queues, Rdma, RdmaError};

/// Bytes of a reply that are wished to go inline.
const INLINE_BYTES: u32 = 220;

/// A queue pair that does not know its peer yet. Dropping it leaves nothing.
pub(crate) struct Introduction {
    pair: Option<QueuePair<Rc, Init>>,
    number: u32,
    port: LocalPort,
    endpoint: Endpoint,
    queues: Arc<Queues>,
    region: kv_common::verbs::RemoteMemory,
}

/// A connected queue pair.
pub(crate) struct Connected {
    pub(crate) pair: QueuePair<Rc, ReadyToSend>,
    pub(crate) queues: Arc<Queues>,
    pub(crate) client: Half,
    pub(crate) path: Path,
}

impl Rdma {
    /// A queue pair for a client of `worker` who came by the local address `reaching`; none if the device has no room for
    /// one more.
    ///
    /// # Errors
    /// If the device refuses.
    pub(crate) fn introduce(
        &self,
        worker: usize,
        reaching: Option<IpAddr>,
    ) -> Result<Option<Introduction>, RdmaError> {
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
        // Clients READ, and write nothing.
        let pair = pair.initialize(port.number(), RemoteRights::Read)?;
        let number = pair.number();
        let endpoint = Endpoint::new(number, &port)?;
        queues.register(number);
        let (queues, region) = (Arc::clone(queues), self.region.remote());
        Ok(Some(Introduction { pair: Some(pair), number, port, endpoint, queues, region }))
    }
}

impl Introduction {
    /// This server's half.
    pub(crate) fn half(&self) -> [u8; 64] {
        let half = Half {
            endpoint: self.endpoint,
            memory: self.region,
            receive_bytes: REQUEST_MAX_BYTES as u32,
            receives: RDMA_REQUESTS_IN_FLIGHT_MAX as u32,
        };
        half.encode(Side::Server)
    }

    /// Connects to the client whose half this message is.
    ///
    /// # Errors
    /// What to tell the client.
    pub(crate) fn connect(mut self, message: &[u8]) -> Result<Connected, String> {
        let client = Half::decode(Side::Client, message).map_err(|error| error.to_string())?;
        let path = Path::new(&self.port, &self.endpoint, &client.endpoint, RetryPolicy::default())
            .map_err(|error| error.to_string())?;
        let pair = self.pair.take().expect("it is taken here only");
        let pair = pair.connect(&path).map_err(|error| error.to_string())?;
        Ok(Connected { pair, queues: Arc::clone(&self.queues), client, path })
    }
}

impl Drop for Introduction {
    fn drop(&mut self) {
        if let Some(pair) = self.pair.take() {
            // It knows no peer, so nothing came for it.
            drop(pair);
            self.queues.forget(self.number);
        }
    }
}

impl Connected {
    /// Replies that may be in flight.
    pub(crate) fn replies_max(&self) -> u64 {
        u64::from(self.client.receives).min(RDMA_REPLIES_IN_FLIGHT_MAX as u64)
    }
}
