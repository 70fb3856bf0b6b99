//! What goes wrong, and how it is reported.

use kv_common::verbs::{
    CompletionStatus, Context, Local, OpenError, ReadSink, ReceiveBatch, RemoteMemory, RemoteReadable,
    RemoteRights, RetryPolicy, SendBatch, SendOnly, SharedReceiveQueue,
};

use crate::setup::{connected, connected_with, receive, side, side_of, take, take_one};

/// READs one word of `remote` and gives the status of its completion.
fn status_of_read(
    rights: RemoteRights,
    remote: impl FnOnce(RemoteMemory) -> RemoteMemory,
) -> Option<CompletionStatus> {
    let a = side("status_of_read")?;
    let b = side_of(a.context.clone());
    let (mut reader, _served) = connected_with(&a, &b, rights, RetryPolicy::default(), None);
    let region = b.memory::<RemoteReadable>(4096);
    let sink = a.memory::<ReadSink>(4096);
    sink.words().store(0, 1);
    let remote = remote(region.remote());
    let mut batch = SendBatch::with_capacity(1);
    let last = remote.range(remote.len_bytes - 8, 8).unwrap();
    batch.read(1, sink.range(0, 8).unwrap(), last).unwrap().signalled();
    reader.post_send(&mut batch).unwrap();
    let (id, result) = take_one(&a.queue);
    assert_eq!(id, 1);
    let error = result.unwrap_err();
    assert_eq!(error.queue_pair, reader.number());
    assert_eq!(sink.words().read_only().load(0), 1, "nothing was brought");
    assert_eq!(reader.device_state().unwrap(), 6, "the connection is broken");
    println!("{error}");
    Some(error.status)
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_stale_key_is_a_remote_access_error_that_says_what_to_do() {
    let stale = |remote: RemoteMemory| RemoteMemory { rkey: remote.rkey ^ 0x5a, ..remote };
    let Some(status) = status_of_read(RemoteRights::Read, stale) else { return };
    assert_eq!(status, CompletionStatus::RemoteAccess);
    assert!(status.to_string().contains("connect again"), "{status}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_read_beyond_the_region_is_a_remote_access_error() {
    let longer = |remote: RemoteMemory| RemoteMemory { len_bytes: remote.len_bytes + 8, ..remote };
    let Some(status) = status_of_read(RemoteRights::Read, longer) else { return };
    assert_eq!(status, CompletionStatus::RemoteAccess);
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_pair_without_the_right_serves_no_read() {
    let Some(status) = status_of_read(RemoteRights::None, |remote| remote) else { return };
    let expected = [CompletionStatus::RemoteInvalidRequest, CompletionStatus::RemoteAccess];
    assert!(expected.contains(&status), "{status}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_that_peers_may_read_cannot_be_written() {
    let Some(a) = side("memory_that_peers_may_read_cannot_be_written") else { return };
    let b = side_of(a.context.clone());
    // The queue pair would allow it.
    let (mut writer, _written) = connected(&a, &b);
    let region = b.memory::<RemoteReadable>(4096);
    let source = a.memory::<SendOnly>(4096);
    source.words().store(0, 1);
    let mut batch = SendBatch::with_capacity(1);
    batch.write(1, source.range(0, 8).unwrap(), region.remote().range(0, 8).unwrap()).unwrap();
    writer.post_send(&mut batch).unwrap();
    assert_eq!(take_one(&a.queue).1.unwrap_err().status, CompletionStatus::RemoteAccess);
    assert_eq!(region.words().read_only().load(0), 0);
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_that_was_given_back_is_not_written() {
    let Some(a) = side("memory_that_was_given_back_is_not_written") else { return };
    let b = side_of(a.context.clone());
    let (mut reader, _served) = connected(&a, &b);
    let region = b.memory::<RemoteReadable>(4096);
    region.words().store(0, 0xbad);
    let sink = a.memory::<ReadSink>(4096);
    let words = sink.words().clone();
    let range = sink.range(0, 8).unwrap();
    drop(sink);
    let mut batch = SendBatch::with_capacity(1);
    batch.read(1, range, region.remote().range(0, 8).unwrap()).unwrap().signalled();
    reader.post_send(&mut batch).unwrap();
    let (_, result) = take_one(&a.queue);
    let status = result.unwrap_err().status;
    assert!(
        matches!(status, CompletionStatus::LocalProtection | CompletionStatus::LocalOperation),
        "{status}"
    );
    assert_eq!(words.read_only().load(0), 0, "the device did not write to it");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_receiver_without_receives_is_given_up() {
    let Some(a) = side("a_receiver_without_receives_is_given_up") else { return };
    let b = side_of(a.context.clone());
    let retry = RetryPolicy { receiver_retries: 1, receiver_timer: 1, ..RetryPolicy::default() };
    let (mut sender, _receiver) = connected_with(&a, &b, RemoteRights::None, retry, None);
    let source = a.memory::<SendOnly>(64);
    let mut batch = SendBatch::with_capacity(1);
    batch.send(1, source.range(0, 8).unwrap()).unwrap();
    sender.post_send(&mut batch).unwrap();
    let (id, result) = take_one(&a.queue);
    assert_eq!((id, result.unwrap_err().status), (1, CompletionStatus::ReceiverNotReady));
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_message_that_is_too_long_breaks_both_sides() {
    let Some(a) = side("a_message_that_is_too_long_breaks_both_sides") else { return };
    let b = side_of(a.context.clone());
    let (mut sender, mut receiver) = connected(&a, &b);
    let buffer = b.memory::<Local>(4096);
    receiver.post_receive(&mut receive(5, &buffer, 0, 16)).unwrap();
    let source = a.memory::<SendOnly>(4096);
    let mut batch = SendBatch::with_capacity(1);
    batch.send(1, source.range(0, 64).unwrap()).unwrap();
    sender.post_send(&mut batch).unwrap();
    let (_, result) = take_one(&a.queue);
    let status = result.unwrap_err().status;
    let expected = [CompletionStatus::RemoteInvalidRequest, CompletionStatus::RemoteOperation];
    assert!(expected.contains(&status), "{status}");
    let (id, result) = take_one(&b.queue);
    assert_eq!(id, 5);
    assert!(result.is_err(), "{result:?}");
    assert!(buffer.words().read_only().load(2) == 0, "nothing was written behind the buffer");
}

#[test]
#[ignore = "needs an RDMA device"]
fn the_error_state_gives_every_buffer_back() {
    let Some(a) = side("the_error_state_gives_every_buffer_back") else { return };
    let b = side_of(a.context.clone());
    // The peer has no receive, so SENDs stay in the queue.
    let patient = RetryPolicy { receiver_timer: 31, ..RetryPolicy::default() };
    let (mut sender, _receiver) = connected_with(&a, &b, RemoteRights::None, patient, None);
    let memory = a.memory::<Local>(4096);
    let mut receives = ReceiveBatch::with_capacity(10);
    for id in 100..110 {
        receives.push(id, memory.range(0, 64).unwrap()).unwrap();
    }
    sender.post_receive(&mut receives).unwrap();
    let mut batch = SendBatch::with_capacity(10);
    for id in 0..10 {
        batch.send(id, memory.range(0, 8).unwrap()).unwrap();
    }
    sender.post_send(&mut batch).unwrap();
    let mut sender = sender.into_error().unwrap();
    // A marker: when it comes, everything that was posted before it has come.
    batch.send(999, memory.range(0, 0).unwrap()).unwrap().signalled();
    sender.post_send(&mut batch).unwrap();
    let taken = take(&a.queue, 21);
    assert!(
        taken.iter().all(|(_, result)| result.unwrap_err().status == CompletionStatus::Flushed),
        "{taken:?}"
    );
    let ids = |range: std::ops::Range<u64>| {
        taken.iter().map(|&(id, _)| id).filter(move |id| range.contains(id)).collect::<Vec<_>>()
    };
    assert_eq!(ids(0..100), (0..10).collect::<Vec<_>>(), "in their order");
    assert_eq!(ids(100..200), (100..110).collect::<Vec<_>>(), "in their order");
    let at = |wanted: u64| taken.iter().position(|&(id, _)| id == wanted).unwrap();
    assert!(at(9) < at(999), "the marker is the last of the send queue");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_queue_pair_that_ends_leaves_the_shared_queue_to_others() {
    let Some(a) = side("a_queue_pair_that_ends_leaves_the_shared_queue_to_others") else { return };
    let b = side_of(a.context.clone());
    let shared = SharedReceiveQueue::create(&b.domain, 8, 0).unwrap();
    let policy = RetryPolicy::default();
    let (_gone, first) = connected_with(&a, &b, RemoteRights::None, policy, Some(&shared));
    let (mut sender, _second) = connected_with(&a, &b, RemoteRights::None, policy, Some(&shared));
    let buffer = b.memory::<Local>(64);
    shared.post(&mut receive(1, &buffer, 0, 64)).unwrap();
    let number = first.number();
    let first = first.into_error().unwrap();
    let seen = b.context.next_event().unwrap();
    println!("after the error state of queue pair {number:#x}: {seen:?}");
    drop(first);
    let source = a.memory::<SendOnly>(64);
    let mut batch = SendBatch::with_capacity(1);
    batch.send(2, source.range(0, 8).unwrap()).unwrap().signalled();
    sender.post_send(&mut batch).unwrap();
    assert!(take_one(&a.queue).1.is_ok());
    assert_eq!(take_one(&b.queue).0, 1, "the receive that the first one did not take");
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_device_that_is_not_there_is_an_error_that_lists_those_that_are() {
    let Some(a) = side("a_device_that_is_not_there_is_an_error_that_lists_those_that_are") else { return };
    let error = Context::open(Some("mlx5_99")).err().unwrap();
    assert!(matches!(error, OpenError::NoSuchDevice { .. }));
    let text = error.to_string();
    assert!(text.contains("mlx5_99") && text.contains(&a.context.device().name), "{text}");
}
