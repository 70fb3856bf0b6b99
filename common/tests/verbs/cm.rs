//! Connections by rdma_cm, from this host to itself.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use kv_common::verbs::cm::{CmError, CmOptions, Connected, Incoming, Listener, Resolved};
use kv_common::verbs::{
    Completed, Context, Init, Local, Mtu, QueuePair, QueuePairOptions, Rc, ReadSink, RemoteReadable,
    RemoteRights, RetryPolicy, SendBatch, SendOnly, SharedReceiveQueue,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::setup::{PATIENCE, Side, receive, side, side_of, take, take_one};

fn options(rights: RemoteRights, private_data: &[u8]) -> CmOptions<'_> {
    CmOptions {
        rights,
        reads_started_max: 16,
        reads_served_max: 8,
        mtu_max: Mtu::B4096,
        retry: RetryPolicy::default(),
        private_data,
    }
}

fn wait(fd: BorrowedFd<'_>) {
    let timeout = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap(), 1, "an event in time");
}

/// Listens at the address of the device's GID; on iWARP, where that is none, at the rig's.
fn listen(side: &Side) -> Listener {
    let address = match side.context.is_iwarp() {
        true => std::env::var("KV_RIG_ADDRESS").unwrap().parse().unwrap(),
        false => side.port.gid().gid.address(),
    };
    let listener = Listener::listen(SocketAddr::new(address, 0), 8).unwrap();
    assert_ne!(listener.address().port(), 0);
    listener
}

fn next(listener: &Listener) -> Incoming {
    loop {
        if let Some(incoming) = listener.next().unwrap() {
            return incoming;
        }
        wait(listener.fd());
    }
}

/// The asking side: a device of its own, as in another process.
fn asking(address: SocketAddr) -> (Resolved, Side, QueuePair<Rc, Init>) {
    let source = SocketAddr::new(address.ip(), 0);
    let resolved = Resolved::resolve(address, Some(source), PATIENCE).unwrap();
    assert_eq!(resolved.port(), 1);
    let side = side_of(Context::open(Some(resolved.device())).unwrap());
    let pair = QueuePair::create(&side.options()).unwrap();
    let pair = resolved.initialize(pair, RemoteRights::None).unwrap();
    (resolved, side, pair)
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_connection_carries_reads_and_sends_and_ends() {
    let Some(b) = side("a_connection_carries_reads_and_sends_and_ends") else { return };
    let listener = listen(&b);
    let address = listener.address();
    assert!(listener.next().unwrap().is_none());
    let region = b.memory::<RemoteReadable>(4096);
    region.words().store(1, 0x77);
    let shared = SharedReceiveQueue::create(&b.domain, 4, 0).unwrap();
    let buffer = b.memory::<Local>(64);
    shared.post(&mut receive(5, &buffer, 0, 64)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (resolved, a, pair) = asking(address);
            let Connected { mut pair, connection, private_data: data } =
                resolved.connect(pair, &options(RemoteRights::None, b"ask"), PATIENCE).unwrap();
            assert_eq!(&data[..6], b"answer");
            assert_eq!((connection.reads_started_max(), connection.reads_served_max()), (8, 8));
            assert_eq!(connection.peer(), Some(address));
            let (sink, source) = (a.memory::<ReadSink>(64), a.memory::<SendOnly>(64));
            let mut batch = SendBatch::with_capacity(2);
            batch
                .read(1, sink.range(0, 8).unwrap(), region.remote().range(8, 8).unwrap())
                .unwrap()
                .signalled();
            batch.send(2, source.range(0, 16).unwrap()).unwrap().signalled();
            pair.post_send(&mut batch).unwrap();
            assert_eq!(take(&a.queue, 2), [(1, Ok(Completed::Read)), (2, Ok(Completed::Send))]);
            assert_eq!(sink.words().read_only().load(0), 0x77);
            drop(connection);
        });
        let incoming = next(&listener);
        assert_eq!(&incoming.private_data()[..3], b"ask");
        assert_eq!(incoming.device(), Some((b.context.device().name.clone(), 1)));
        let pair =
            QueuePair::create(&QueuePairOptions { shared_receive: Some(&shared), ..b.options() }).unwrap();
        let pair = incoming.initialize(pair, RemoteRights::Read).unwrap();
        let (pair, connection) = incoming.accept(pair, &options(RemoteRights::Read, b"answer")).unwrap();
        assert_eq!((connection.reads_started_max(), connection.reads_served_max()), (8, 8));
        assert_eq!(take_one(&b.queue), (5, Ok(Completed::Receive { len_bytes: 16, immediate: None })));
        drop(connection);
        assert!(listener.next().unwrap().is_none());
        pair.into_error().unwrap();
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_request_can_be_rejected_with_a_reason() {
    let Some(b) = side("a_request_can_be_rejected_with_a_reason") else { return };
    let listener = listen(&b);
    let address = listener.address();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (resolved, _a, pair) = asking(address);
            let error = resolved.connect(pair, &options(RemoteRights::None, &[]), PATIENCE).err().unwrap();
            let CmError::Rejected { reason, private_data } = &error else { panic!("{error}") };
            assert_eq!(*reason, 28, "{error}");
            assert_eq!(&private_data[..4], b"full");
        });
        next(&listener).reject(b"full").unwrap();
    });
    // One that is dropped is rejected, too.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (resolved, _a, pair) = asking(address);
            let error = resolved.connect(pair, &options(RemoteRights::None, &[]), PATIENCE).err().unwrap();
            assert!(matches!(error, CmError::Rejected { .. }), "{error}");
        });
        drop(next(&listener));
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_request_of_a_peer_that_has_given_up_can_be_taken_all_the_same() {
    let Some(b) = side("a_request_of_a_peer_that_has_given_up_can_be_taken_all_the_same") else { return };
    let listener = listen(&b);
    let (resolved, _a, pair) = asking(listener.address());
    drop(resolved.request(pair, &options(RemoteRights::None, &[])).unwrap());
    let incoming = next(&listener);
    // Its system has told this one, or will when it gets the answer.
    let pair = incoming.initialize(QueuePair::create(&b.options()).unwrap(), RemoteRights::Read);
    drop(pair.and_then(|pair| incoming.accept(pair, &options(RemoteRights::Read, &[]))));
    let (resolved, _a, pair) = asking(listener.address());
    let requested = resolved.request(pair, &options(RemoteRights::None, b"next")).unwrap();
    let incoming = next(&listener);
    assert_eq!(&incoming.private_data()[..4], b"next");
    incoming.reject(b"enough").unwrap();
    let error = requested.finish(&options(RemoteRights::None, &[]), PATIENCE).err().unwrap();
    assert!(error.to_string().ends_with(": enough"), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn an_address_of_no_rdma_device_is_named() {
    let Some(_b) = side("an_address_of_no_rdma_device_is_named") else { return };
    for address in ["127.0.0.1:7410", "[::1]:7410", "[::ffff:127.0.0.1]:7410"] {
        let address: SocketAddr = address.parse().unwrap();
        // The kernel would listen on all addresses.
        let error = Listener::listen(address, 8).err().unwrap();
        assert!(matches!(error, CmError::NoDevice { .. }), "{error}");
        let error = Resolved::resolve(address, None, PATIENCE).err().unwrap();
        assert!(matches!(error, CmError::NoDevice { .. }), "{error}");
    }
    // An address of nobody: TEST-NET-3.
    let nobody: SocketAddr = "203.0.113.1:0".parse().unwrap();
    let error = Listener::listen(nobody, 8).err().unwrap();
    assert!(matches!(error, CmError::NoDevice { .. }), "{error}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_cannot_be_connected_says_why() {
    let Some(b) = side("what_cannot_be_connected_says_why") else { return };
    let listener = listen(&b);
    let address = listener.address();
    let (resolved, _a, pair) = asking(address);
    let long = [0; 57];
    let error = resolved.connect(pair, &options(RemoteRights::None, &long), PATIENCE).err().unwrap();
    assert!(matches!(error, CmError::PrivateData { len_bytes: 57, max_bytes: 56 }), "{error}");

    // The listener takes the request and says nothing.
    let (resolved, _a, pair) = asking(address);
    let short = Duration::from_millis(50);
    let error = resolved.connect(pair, &options(RemoteRights::None, &[]), short).err().unwrap();
    assert!(matches!(error, CmError::Timeout { .. }), "{error}");

    let (resolved, _a, pair) = asking(address);
    drop(listener);
    let error = resolved.connect(pair, &options(RemoteRights::None, &[]), PATIENCE).err().unwrap();
    assert!(
        matches!(error, CmError::Rejected { .. }) && error.to_string().contains("nobody listens"),
        "{error}"
    );
}
