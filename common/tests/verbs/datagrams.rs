//! Datagrams.

use kv_common::verbs::{
    AddressHandle, Completed, Endpoint, Local, Path, QueuePair, RetryPolicy, SendBatch, SendOnly, Ud,
};

use crate::setup::{receive, side, side_of, take_one};

/// Bytes in front of each datagram: the global route header.
const HEADER_BYTES: u64 = 40;

#[test]
#[ignore = "needs an RDMA device"]
fn a_datagram_reaches_the_queue_pair_that_it_names() {
    let Some(a) = side("a_datagram_reaches_the_queue_pair_that_it_names") else { return };
    let b = side_of(a.context.clone());
    let mut sender = QueuePair::<Ud, _>::create(&a.options()).unwrap().open(1, 0x1111, 5).unwrap();
    let mut receiver = QueuePair::<Ud, _>::create(&b.options()).unwrap().open(1, 0x2222, 6).unwrap();
    let here = Endpoint::new(sender.number(), &a.port).unwrap();
    let there = Endpoint::new(receiver.number(), &b.port).unwrap();
    let path = Path::new(&a.port, &here, &there, RetryPolicy::default()).unwrap();
    let to = AddressHandle::create(&a.domain, &path).unwrap();
    let buffer = b.memory::<Local>(4096);
    receiver.post_receive(&mut receive(4, &buffer, 0, 256)).unwrap();
    let source = a.memory::<SendOnly>(64);
    source.words().store(0, 0xabcd);
    let mut batch = SendBatch::<Ud>::with_capacity(1);
    batch.send_to(8, source.range(0, 8).unwrap(), &to, receiver.number(), 0x2222).unwrap().signalled();
    // The batch and then the queue pair keep the address.
    drop(to);
    sender.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue), (8, Ok(Completed::Send)));
    let len_bytes = HEADER_BYTES as u32 + 8;
    assert_eq!(take_one(&b.queue), (4, Ok(Completed::Receive { len_bytes, immediate: None })));
    assert_eq!(buffer.words().read_only().load(HEADER_BYTES as usize / 8), 0xabcd);
}
