//! Clients by RDMA that do what the library never does, and the others, who must not notice.

use std::net::TcpStream;
use std::sync::Arc;

use kv_client::Client;
use kv_common::hello::{Answer, Hello, Wanted, Welcome};
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::tcp::socket::connect;
use kv_common::transport::verbs::exchange::{Half, REPLY_MAX_BYTES, Side, Verdict, encode_credit};
use kv_common::transport::verbs::port::PortWish;
use kv_common::verbs::{
    Capacity, CompletionError, CompletionQueue, CompletionStatus, Completions, Endpoint, LocalRange,
    MemoryRegion, Path, ProtectionDomain, QueuePair, QueuePairOptions, Rc, ReadyToSend, ReceiveBatch,
    RemoteMemory, RemoteReadable, RemoteRights, Reset, RetryPolicy, SendBatch, anonymous_words,
};
use kv_common::wire::{Op, Request, Value};
use rustix::net::{RecvFlags, recv};

use crate::live::bystander::{self, good};
use crate::live::server::{Site, Transport};
use crate::live::{deadline, wait_for};

const RECEIVES: u32 = 64;
const REPLY_BYTES: u64 = REPLY_MAX_BYTES.next_multiple_of(64) as u64;

/// A client made by hand.
struct RdmaPeer {
    pair: QueuePair<Rc, ReadyToSend>,
    queue: Arc<CompletionQueue>,
    memory: MemoryRegion<RemoteReadable>,
    region: RemoteMemory,
    welcome: Welcome,
    control: TcpStream,
}

impl RdmaPeer {
    fn connect(site: &Site) -> RdmaPeer {
        let control = connect(&site.listen, deadline()).unwrap();
        let port = PortWish::default().choose(None).unwrap();
        send_hello(&control, &Hello::ours(Wanted::Rdma).encode(), &[], deadline()).unwrap();
        let hear = || receive_hello(&control, 0, deadline()).unwrap().bytes;
        let Answer::Welcome(welcome) = Answer::decode(&hear()).unwrap() else { panic!("not welcome") };
        let server = Half::decode(Side::Server, &hear()).unwrap();
        let domain = ProtectionDomain::allocate(port.context()).unwrap();
        let words =
            anonymous_words((u64::from(RECEIVES) * REPLY_BYTES) as usize + (64 << 10), false).unwrap();
        let memory: MemoryRegion<RemoteReadable> = MemoryRegion::register(&domain, &words).unwrap();
        let queue = CompletionQueue::create(port.context(), 1024, 0, None, 0).unwrap();
        let options = QueuePairOptions {
            domain: &domain,
            send_queue: &queue,
            receive_queue: &queue,
            shared_receive: None,
            capacity: Capacity { sends: 512, receives: RECEIVES, inline_bytes: 0 },
        };
        let pair: QueuePair<Rc, Reset> = QueuePair::create(&options).unwrap();
        let mut pair = pair.initialize(port.number(), RemoteRights::Read).unwrap();
        let mut receives = ReceiveBatch::with_capacity(RECEIVES as usize);
        for i in 0..u64::from(RECEIVES) {
            receives.push(u64::MAX, memory.range(i * REPLY_BYTES, REPLY_BYTES).unwrap()).unwrap();
        }
        pair.post_receive(&mut receives).unwrap();
        let endpoint = Endpoint::new(pair.number(), &port).unwrap();
        let path = Path::new(&port, &endpoint, &server.endpoint, RetryPolicy::default()).unwrap();
        let pair = pair.connect(&path).unwrap();
        let (receive_bytes, receives) = (REPLY_BYTES as u32, RECEIVES);
        let half = Half { endpoint, memory: memory.remote(), receive_bytes, receives };
        send_hello(&control, &half.encode(Side::Client), &[], deadline()).unwrap();
        assert_eq!(Verdict::decode(&hear()), Ok(Verdict::Connected));
        RdmaPeer { pair, queue, memory, region: server.memory, welcome, control }
    }

    /// Bytes to send, in registered memory. Always at the same place.
    fn bytes(&self, bytes: &[u8]) -> LocalRange<RemoteReadable> {
        let at = u64::from(RECEIVES) * REPLY_BYTES;
        for (i, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.memory.words().store(at as usize / 8 + i, u64::from_le_bytes(word));
        }
        self.memory.range(at, bytes.len() as u64).unwrap()
    }

    fn send(&mut self, message: &[u8], times: usize) {
        let range = self.bytes(message);
        let mut batch = SendBatch::with_capacity(times);
        for i in 0..times {
            batch.send(i as u64, range).unwrap().signalled();
        }
        self.pair.post_send(&mut batch).unwrap();
    }

    fn request(&self, op: Op, key: &[u8], value: Value<'_>) -> Vec<u8> {
        let request = Request::new(1, self.welcome.session, op, key, value);
        request.parts(&request.header()).concat()
    }

    /// What the next request that fails fails with.
    fn error(&self) -> CompletionError {
        let mut room = Completions::with_capacity(16);
        wait_for("a completion", || {
            self.queue.poll(&mut room).unwrap().find_map(|completion| completion.result().err())
        })
    }

    /// Waits until the server has closed the control connection.
    fn wait_for_end(&self) {
        wait_for("the server throws the client out", || {
            matches!(
                recv(&self.control, &mut [0; 64], RecvFlags::DONTWAIT),
                Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET)
            )
            .then_some(())
        });
    }
}

/// It has lost nothing, and nobody wrote in its stead.
fn assert_unharmed(client: &mut Client, round: u64) {
    bystander::assert_unharmed(client, round);
    assert_eq!(client.get(b"forged"), Ok(None));
}

#[test]
#[ignore = "needs an RDMA device"]
fn nobody_writes_to_the_region_or_reads_beyond_it() {
    let _alone = crate::alone();
    let (site, server, mut client) = good(Transport::Verbs, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let beyond = |region: RemoteMemory| RemoteMemory { len_bytes: region.len_bytes + 4096, ..region };
    for round in 0..4 {
        let mut peer = RdmaPeer::connect(&site);
        let (range, region) = (peer.bytes(&[7; 64]), peer.region);
        let mut batch = SendBatch::with_capacity(1);
        let other = RemoteMemory { rkey: region.rkey ^ 0x5555, ..region };
        let request = match round {
            0 => batch.write(1, range, region.range(0, 64).unwrap()),
            1 => batch.write(1, range, region.range(region.len_bytes - 64, 64).unwrap()),
            2 => batch.read(1, range, beyond(region).range(region.len_bytes - 32, 64).unwrap()),
            _ => batch.read(1, range, other.range(0, 64).unwrap()),
        };
        request.unwrap().signalled();
        peer.pair.post_send(&mut batch).unwrap();
        let status = peer.error().status;
        let is_refusal =
            matches!(status, CompletionStatus::RemoteAccess | CompletionStatus::RemoteInvalidRequest);
        assert!(is_refusal, "round {round}: {status:?}");
        assert_unharmed(&mut client, round);
    }
    server.wait_for_footprint(before, &mut client);
}

#[test]
#[ignore = "needs an RDMA device"]
fn clients_that_break_the_protocol_are_thrown_out_and_no_others() {
    let _alone = crate::alone();
    let (site, server, mut client) = good(Transport::Verbs, "32MiB");
    let before = server.footprint_of_one(&mut client);
    for round in 0..6 {
        let mut peer = RdmaPeer::connect(&site);
        match round {
            // Garbage, at once and as long as a request can be.
            0 => peer.send(&[0xff; 48], 1),
            1 => peer.send(&[0xff; 9000], 1),
            2 => {
                let mut forged = peer.request(Op::Put, b"forged", Value::Inline(b"value"));
                forged[8] ^= 1;
                peer.send(&forged, 1);
            }
            // More than it was sent.
            3 => {
                peer.send(&encode_credit(1 << 40), 1);
                let ping = peer.request(Op::Ping, b"", Value::Inline(b""));
                peer.send(&ping, 30);
            }
            // Words on the control connection.
            4 => send_hello(&peer.control, b"hello?", &[], deadline()).unwrap(),
            // It goes while its value is being fetched.
            _ => {
                let value = Value::Staged { offset_bytes: 0, len_bytes: 60_000, hash: 0 };
                let staged = peer.request(Op::Put, b"forged", value);
                peer.send(&staged, 1);
                drop(peer);
                assert_unharmed(&mut client, round);
                continue;
            }
        }
        peer.wait_for_end();
        assert_unharmed(&mut client, round);
    }
    server.wait_for_footprint(before, &mut client);
}

/// A server that knows no limits would lose receives to it, and others would wait for ever.
#[test]
#[ignore = "needs an RDMA device"]
fn clients_that_do_not_wait_for_replies_stop_nobody() {
    let _alone = crate::alone();
    let (site, server, mut client) = good(Transport::Verbs, "32MiB");
    let before = server.footprint_of_one(&mut client);
    for round in 0..5 {
        let mut peer = RdmaPeer::connect(&site);
        let ping = peer.request(Op::Ping, b"", Value::Inline(b""));
        peer.send(&ping, 300);
        // It never says that it took a reply, so that the server stops taking its requests; then more than the limit wait.
        peer.wait_for_end();
        assert_unharmed(&mut client, round);
    }
    server.wait_for_footprint(before, &mut client);
}
