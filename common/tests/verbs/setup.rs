//! Two queue pairs of one process, connected to each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::verbs::{
    Access, Capacity, Completed, CompletionError, CompletionQueue, Completions, Context, Endpoint, Local,
    LocalPort, MemoryRegion, OpenError, Path, ProtectionDomain, QueuePair, QueuePairOptions, Rc, ReadyToSend,
    ReceiveBatch, RemoteRights, RetryPolicy, SharedReceiveQueue, Uc, anonymous_words,
};

use crate::support::not_run;

/// More than any completion here takes, on an emulated processor too: a test that waits longer has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const CAPACITY: Capacity = Capacity { sends: 64, receives: 64, inline_bytes: 64 };

/// One end: a device and what both directions share.
pub(crate) struct Side {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) port: LocalPort,
}

/// Opens the first device; if there is none, says that the test was not run.
pub(crate) fn side(test: &str) -> Option<Side> {
    let context = match Context::open(None) {
        Ok(context) => context,
        Err(OpenError::None(why)) => {
            not_run(test, &format!("no RDMA device: {why}"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    Some(side_of(context))
}

pub(crate) fn side_of(context: Arc<Context>) -> Side {
    let domain = ProtectionDomain::allocate(&context).unwrap();
    let queue = CompletionQueue::create(&context, 256, 1, None, 0).unwrap();
    let (port, choice) = LocalPort::choose(&context, 1, None, None).unwrap();
    assert_eq!(choice.chosen.as_ref(), Some(port.gid()));
    Side { context, domain, queue, port }
}

impl Side {
    pub(crate) fn options(&self) -> QueuePairOptions<'_> {
        QueuePairOptions {
            domain: &self.domain,
            send_queue: &self.queue,
            receive_queue: &self.queue,
            shared_receive: None,
            capacity: CAPACITY,
        }
    }

    pub(crate) fn memory<A: Access>(&self, len_bytes: usize) -> MemoryRegion<A> {
        MemoryRegion::register(&self.domain, &anonymous_words(len_bytes, false).unwrap()).unwrap()
    }
}

/// Two connected queue pairs; what completes on the first arrives in `a`'s queue.
pub(crate) fn connected(a: &Side, b: &Side) -> (QueuePair<Rc, ReadyToSend>, QueuePair<Rc, ReadyToSend>) {
    connected_with(a, b, RemoteRights::ReadWrite, RetryPolicy::default(), None)
}

pub(crate) fn connected_with(
    a: &Side,
    b: &Side,
    rights: RemoteRights,
    retry: RetryPolicy,
    shared_receive_of_b: Option<&Arc<SharedReceiveQueue>>,
) -> (QueuePair<Rc, ReadyToSend>, QueuePair<Rc, ReadyToSend>) {
    let first = QueuePair::<Rc, _>::create(&a.options()).unwrap();
    let second =
        QueuePair::<Rc, _>::create(&QueuePairOptions { shared_receive: shared_receive_of_b, ..b.options() })
            .unwrap();
    let here = Endpoint::new(first.number(), &a.port).unwrap();
    let there = over_the_wire(&Endpoint::new(second.number(), &b.port).unwrap());
    let (to, back) = (
        Path::new(&a.port, &here, &there, retry).unwrap(),
        Path::new(&b.port, &there, &here, retry).unwrap(),
    );
    let first = first.initialize(a.port.number(), rights).unwrap();
    let second = second.initialize(b.port.number(), rights).unwrap();
    (first.connect(&to).unwrap(), second.connect(&back).unwrap())
}

pub(crate) fn connected_unreliably(
    a: &Side,
    b: &Side,
) -> (QueuePair<Uc, ReadyToSend>, QueuePair<Uc, ReadyToSend>) {
    let first = QueuePair::<Uc, _>::create(&a.options()).unwrap();
    let second = QueuePair::<Uc, _>::create(&b.options()).unwrap();
    let here = Endpoint::new(first.number(), &a.port).unwrap();
    let there = Endpoint::new(second.number(), &b.port).unwrap();
    let to = Path::new(&a.port, &here, &there, RetryPolicy::default()).unwrap();
    let back = Path::new(&b.port, &there, &here, RetryPolicy::default()).unwrap();
    let first = first.initialize(a.port.number(), RemoteRights::ReadWrite).unwrap();
    let second = second.initialize(b.port.number(), RemoteRights::ReadWrite).unwrap();
    (first.connect(&to).unwrap(), second.connect(&back).unwrap())
}

fn over_the_wire(endpoint: &Endpoint) -> Endpoint {
    Endpoint::from_bytes(&endpoint.to_bytes()).unwrap()
}

pub(crate) type Taken = (u64, Result<Completed, CompletionError>);

/// Takes `count` completions.
pub(crate) fn take(queue: &CompletionQueue, count: usize) -> Vec<Taken> {
    let mut room = Completions::with_capacity(16);
    let mut taken = Vec::new();
    let begun = Instant::now();
    while taken.len() < count {
        let before = taken.len();
        taken.extend(queue.poll(&mut room).unwrap().map(|one| (one.id(), one.result())));
        if taken.len() == before {
            assert!(begun.elapsed() < PATIENCE, "{count} completions expected, only these came: {taken:?}");
            std::thread::yield_now();
        }
    }
    assert_eq!(taken.len(), count, "more completions than expected: {taken:?}");
    taken
}

/// Takes one completion.
pub(crate) fn take_one(queue: &CompletionQueue) -> Taken {
    take(queue, 1).remove(0)
}

/// Posts one receive of `len_bytes` at byte `at` of `memory`.
pub(crate) fn receive(id: u64, memory: &MemoryRegion<Local>, at: u64, len_bytes: u64) -> ReceiveBatch {
    let mut batch = ReceiveBatch::with_capacity(1);
    batch.push(id, memory.range(at, len_bytes).unwrap()).unwrap();
    batch
}
