//! The client's side of connecting: device, queue pair, exchange, and READs that show that it works.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Parts, VerbsTransport};
use super::exchange::{ExchangeError, Half, REPLY_MAX_BYTES, Side, Verdict};
use super::port::describe;
use super::read_ring::RingMemoryError;
use super::work::{Memory, Sizes, Work};
use crate::hello::{Answer, Welcome};
use crate::layout::superblock;
use crate::limits::{RDMA_READS_IN_FLIGHT_MAX, RDMA_REPLIES_IN_FLIGHT_MAX};
use crate::probe::{IdentityError, TableView};
use crate::transport::handshake::{HelloError, receive_hello, send_hello};
use crate::transport::{Broken, Event, Transport};
use crate::verbs::{
    Capacity, CompletionChannel, CompletionQueue, Endpoint, LocalPort, MemoryRegion, Path, PathError,
    PostError, ProtectionDomain, QueuePair, QueuePairOptions, Rc, ReceiveBatch, RegisterError, RemoteRights,
    Reset, RetryPolicy, VerbError, anonymous_words,
};

/// Bytes of a request that are wished to go inline.
const INLINE_BYTES: u32 = 220;
/// How long a probe READ may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
    /// Memory cannot be registered.
    #[error(transparent)]
    Memory(#[from] RingMemoryError),
    /// Requests cannot be posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The two ports cannot be connected.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The control connection.
    #[error("on the control connection: {0}")]
    Control(#[from] HelloError),
    /// What the server sent.
    #[error("the server sent {0}")]
    Exchange(#[from] ExchangeError),
    /// The region of the hello and that of the exchange differ.
    #[error(
        "the server registered {registered_bytes} bytes and announced a region of {announced_bytes} bytes; use programs of \
         one release"
    )]
    OtherRegion {
        /// In the hello.
        announced_bytes: u64,
        /// In the exchange.
        registered_bytes: u64,
    },
    /// The server could not connect.
    #[error("the server could not connect: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// Connected, but READs do not work.
    #[error("connected, but a READ of {len_bytes} bytes failed: {broken}; path: {path}. {}", probe_remedy(*.len_bytes))]
    Probe {
        /// Bytes of the READ.
        len_bytes: usize,
        /// What happened.
        broken: Broken,
        /// The way.
        path: String,
    },
    /// What was read is no table.
    #[error("what was read over RDMA is not the server's table: {0}")]
    Identity(#[from] IdentityError),
    /// What was read is another table.
    #[error(
        "the region is table {found_table:016x} of start {found_start:016x}, the server announced {table:016x} of start \
         {start:016x}: it was restarted meanwhile; connect again"
    )]
    OtherTable {
        /// In the superblock.
        found_table: u64,
        /// In the superblock.
        found_start: u64,
        /// In the hello.
        table: u64,
        /// In the hello.
        start: u64,
    },
}

impl From<RegisterError> for ConnectError {
    fn from(error: RegisterError) -> ConnectError {
        RingMemoryError::from(error).into()
    }
}

fn probe_remedy(len_bytes: usize) -> &'static str {
    if len_bytes <= superblock::IDENTITY_WORDS * 8 {
        "Usual causes: a GID that the other host cannot reach (choose one: ?gid=N, --rdma-gid N), UDP port 4791 closed by a \
         firewall, hosts in different subnets, or VLANs; see `kv devices` on both"
    } else {
        "Shorter READs work, so the MTU is wrong somewhere on the way: the interfaces and switches must carry the RDMA MTU \
         and some 70 bytes more in one frame"
    }
}

/// Connects by RDMA through `port`, after the server has welcomed this client on `control`. The server does not wait long
/// for this side's half, so that whatever takes time is better done before the hello: the choice of the port is.
///
/// # Errors
/// [`ConnectError`]; whatever was made is gone then.
pub fn connect(
    control: TcpStream,
    welcome: &Welcome,
    port: LocalPort,
    deadline: Instant,
) -> Result<VerbsTransport, ConnectError> {
    let server = Half::decode(Side::Server, &hear(&control, deadline)?)?;
    if server.memory.len_bytes != welcome.region_bytes {
        let (announced_bytes, registered_bytes) = (welcome.region_bytes, server.memory.len_bytes);
        return Err(ConnectError::OtherRegion { announced_bytes, registered_bytes });
    }
    let domain = ProtectionDomain::allocate(port.context())?;
    let staging = anonymous_words(welcome.staging_bytes as usize, false).map_err(RingMemoryError::from)?;
    let staging = MemoryRegion::register(&domain, &staging)?;
    let sizes = sizes(&port, &server, welcome)?;
    let memory = Memory::new(&domain, sizes)?;
    let channel = CompletionChannel::create(port.context())?;
    let queue = CompletionQueue::create(port.context(), sizes.completions() as u32, 0, Some(&channel), 0)?;
    let capacity =
        Capacity { sends: sizes.sends() as u32, receives: sizes.replies as u32, inline_bytes: INLINE_BYTES };
    let options = QueuePairOptions {
        domain: &domain,
        send_queue: &queue,
        receive_queue: &queue,
        shared_receive: None,
        capacity,
    };
    let pair: QueuePair<Rc, Reset> = QueuePair::create(&options)?;
    // The server READs from the staging area, and writes nowhere.
    let mut pair = pair.initialize(port.number(), RemoteRights::Read)?;
    let mut receives = ReceiveBatch::with_capacity(sizes.replies);
    (0..sizes.replies).for_each(|index| memory.push_receive(index, &mut receives));
    pair.post_receive(&mut receives)?;
    let endpoint = Endpoint::new(pair.number(), &port)?;
    let path = Path::new(&port, &endpoint, &server.endpoint, RetryPolicy::default())?;
    let pair = pair.connect(&path)?;
    let half = Half {
        endpoint,
        memory: staging.remote(),
        receive_bytes: REPLY_MAX_BYTES as u32,
        receives: sizes.replies as u32,
    };
    send_hello(&control, &half.encode(Side::Client), &[], deadline)?;
    if let Verdict::Refused(reason) = Verdict::decode(&hear(&control, deadline)?)? {
        return Err(ConnectError::Refused { reason });
    }
    tracing::info!(port = %describe(&port), %path, "RDMA connected");
    let work = Work::new(pair, memory, sizes, server.memory);
    let parts = Parts { work, queue: Arc::clone(&queue), channel, port, staging, control };
    let mut transport = VerbsTransport::new(parts);
    probe(&mut transport, welcome, &path)?;
    Ok(transport)
}

/// The server's next message. It may be a refusal, if this side was too slow.
fn hear(control: &TcpStream, deadline: Instant) -> Result<Vec<u8>, ConnectError> {
    let message = receive_hello(control, 0, deadline)?.bytes;
    match Answer::decode(&message) {
        Ok(Answer::Refused(refusal)) => Err(ConnectError::Refused { reason: refusal.to_string() }),
        _ => Ok(message),
    }
}

fn sizes(port: &LocalPort, server: &Half, welcome: &Welcome) -> Result<Sizes, ConnectError> {
    let own = port.context().attributes()?;
    let reads = own.reads_started_max.min(server.endpoint.reads_served_max);
    Ok(Sizes {
        reads: (reads as usize).clamp(1, RDMA_READS_IN_FLIGHT_MAX),
        requests: welcome.requests_in_flight.min(server.receives) as usize,
        replies: RDMA_REPLIES_IN_FLIGHT_MAX,
    })
}

/// READs the superblock, once a part of it and once more than any packet holds.
fn probe(transport: &mut VerbsTransport, welcome: &Welcome, path: &Path) -> Result<(), ConnectError> {
    let identity = probe_read(transport, superblock::IDENTITY_WORDS, path)?;
    let view = TableView::from_identity(&identity, (welcome.region_bytes / 8) as usize)?;
    if (view.table_id, view.incarnation) != (welcome.table_id, welcome.incarnation) {
        return Err(ConnectError::OtherTable {
            found_table: view.table_id,
            found_start: view.incarnation,
            table: welcome.table_id,
            start: welcome.incarnation,
        });
    }
    probe_read(transport, path.mtu.bytes() as usize * 2 / 8, path).map(|_| ())
}

fn probe_read(
    transport: &mut VerbsTransport,
    len_words: usize,
    path: &Path,
) -> Result<Vec<u64>, ConnectError> {
    let failed = |broken| ConnectError::Probe { len_bytes: len_words * 8, broken, path: path.to_string() };
    transport.post_read(0, 0, vec![0; len_words].into());
    transport.flush();
    let until_ns = transport.now_ns() + PROBE_TIMEOUT.as_nanos() as u64;
    while transport.now_ns() < until_ns {
        match transport.poll() {
            Ok(Some(Event::Read { buffer, result, .. })) => {
                return result.map(|()| buffer.into_words()).map_err(failed);
            }
            Ok(Some(Event::Message(_))) => {
                return Err(failed(Broken::Protocol { what: "it sent a reply before a request".into() }));
            }
            Ok(None) => transport.wait(until_ns),
            Err(broken) => return Err(failed(broken)),
        }
    }
    Err(failed(Broken::Rdma { what: format!("no answer within {} ms", PROBE_TIMEOUT.as_millis()) }))
}
