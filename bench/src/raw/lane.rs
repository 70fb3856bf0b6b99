//! Queue pairs with their buffers, from made to connected.

use std::sync::Arc;

use kv_common::verbs::{
    Capacity, CompletionQueue, Endpoint, MemoryRegion, Path, QueuePair, QueuePairOptions, ReadyToSend,
    ReceiveBatch, RemoteMemory, RemoteRange, RemoteRights, RemoteWritable, Reset, RetryPolicy, SendBatch,
    anonymous_words,
};

use super::error::{HereError, RawError};
use super::kinds::{Measured, Transfer};
use super::plan::{DATAGRAM_HEADER_BYTES, Measure, Operation, Test};
use super::side::Side;
use super::taker::Taker;
use super::wire::Ends;

/// Receives of each queue pair that are posted at once: a receiver that was not scheduled for a while still has some.
const RECEIVES: u32 = 512;
/// Bytes of an inline request, if the device grants them: what perftest asks for, for latency.
const INLINE_BYTES: u32 = 236;
/// Patient: the processor may be an emulated one. A receiver that is not ready is tried again after 20 ms.
const RETRY: RetryPolicy =
    RetryPolicy { timeout_exponent: 16, retries: 7, receiver_retries: 6, receiver_timer: 22 };

/// Queue pairs that know no peer yet, their memory, and their completion queues.
pub(super) struct Unconnected<K: Measured> {
    pairs: Vec<QueuePair<K, Reset>>,
    endpoints: Vec<Endpoint>,
    memory: MemoryRegion<RemoteWritable>,
    sends: Arc<CompletionQueue>,
    receives: Arc<CompletionQueue>,
    test: Test,
}

/// All queue pairs of one test.
pub(super) struct Lanes<K: Measured> {
    pub(super) lanes: Vec<Lane<K>>,
    pub(super) sends: Taker,
    pub(super) receives: Taker,
    pub(super) memory: MemoryRegion<RemoteWritable>,
    pub(super) test: Test,
    pub(super) mtu_bytes: u32,
}

/// One connected queue pair.
pub(super) struct Lane<K: Measured> {
    pair: QueuePair<K, ReadyToSend>,
    peer: K::Peer,
    batch: SendBatch<K>,
    receive_batch: ReceiveBatch,
    number: u32,
    /// The peer's target.
    remote: RemoteRange,
    /// A message that a request carries itself, if it is short enough.
    inline: Option<Vec<u8>>,
}

fn receives_of(test: &Test) -> u32 {
    if test.operation == Operation::Send { RECEIVES } else { 1 }
}

impl<K: Measured> Unconnected<K> {
    pub(super) fn create(side: &Side, test: &Test) -> Result<Self, RawError> {
        let sends_each = test.depth.max(2);
        let queue = |each: u32| {
            let capacity = each.saturating_mul(test.queue_pairs);
            CompletionQueue::create(&side.context, capacity, 0, None, 0)
        };
        let (sends, receives) = (queue(sends_each)?, queue(receives_of(test))?);
        let inline_bytes = if test.measure == Measure::Latency && K::INLINE { INLINE_BYTES } else { 0 };
        let options = QueuePairOptions {
            domain: &side.domain,
            send_queue: &sends,
            receive_queue: &receives,
            shared_receive: None,
            capacity: Capacity { sends: sends_each, receives: receives_of(test), inline_bytes },
        };
        let mut pairs = Vec::new();
        let mut endpoints = Vec::new();
        for _ in 0..test.queue_pairs {
            let pair = QueuePair::<K, _>::create(&options)?;
            endpoints.push(Endpoint::new(pair.number(), &side.port)?);
            pairs.push(pair);
        }
        let bytes = usize::try_from(test.memory_bytes()).unwrap_or(usize::MAX);
        let words = anonymous_words(bytes, false).map_err(HereError::Memory)?;
        let memory = MemoryRegion::register(&side.domain, &words)?;
        Ok(Self { pairs, endpoints, memory, sends, receives, test: *test })
    }

    /// What the peer has to know.
    pub(super) fn ends(&self) -> Ends {
        Ends { memory: self.memory.remote(), endpoints: self.endpoints.clone() }
    }

    /// Connects each to the peer's queue pair with the same number, and posts receives.
    pub(super) fn connect(self, side: &Side, peer: &Ends) -> Result<Lanes<K>, RawError> {
        let rights = match self.test.operation {
            Operation::Read => RemoteRights::Read,
            Operation::Write => RemoteRights::ReadWrite,
            Operation::Send => RemoteRights::None,
        };
        let mut mtu_bytes = u32::MAX;
        let mut lanes = Vec::new();
        let ends = self.endpoints.iter().zip(&peer.endpoints);
        for (number, (pair, (here, there))) in (0..).zip(self.pairs.into_iter().zip(ends)) {
            let path = Path::new(&side.port, here, there, RETRY)?;
            mtu_bytes = mtu_bytes.min(path.mtu.bytes());
            self.test.check_mtu(mtu_bytes)?;
            let granted = pair.capacity().inline_bytes;
            let (pair, address) = K::connect(pair, &path, rights)?;
            let lane = Lane::new(pair, address, number, &self.test, &peer.memory, granted)?;
            lanes.push(lane);
        }
        let mut lanes = Lanes {
            lanes,
            sends: Taker::new(self.sends),
            receives: Taker::new(self.receives),
            memory: self.memory,
            test: self.test,
            mtu_bytes,
        };
        if lanes.test.operation == Operation::Send {
            for lane in 0..lanes.lanes.len() {
                lanes.post_receives(lane, RECEIVES)?;
            }
        }
        Ok(lanes)
    }
}

impl<K: Measured> Lanes<K> {
    /// Posts one request of the test on queue pair `lane`; `signalled` asks for its completion, which carries `id`.
    #[inline]
    pub(super) fn post(&mut self, lane: usize, id: u64, signalled: bool) -> Result<(), RawError> {
        let test = &self.test;
        let Lane { pair, peer, batch, number, remote, inline, .. } = &mut self.lanes[lane];
        let local = self.memory.range(test.source_at(*number), test.size_bytes.into())?;
        let what = Transfer {
            id,
            operation: test.operation,
            local,
            inline: inline.as_deref(),
            remote: *remote,
            signalled,
        };
        K::push(batch, &what, peer)?;
        Ok(pair.post_send(batch)?)
    }

    /// Posts receives of one message each on queue pair `lane`, which is their id.
    #[inline]
    pub(super) fn post_receives(&mut self, lane: usize, count: u32) -> Result<(), RawError> {
        let test = &self.test;
        let Lane { pair, receive_batch, number, .. } = &mut self.lanes[lane];
        let len_bytes = u64::from(test.size_bytes) + DATAGRAM_HEADER_BYTES;
        for _ in 0..count {
            receive_batch.push(lane as u64, self.memory.range(test.target_at(*number), len_bytes)?)?;
        }
        Ok(pair.post_receive(receive_batch)?)
    }

    /// Sets the last byte of what the first queue pair sends next.
    #[inline]
    pub(super) fn mark_source(&mut self, mark: u8) {
        let at = self.test.source_at(0) + u64::from(self.test.size_bytes) - 1;
        self.memory.words().store(at as usize / 8, u64::from(mark) * 0x0101_0101_0101_0101);
        if let Some(last) = self.lanes[0].inline.as_mut().and_then(|bytes| bytes.last_mut()) {
            *last = mark;
        }
    }

    /// The last byte of what the peer wrote to the first queue pair's target.
    #[inline]
    pub(super) fn target_mark(&self) -> u8 {
        let at = (self.test.target_at(0) + u64::from(self.test.size_bytes) - 1) as usize;
        let word = self.memory.words().read_only().load_acquire(at / 8);
        // In the order of memory, whatever the processor's is.
        (word.to_le() >> (8 * (at % 8))) as u8
    }
}

impl<K: Measured> Lane<K> {
    fn new(
        pair: QueuePair<K, ReadyToSend>,
        peer: K::Peer,
        number: u32,
        test: &Test,
        remote: &RemoteMemory,
        inline_granted: u32,
    ) -> Result<Self, RawError> {
        let carries = K::INLINE
            && test.measure == Measure::Latency
            && test.operation != Operation::Read
            && test.size_bytes <= inline_granted;
        Ok(Self {
            pair,
            peer,
            batch: SendBatch::with_capacity(1),
            receive_batch: ReceiveBatch::with_capacity(RECEIVES as usize),
            number,
            remote: remote.range(test.target_at(number), test.size_bytes.into())?,
            inline: carries.then(|| vec![0; test.size_bytes as usize]),
        })
    }
}
