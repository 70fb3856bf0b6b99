//! What connections carry.

use kv_common::transport::shm::mapping::{PagePolicy, create_region};
use kv_common::verbs::{
    BatchError, Completed, CompletionChannel, CompletionQueue, Endpoint, Local, MemoryRegion, Path,
    PostError, QueuePair, QueuePairOptions, Rc, ReadSink, ReceiveBatch, RemoteReadable, RemoteRights,
    RemoteWritable, RetryPolicy, SendBatch, SendOnly, SharedReceiveQueue, Uc, anonymous_words,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::setup::{
    PATIENCE, Side, connected, connected_unreliably, connected_with, receive, side, side_of, take, take_one,
};

#[test]
#[ignore = "needs an RDMA device"]
fn a_read_brings_what_is_there() {
    let Some(a) = side("a_read_brings_what_is_there") else { return };
    let b = side_of(a.context.clone());
    let (mut reader, _served) = connected_with(&a, &b, RemoteRights::Read, RetryPolicy::default(), None);
    let region = b.memory::<RemoteReadable>(64 << 10);
    for at in 0..region.words().read_only().len_words() {
        region.words().store(at, (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let sink = a.memory::<ReadSink>(64 << 10);
    let mut batch = SendBatch::with_capacity(8);
    // One word, a line, an odd number of bytes, more than any MTU; all linked, the last one signalled.
    let reads: [(u64, u64); 4] = [(8, 8), (64, 64), (128, 13), (4096, 20_000)];
    for (id, &(at, len)) in reads.iter().enumerate() {
        let request = batch
            .read(id as u64, sink.range(at, len).unwrap(), region.remote().range(at, len).unwrap())
            .unwrap();
        if id == reads.len() - 1 {
            request.signalled();
        }
    }
    reader.post_send(&mut batch).unwrap();
    assert!(batch.is_empty());
    assert_eq!(take_one(&a.queue), (3, Ok(Completed::Read)), "only the last one was signalled");
    let bytes = |memory: &kv_common::region::Words| {
        let mut words = vec![0; (64 << 10) / 8];
        memory.read_only().copy_out(0, &mut words);
        kv_common::region::bytes_of(&words).to_vec()
    };
    let (here, there) = (bytes(sink.words()), bytes(region.words()));
    let mut expected = vec![0; 64 << 10];
    for (at, len) in reads.map(|(at, len)| (at as usize, len as usize)) {
        expected[at..at + len].copy_from_slice(&there[at..at + len]);
    }
    assert!(here == expected, "each READ brought its bytes and touched no others");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_write_stores_and_one_with_a_number_tells_the_peer() {
    let Some(a) = side("a_write_stores_and_one_with_a_number_tells_the_peer") else { return };
    let b = side_of(a.context.clone());
    let (mut writer, mut written) = connected(&a, &b);
    let source = a.memory::<SendOnly>(4096);
    source.words().store(0, 11);
    source.words().store(1, 22);
    let lent = b.memory::<RemoteWritable>(4096);
    let buffer = b.memory::<Local>(4096);
    written.post_receive(&mut receive(7, &buffer, 0, 64)).unwrap();
    let mut batch = SendBatch::with_capacity(2);
    batch.write(1, source.range(0, 8).unwrap(), lent.remote().range(80, 8).unwrap()).unwrap();
    batch
        .write_with_immediate(
            2,
            source.range(8, 8).unwrap(),
            lent.remote().range(88, 8).unwrap(),
            0x0102_0304,
        )
        .unwrap()
        .signalled();
    writer.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue), (2, Ok(Completed::Write)));
    assert_eq!(take_one(&b.queue), (7, Ok(Completed::ReceiveWrite { len_bytes: 8, immediate: 0x0102_0304 })));
    assert_eq!((lent.words().read_only().load(10), lent.words().read_only().load(11)), (11, 22));
    assert_eq!(buffer.words().read_only().load(0), 0, "the receive only gave its number");
}

#[test]
#[ignore = "needs an RDMA device"]
fn sends_arrive_in_order_inline_or_not() {
    let Some(a) = side("sends_arrive_in_order_inline_or_not") else { return };
    let b = side_of(a.context.clone());
    let (mut sender, mut receiver) = connected(&a, &b);
    let source = a.memory::<SendOnly>(4096);
    let buffers = b.memory::<Local>(4096);
    let mut receives = ReceiveBatch::with_capacity(3);
    for id in 0..3 {
        receives.push(id, buffers.range(id * 64, 64).unwrap()).unwrap();
    }
    receiver.post_receive(&mut receives).unwrap();
    source.words().store(0, 0x1111);
    let mut batch = SendBatch::with_capacity(3);
    batch.send(10, source.range(0, 8).unwrap()).unwrap();
    let inline = sender.capacity().inline_bytes;
    let second = 0x2222_u64.to_le_bytes();
    if inline >= 8 {
        batch.send_inline(11, &second).unwrap();
    } else {
        source.words().store(1, 0x2222);
        batch.send(11, source.range(8, 8).unwrap()).unwrap();
    }
    batch.send_with_immediate(12, source.range(0, 0).unwrap(), 99).unwrap().signalled();
    sender.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue), (12, Ok(Completed::Send)));
    let expected = |len_bytes, immediate| Ok(Completed::Receive { len_bytes, immediate });
    assert_eq!(
        take(&b.queue, 3),
        [(0, expected(8, None)), (1, expected(8, None)), (2, expected(0, Some(99)))]
    );
    assert_eq!(buffers.words().read_only().load(0), 0x1111);
    assert_eq!(buffers.words().read_only().load(8), 0x2222);

    let too_long = vec![0; inline as usize + 1];
    batch.send_inline(13, &too_long).unwrap();
    let error = sender.post_send(&mut batch).unwrap_err();
    assert!(matches!(error, PostError::Inline { len_bytes, .. } if len_bytes == inline + 1), "{error}");
    println!("inline bytes granted: {inline}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_unreliable_connection_writes_and_sends() {
    let Some(a) = side("an_unreliable_connection_writes_and_sends") else { return };
    let b = side_of(a.context.clone());
    let (mut sender, mut receiver) = connected_unreliably(&a, &b);
    let source = a.memory::<SendOnly>(4096);
    source.words().store(0, 5);
    let lent = b.memory::<RemoteWritable>(4096);
    let buffer = b.memory::<Local>(64);
    receiver.post_receive(&mut receive(3, &buffer, 0, 64)).unwrap();
    let mut batch = SendBatch::<Uc>::with_capacity(2);
    batch.write(1, source.range(0, 8).unwrap(), lent.remote().range(0, 8).unwrap()).unwrap();
    batch.send(2, source.range(0, 8).unwrap()).unwrap().signalled();
    sender.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue), (2, Ok(Completed::Send)));
    assert_eq!(take_one(&b.queue), (3, Ok(Completed::Receive { len_bytes: 8, immediate: None })));
    assert_eq!(lent.words().read_only().load(0), 5, "the WRITE was before the SEND");
}

#[test]
#[ignore = "needs an RDMA device"]
fn many_queue_pairs_take_receives_from_one_queue() {
    let Some(a) = side("many_queue_pairs_take_receives_from_one_queue") else { return };
    let b = side_of(a.context.clone());
    let shared = SharedReceiveQueue::create(&b.domain, 16, 4).unwrap();
    assert!(shared.capacity() >= 16);
    let mut pairs: Vec<_> = (0..3)
        .map(|_| connected_with(&a, &b, RemoteRights::None, RetryPolicy::default(), Some(&shared)))
        .collect();
    let buffers = b.memory::<Local>(4096);
    let mut receives = ReceiveBatch::with_capacity(3);
    for id in 0..3 {
        receives.push(id, buffers.range(id * 64, 64).unwrap()).unwrap();
    }
    shared.post(&mut receives).unwrap();
    let source = a.memory::<SendOnly>(64);
    for (number, (sender, receiver)) in pairs.iter_mut().enumerate() {
        let mut batch = SendBatch::with_capacity(1);
        batch.send(number as u64, source.range(0, 8 * (number as u64 + 1)).unwrap()).unwrap().signalled();
        sender.post_send(&mut batch).unwrap();
        assert_eq!(take_one(&a.queue), (number as u64, Ok(Completed::Send)));
        let (_, result) = take_one(&b.queue);
        assert_eq!(result, Ok(Completed::Receive { len_bytes: 8 * (number as u32 + 1), immediate: None }));
        let own = receiver.post_receive(&mut receive(9, &buffers, 0, 8));
        assert!(
            matches!(own, Err(PostError::SharedReceive)),
            "a queue pair with a shared queue has none of its own"
        );
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_channel_wakes_for_an_armed_queue() {
    let Some(a) = side("a_channel_wakes_for_an_armed_queue") else { return };
    let mut b = side_of(a.context.clone());
    let channel = CompletionChannel::create(&b.context).unwrap();
    b.queue = CompletionQueue::create(&b.context, 64, 77, Some(&channel), 0).unwrap();
    let (mut sender, mut receiver) = connected(&a, &b);
    let buffer = b.memory::<Local>(64);
    let source = a.memory::<SendOnly>(64);
    let mut batch = SendBatch::with_capacity(1);
    for round in 0..3 {
        assert_eq!(channel.next_event().unwrap(), None);
        receiver.post_receive(&mut receive(round, &buffer, 0, 64)).unwrap();
        b.queue.arm(false).unwrap();
        batch.send(round, source.range(0, 8).unwrap()).unwrap().signalled();
        sender.post_send(&mut batch).unwrap();
        let timeout = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&channel.fd(), PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(ready, 1, "the channel woke");
        assert_eq!(channel.next_event().unwrap(), Some(77));
        assert_eq!(channel.next_event().unwrap(), None, "one event for one arming");
        assert_eq!(take_one(&b.queue).0, round);
        assert_eq!(take_one(&a.queue).0, round);
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_full_queue_says_so_and_keeps_what_it_did_not_take() {
    let Some(a) = side("a_full_queue_says_so_and_keeps_what_it_did_not_take") else { return };
    let b = side_of(a.context.clone());
    let (mut sender, mut receiver) = connected(&a, &b);
    let capacity = receiver.capacity().receives as usize;
    let buffers = b.memory::<Local>(64);
    let wanted = capacity * 2 + 2;
    let mut receives = ReceiveBatch::with_capacity(wanted);
    for id in 0..wanted {
        receives.push(id as u64, buffers.range(0, 64).unwrap()).unwrap();
    }
    let full = BatchError::Full { capacity: wanted };
    assert_eq!(receives.push(0, buffers.range(0, 64).unwrap()), Err(full));
    let error = receiver.post_receive(&mut receives).unwrap_err();
    assert!(error.is_full(), "{error}");
    let PostError::Verb { posted, .. } = error else { panic!("{error}") };
    assert!(posted >= capacity, "{posted} of at least {capacity}");
    assert_eq!(receives.len(), wanted - posted);

    // Those that were taken work, in order.
    let source = a.memory::<SendOnly>(64);
    let mut batch = SendBatch::with_capacity(1);
    batch.send(1, source.range(0, 8).unwrap()).unwrap().signalled();
    sender.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue), (1, Ok(Completed::Send)));
    assert_eq!(take_one(&b.queue).0, 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_region_of_hugepages_is_registered_and_read_to_its_end() {
    const LEN: u64 = 64 << 20;
    let test = "a_region_of_hugepages_is_registered_and_read_to_its_end";
    let Some(a) = side(test) else { return };
    let words = match anonymous_words(LEN as usize, true) {
        Ok(words) => words,
        Err(error) => return crate::support::not_run(test, &format!("32 hugepages are not free: {error}")),
    };
    let b = side_of(a.context.clone());
    let (mut reader, _served) = connected(&a, &b);
    let region = MemoryRegion::<RemoteReadable>::register(&b.domain, &words).unwrap();
    words.store((LEN / 8) as usize - 1, 0xfeed);
    let sink = a.memory::<ReadSink>(4096);
    let mut batch = SendBatch::with_capacity(1);
    let last = region.remote().range(LEN - 8, 8).unwrap();
    batch.read(1, sink.range(0, 8).unwrap(), last).unwrap().signalled();
    reader.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue), (1, Ok(Completed::Read)));
    assert_eq!(sink.words().read_only().load(0), 0xfeed);
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_server_s_sealed_region_is_registered_and_read() {
    let test = "the_server_s_sealed_region_is_registered_and_read";
    let Some(a) = side(test) else { return };
    let b = side_of(a.context.clone());
    let (mut reader, _served) = connected(&a, &b);
    let sink = a.memory::<ReadSink>(64);
    for (policy, name) in [(PagePolicy::Off, "ordinary pages"), (PagePolicy::Require, "hugepages")] {
        let memory = match create_region(4 << 20, policy, &mut |_| {}) {
            Ok(memory) => memory,
            Err(error) => {
                crate::support::not_run(test, &format!("{name}: {error}"));
                continue;
            }
        };
        let region = MemoryRegion::<RemoteReadable>::register(&b.domain, &memory.words).unwrap();
        memory.words.store(1000, 0xcafe);
        let mut batch = SendBatch::with_capacity(1);
        let remote = region.remote().range(8000, 8).unwrap();
        batch.read(1, sink.range(0, 8).unwrap(), remote).unwrap().signalled();
        reader.post_send(&mut batch).unwrap();
        assert_eq!(take_one(&a.queue), (1, Ok(Completed::Read)), "{name}");
        assert_eq!(sink.words().read_only().load(0), 0xcafe, "{name}");
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn more_reads_than_the_depth_wait_in_the_queue() {
    let Some(a) = side("more_reads_than_the_depth_wait_in_the_queue") else { return };
    let b = side_of(a.context.clone());
    let (first, second) =
        (QueuePair::create(&a.options()).unwrap(), QueuePair::create(&b.options()).unwrap());
    let shallow = |number, side: &Side| Endpoint {
        reads_started_max: 2,
        reads_served_max: 2,
        ..Endpoint::new(number, &side.port).unwrap()
    };
    let (here, there) = (shallow(first.number(), &a), shallow(second.number(), &b));
    let path = |side: &Side, from, to| Path::new(&side.port, from, to, RetryPolicy::default()).unwrap();
    let (to, back) = (path(&a, &here, &there), path(&b, &there, &here));
    assert_eq!((to.reads_started_max, back.reads_served_max), (2, 2));
    let first: QueuePair<Rc, _> = first.initialize(1, RemoteRights::None).unwrap();
    let second: QueuePair<Rc, _> = second.initialize(1, RemoteRights::Read).unwrap();
    let (mut reader, _served) = (first.connect(&to).unwrap(), second.connect(&back).unwrap());
    let region = b.memory::<RemoteReadable>(4096);
    let sink = a.memory::<ReadSink>(4096);
    let mut batch = SendBatch::with_capacity(40);
    for id in 0..40 {
        region.words().store(id, id as u64 + 1);
        let at = id as u64 * 8;
        let remote = region.remote().range(at, 8).unwrap();
        batch.read(id as u64, sink.range(at, 8).unwrap(), remote).unwrap().signalled();
    }
    reader.post_send(&mut batch).unwrap();
    let expected: Vec<_> = (0..40).map(|id| (id, Ok(Completed::Read))).collect();
    assert_eq!(take(&a.queue, 40), expected);
    assert!((0..40).all(|id| sink.words().read_only().load(id) == id as u64 + 1));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_pair_can_be_connected_again() {
    let Some(a) = side("a_queue_pair_can_be_connected_again") else { return };
    let b = side_of(a.context.clone());
    let (first, second) = connected(&a, &b);
    assert_eq!(first.device_state().unwrap(), 3);
    let first = first.into_error().unwrap();
    assert_eq!(first.device_state().unwrap(), 6);
    let first: QueuePair<Rc, _> = first.reset().unwrap();
    assert_eq!(first.device_state().unwrap(), 0);
    drop((first, second));
    let mixed = QueuePairOptions { domain: &a.domain, ..b.options() };
    assert!(QueuePair::<Rc, _>::create(&mixed).is_ok(), "both domains are of one context");
}
