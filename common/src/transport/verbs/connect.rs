//! The client's side of connecting: queue pair, exchange, and READs that show that it works. How the two queue pairs are
//! connected is the only thing in which rdma_cm (`by_cm.rs`) differs from the exchange over the control connection alone.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Parts, VerbsTransport};
use super::exchange::{ExchangeError, Half, REPLY_MAX_BYTES, Side, Verdict};
use super::meeting::{Meeting, Protocol};
use super::port::describe;
use super::read_ring::RingMemoryError;
use super::work::{Memory, Sizes, Work};
use crate::endpoint::ConnectBy;
use crate::hello::{Answer, Welcome};
use crate::layout::superblock;
use crate::limits::{RDMA_READS_IN_FLIGHT_MAX, RDMA_REPLIES_IN_FLIGHT_MAX};
use crate::probe::{IdentityError, TableView};
use crate::transport::handshake::{HelloError, receive_hello, send_hello};
use crate::transport::{Broken, Event, Transport};
use crate::verbs::cm::{CmConnection, CmError};
use crate::verbs::{
    Capacity, CompletionChannel, CompletionQueue, Endpoint, Init, LocalPort, MemoryRegion, Mtu, Path,
    PathError, PostError, ProtectionDomain, QueuePair, QueuePairOptions, Rc, ReadyToSend, ReceiveBatch,
    RegisterError, RemoteReadable, RemoteRights, Reset, RetryPolicy, VerbError, anonymous_words,
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
    /// rdma_cm does not connect them.
    #[error("by rdma_cm: {0}")]
    Cm(#[from] CmError),
    /// Devices that do not speak with each other.
    #[error(
        "the server's device speaks {server}, and this one, {device}, speaks {own}: they cannot be connected; choose another \
         (?device=NAME, --rdma-device NAME), or kv+tcp://"
    )]
    OtherProtocol {
        /// The device of this side.
        device: String,
        /// What it speaks.
        own: Protocol,
        /// What the server's speaks.
        server: Protocol,
    },
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
         firewall (on iWARP the TCP port), hosts in different subnets, or VLANs; see `kv devices` on both"
    } else {
        "Shorter READs work, so the MTU is wrong somewhere on the way: the interfaces and switches must carry the RDMA MTU \
         and some 70 bytes more in one frame"
    }
}

/// Connects by RDMA through `port`, after the server has welcomed this client on `control` to what `by` says. The server
/// does not wait long for this side's half, so that whatever takes time is better done before the hello: the choice of the
/// port is.
///
/// # Errors
/// [`ConnectError`]; whatever was made is gone then.
pub fn connect(
    control: TcpStream,
    welcome: &Welcome,
    port: LocalPort,
    by: ConnectBy,
    deadline: Instant,
) -> Result<VerbsTransport, ConnectError> {
    let server = Half::decode(Side::Server, &hear(&control, deadline)?)?;
    let meeting = match by {
        ConnectBy::Tcp => None,
        ConnectBy::Rdma => Some(Meeting::decode(&hear(&control, deadline)?)?),
    };
    if server.memory.len_bytes != welcome.region_bytes {
        let (announced_bytes, registered_bytes) = (welcome.region_bytes, server.memory.len_bytes);
        return Err(ConnectError::OtherRegion { announced_bytes, registered_bytes });
    }
    let (own, pair) = Own::make(&port, &server, welcome)?;
    let talk = Talk { control: &control, port: &port, server: &server, deadline };
    let joined = match meeting {
        None => talk.exchange(&own, pair)?,
        Some(meeting) => talk.meet(&own, pair, &meeting)?,
    };
    tracing::info!(port = %describe(&port), path = joined.path, "RDMA connected");
    let Own { staging, sizes, memory, channel, queue, .. } = own;
    let sizes = Sizes { reads: sizes.reads.min(joined.reads_max as usize), ..sizes };
    let work = Work::new(joined.pair, memory, sizes, server.memory);
    let mtu_bytes = talk.mtu().bytes() as usize;
    let parts = Parts { work, queue, channel, port, staging, control, cm: joined.cm };
    let mut transport = VerbsTransport::new(parts);
    probe(&mut transport, welcome, mtu_bytes, &joined.path)?;
    Ok(transport)
}

/// What this side has of its own.
pub(super) struct Own {
    _domain: Arc<ProtectionDomain>,
    staging: MemoryRegion<RemoteReadable>,
    pub(super) sizes: Sizes,
    memory: Memory,
    channel: Arc<CompletionChannel>,
    queue: Arc<CompletionQueue>,
}

/// What it is told, and where it answers.
pub(super) struct Talk<'a> {
    pub(super) control: &'a TcpStream,
    pub(super) port: &'a LocalPort,
    pub(super) server: &'a Half,
    pub(super) deadline: Instant,
}

/// The two queue pairs are connected.
pub(super) struct Joined {
    pub(super) pair: QueuePair<Rc, ReadyToSend>,
    pub(super) cm: Option<CmConnection>,
    /// READs that this side may have in flight.
    pub(super) reads_max: u8,
    /// The way, for people.
    pub(super) path: String,
}

impl Own {
    fn make(
        port: &LocalPort,
        server: &Half,
        welcome: &Welcome,
    ) -> Result<(Own, QueuePair<Rc, Reset>), ConnectError> {
        let domain = ProtectionDomain::allocate(port.context())?;
        let staging =
            anonymous_words(welcome.staging_bytes as usize, false).map_err(RingMemoryError::from)?;
        let staging = MemoryRegion::register(&domain, &staging)?;
        let sizes = sizes(port, server, welcome)?;
        let memory = Memory::new(&domain, sizes)?;
        let channel = CompletionChannel::create(port.context())?;
        let completions = sizes.completions() as u32;
        let queue = CompletionQueue::create(port.context(), completions, 0, Some(&channel), 0)?;
        let capacity = Capacity {
            sends: sizes.sends() as u32,
            receives: sizes.replies as u32,
            inline_bytes: INLINE_BYTES,
        };
        let options = QueuePairOptions {
            domain: &domain,
            send_queue: &queue,
            receive_queue: &queue,
            shared_receive: None,
            capacity,
        };
        let pair = QueuePair::create(&options)?;
        Ok((Own { _domain: domain, staging, sizes, memory, channel, queue }, pair))
    }

    /// Posts all receives for replies.
    pub(super) fn post_receives(&self, pair: &mut QueuePair<Rc, Init>) -> Result<(), ConnectError> {
        let mut receives = ReceiveBatch::with_capacity(self.sizes.replies);
        (0..self.sizes.replies).for_each(|index| self.memory.push_receive(index, &mut receives));
        Ok(pair.post_receive(&mut receives)?)
    }

    /// This side's half.
    pub(super) fn half(&self, endpoint: Endpoint) -> Half {
        Half {
            endpoint,
            memory: self.staging.remote(),
            receive_bytes: REPLY_MAX_BYTES as u32,
            receives: self.sizes.replies as u32,
        }
    }
}

impl Talk<'_> {
    /// The smaller of both sides' active MTUs.
    pub(super) fn mtu(&self) -> Mtu {
        self.port.attributes().active_mtu.min(self.server.endpoint.mtu)
    }

    /// Connects the queue pairs by what the halves say.
    fn exchange(&self, own: &Own, pair: QueuePair<Rc, Reset>) -> Result<Joined, ConnectError> {
        // The server READs from the staging area, and writes nowhere.
        let mut pair = pair.initialize(self.port.number(), RemoteRights::Read)?;
        own.post_receives(&mut pair)?;
        let endpoint = Endpoint::new(pair.number(), self.port)?;
        let path = Path::new(self.port, &endpoint, &self.server.endpoint, RetryPolicy::default())?;
        let pair = pair.connect(&path)?;
        self.tell(&own.half(endpoint))?;
        self.hear_verdict()?;
        Ok(Joined { pair, cm: None, reads_max: path.reads_started_max, path: path.to_string() })
    }

    pub(super) fn tell(&self, half: &Half) -> Result<(), ConnectError> {
        Ok(send_hello(self.control, &half.encode(Side::Client), &[], self.deadline)?)
    }

    pub(super) fn hear_verdict(&self) -> Result<(), ConnectError> {
        match Verdict::decode(&hear(self.control, self.deadline)?)? {
            Verdict::Connected => Ok(()),
            Verdict::Refused(reason) => Err(ConnectError::Refused { reason }),
        }
    }
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
fn probe(
    transport: &mut VerbsTransport,
    welcome: &Welcome,
    mtu_bytes: usize,
    path: &str,
) -> Result<(), ConnectError> {
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
    probe_read(transport, mtu_bytes * 2 / 8, path).map(|_| ())
}

fn probe_read(
    transport: &mut VerbsTransport,
    len_words: usize,
    path: &str,
) -> Result<Vec<u64>, ConnectError> {
    let failed = |broken| ConnectError::Probe { len_bytes: len_words * 8, broken, path: path.to_owned() };
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
