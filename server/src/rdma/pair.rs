//! A client's connected queue pair, which closes itself.

use std::sync::Arc;

use kv_common::limits::RDMA_REPLIES_IN_FLIGHT_MAX;
use kv_common::transport::verbs::exchange::Half;
use kv_common::verbs::cm::CmConnection;
use kv_common::verbs::{
    Capacity, MemoryRegion, PostError, ProtectionDomain, QueuePair, Rc, ReadyToSend, RemoteReadable,
    SendBatch,
};

use super::{Queues, Rdma};
use crate::table::AbandonedRun;

/// A connected queue pair. Dropping it closes it in the way of `closing.rs`.
pub(crate) struct ClientPair {
    /// There until it is dropped.
    inner: Option<(QueuePair<Rc, ReadyToSend>, Option<CmConnection>)>,
    queues: Arc<Queues>,
    rdma: Arc<Rdma>,
    /// Memory that its device may store to until it is destroyed.
    kept: Option<AbandonedRun>,
}

/// A client whose queue pair is connected.
pub(crate) struct Connected {
    pub(crate) pair: ClientPair,
    pub(crate) client: Half,
    /// The way to it, for people.
    pub(crate) path: String,
}

impl ClientPair {
    pub(super) fn new(
        pair: QueuePair<Rc, ReadyToSend>,
        cm: Option<CmConnection>,
        queues: Arc<Queues>,
        rdma: &Arc<Rdma>,
    ) -> ClientPair {
        ClientPair { inner: Some((pair, cm)), queues, rdma: Arc::clone(rdma), kept: None }
    }

    fn pair(&self) -> &QueuePair<Rc, ReadyToSend> {
        &self.inner.as_ref().expect("it is there until it is dropped").0
    }

    pub(crate) fn number(&self) -> u32 {
        self.pair().number()
    }

    pub(crate) fn capacity(&self) -> Capacity {
        self.pair().capacity()
    }

    pub(crate) fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// The region, where READs may end, but not on iWARP.
    pub(crate) fn region(&self) -> &MemoryRegion<RemoteReadable> {
        &self.rdma.region
    }

    /// Keeps the run until the device has let go of it.
    pub(crate) fn keep_until_closed(&mut self, run: AbandonedRun) {
        self.kept = Some(run);
    }

    pub(crate) fn domain(&self) -> &Arc<ProtectionDomain> {
        self.rdma.domain()
    }

    #[inline]
    pub(crate) fn post_send(&mut self, batch: &mut SendBatch<Rc>) -> Result<(), PostError> {
        self.inner.as_mut().expect("it is there until it is dropped").0.post_send(batch)
    }
}

impl Drop for ClientPair {
    fn drop(&mut self) {
        if let Some((pair, cm)) = self.inner.take() {
            self.rdma.close(pair, cm, &self.queues, self.kept.take());
        }
    }
}

impl Connected {
    /// Replies that may be in flight.
    pub(crate) fn replies_max(&self) -> u64 {
        u64::from(self.client.receives).min(RDMA_REPLIES_IN_FLIGHT_MAX as u64)
    }
}
