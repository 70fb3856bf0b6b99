//! The first message each way on a connection, before anything else: who is there, and what may be used.
//!
//! ```text
//! hello    | "KVHELLO\n":64 | version:32 | wanted:32 |                                            16 bytes
//! answer   | "KVANSWR\n":64 | version:32 | status:32 | a:64 | b:64 |                              a refusal: 32 bytes
//!          | session:64 | table_id:64 | incarnation:64 | region_bytes:64 | page_bytes:64 |        status 0, a = 0:
//!          | ring_bytes:64 | staging_bytes:64 | requests_in_flight:32 | server_pid:32 |           an acceptance: 96 bytes
//!          | boot_id:128 | device:64 | inode:64 | flags:32 | path_bytes:32 | path |               status 0, a = 1: an offer
//! ```
//!
//! Little-endian. `version` is the sender's. The 16 bytes of the hello and the first 32 of the answer stay as they are
//! in every version of the protocol, so that programs of different releases can tell each other that they differ.
//!
//! `wanted` says what for: a transport, or just an [`Offer`], after which the server closes the connection.
//!
//! A transport carries each as one message, and the descriptors of [`Descriptor`] with an acceptance of shared memory. A client that
//! cannot send its hello should still look for an answer: some refusals come before the hello was read.

mod offer;
mod refusal;
#[cfg(test)]
mod tests;

use std::fmt;

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::SEGMENT_BYTES;
use crate::limits::{CHANNEL_MAX_BYTES, REGION_MAX_BYTES, REGION_MIN_BYTES, REQUESTS_IN_FLIGHT_MAX};
use crate::wire::PROTOCOL_VERSION;

pub use offer::{OFFER_BYTES, OFFER_PATH_MAX_BYTES, Offer, SocketFile};
pub use refusal::HelloRefusal;

const HELLO_MAGIC: [u8; 8] = *b"KVHELLO\n";
const ANSWER_MAGIC: [u8; 8] = *b"KVANSWR\n";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloWords {
    magic: [u8; 8],
    version: U32,
    wanted: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct VerdictWords {
    magic: [u8; 8],
    version: U32,
    status: U32,
    a: U64,
    b: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WelcomeWords {
    session: U64,
    table_id: U64,
    incarnation: U64,
    region_bytes: U64,
    page_bytes: U64,
    ring_bytes: U64,
    staging_bytes: U64,
    requests_in_flight: U32,
    server_pid: U32,
}

/// Bytes of a hello.
pub const HELLO_BYTES: usize = size_of::<HelloWords>();
/// Bytes of an answer that refuses.
pub const REFUSAL_BYTES: usize = size_of::<VerdictWords>();
/// Bytes of an answer that accepts.
pub const ANSWER_BYTES: usize = REFUSAL_BYTES + size_of::<WelcomeWords>();

const _: () = assert!(HELLO_BYTES == 16 && REFUSAL_BYTES == 32 && ANSWER_BYTES == 96);

/// `a` of an answer with status 0: what follows.
const WELCOME: u64 = 0;
const OFFER: u64 = 1;

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wanted {
    /// Shared memory; only by the Unix socket.
    Shm = 0,
    /// READs and messages over this TCP connection.
    Tcp = 1,
    /// RDMA; this TCP connection stays as the one that says when it is over.
    Rdma = 2,
    /// To know what the server offers.
    Offer = 3,
    /// RDMA, the queue pairs connected by rdma_cm; else as [`Wanted::Rdma`].
    RdmaCm = 4,
}

impl Wanted {
    fn of(number: u32) -> Option<Wanted> {
        [Wanted::Shm, Wanted::Tcp, Wanted::Rdma, Wanted::Offer, Wanted::RdmaCm]
            .into_iter()
            .find(|&wanted| wanted as u32 == number)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Wanted::Shm => "shared memory",
            Wanted::Tcp => "tcp",
            Wanted::Rdma => "RDMA",
            Wanted::Offer => "a choice",
            Wanted::RdmaCm => "RDMA connected by rdma_cm (cm=rdma)",
        })
    }
}

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The client's version of the protocol.
    pub version: u32,
    /// What it wants.
    pub wanted: Wanted,
}

impl Hello {
    /// The hello of this program.
    pub fn ours(wanted: Wanted) -> Hello {
        Hello { version: PROTOCOL_VERSION, wanted }
    }

    /// As bytes.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let words = HelloWords {
            magic: HELLO_MAGIC,
            version: self.version.into(),
            wanted: (self.wanted as u32).into(),
        };
        words.as_bytes().try_into().expect("a hello has its size")
    }

    /// The hello in a message.
    ///
    /// # Errors
    /// The refusal to send back: [`HelloRefusal::Garbage`] or [`HelloRefusal::WrongVersion`].
    pub fn decode(message: &[u8]) -> Result<Hello, HelloRefusal> {
        // Another version's hello may be longer.
        let (words, rest) = HelloWords::ref_from_prefix(message).map_err(|_| HelloRefusal::Garbage)?;
        if words.magic != HELLO_MAGIC {
            return Err(HelloRefusal::Garbage);
        }
        let version = words.version.get();
        if version != PROTOCOL_VERSION {
            return Err(HelloRefusal::WrongVersion { server: PROTOCOL_VERSION, client: version });
        }
        let wanted =
            Wanted::of(words.wanted.get()).filter(|_| rest.is_empty()).ok_or(HelloRefusal::Garbage)?;
        Ok(Hello { version, wanted })
    }
}

/// What the server lends to a client that it accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the session, never 0: every request carries it.
    pub session: u64,
    /// The table's id; the superblock must say the same.
    pub table_id: u64,
    /// Random per start of the server; the superblock must say the same.
    pub incarnation: u64,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Bytes of the pages that back the region.
    pub page_bytes: u64,
    /// Bytes of each of the two rings that only this client and the server share; 0 where messages go over a network.
    pub ring_bytes: u64,
    /// Bytes of the staging area.
    pub staging_bytes: u64,
    /// Requests that the client may have in flight.
    pub requests_in_flight: u32,
    /// The server's process, for people.
    pub server_pid: u32,
}

/// The descriptors that come with a [`Welcome`], in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Descriptor {
    /// The region: to be mapped for reading.
    Region = 0,
    /// The channel: rings and staging area, to be mapped for reading and writing.
    Channel = 1,
}

/// Descriptors that come with a [`Welcome`].
pub const WELCOME_DESCRIPTORS: usize = 2;

/// What a server says to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Come in.
    Welcome(Welcome),
    /// What there is to choose from.
    Offer(Offer),
    /// No.
    Refused(HelloRefusal),
}

/// What is wrong with an answer, for the client's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The peer is no server of this protocol.
    #[error("what answered is no kv-server; is another program using this socket?")]
    NotAServer,
    /// A server of another version, whose answer this program cannot read.
    #[error(
        "the server speaks protocol version {found}, this program {PROTOCOL_VERSION}; use programs of one release"
    )]
    WrongVersion {
        /// The server's version.
        found: u32,
    },
    /// A status that this program does not know.
    #[error(
        "the server refused with status {found}, which this program does not know; use programs of one release"
    )]
    UnknownStatus {
        /// The status.
        found: u32,
    },
    /// A field has a value that no server sends.
    #[error("the server's answer is damaged: {field} is {found}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

impl Answer {
    /// As bytes: [`ANSWER_BYTES`] of them, or [`REFUSAL_BYTES`], or for an offer these, [`OFFER_BYTES`], and the path.
    pub fn encode(&self) -> Vec<u8> {
        let verdict = |status: u32, a: u64, b: u64| VerdictWords {
            magic: ANSWER_MAGIC,
            version: PROTOCOL_VERSION.into(),
            status: status.into(),
            a: a.into(),
            b: b.into(),
        };
        match self {
            Answer::Welcome(welcome) => {
                [verdict(0, WELCOME, 0).as_bytes(), welcome.words().as_bytes()].concat()
            }
            Answer::Offer(offer) => [verdict(0, OFFER, 0).as_bytes(), &offer.encode()].concat(),
            Answer::Refused(refusal) => {
                let (status, a, b) = refusal.encode();
                verdict(status, a, b).as_bytes().to_vec()
            }
        }
    }

    /// The answer in a message.
    ///
    /// # Errors
    /// [`AnswerError`] says what the peer is instead of a server that this program can talk to.
    pub fn decode(message: &[u8]) -> Result<Answer, AnswerError> {
        let (verdict, rest) = VerdictWords::ref_from_prefix(message).map_err(|_| AnswerError::NotAServer)?;
        if verdict.magic != ANSWER_MAGIC {
            return Err(AnswerError::NotAServer);
        }
        let (version, status) = (verdict.version.get(), verdict.status.get());
        let refusal = HelloRefusal::decode(status, verdict.a.get(), verdict.b.get());
        if let Some(refusal) = refusal.filter(|_| rest.is_empty()) {
            return Ok(Answer::Refused(refusal));
        }
        if version != PROTOCOL_VERSION {
            return Err(AnswerError::WrongVersion { found: version });
        }
        if status != 0 {
            return Err(AnswerError::UnknownStatus { found: status });
        }
        match verdict.a.get() {
            WELCOME => {
                let words = WelcomeWords::ref_from_bytes(rest)
                    .map_err(|_| AnswerError::Field { field: "length", found: message.len() as u64 })?;
                Welcome::from_words(words).map(Answer::Welcome)
            }
            OFFER => Offer::decode(rest).map(Answer::Offer),
            found => Err(AnswerError::Field { field: "what follows", found }),
        }
    }
}

impl Welcome {
    fn words(&self) -> WelcomeWords {
        WelcomeWords {
            session: self.session.into(),
            table_id: self.table_id.into(),
            incarnation: self.incarnation.into(),
            region_bytes: self.region_bytes.into(),
            page_bytes: self.page_bytes.into(),
            ring_bytes: self.ring_bytes.into(),
            staging_bytes: self.staging_bytes.into(),
            requests_in_flight: self.requests_in_flight.into(),
            server_pid: self.server_pid.into(),
        }
    }

    fn from_words(words: &WelcomeWords) -> Result<Welcome, AnswerError> {
        let check = |field, found: u64, holds: bool| {
            if holds { Ok(found) } else { Err(AnswerError::Field { field, found }) }
        };
        let session = words.session.get();
        check("session", session, session != 0)?;
        let region_bytes = words.region_bytes.get();
        let is_region = (REGION_MIN_BYTES..=REGION_MAX_BYTES).contains(&region_bytes);
        check("region size", region_bytes, is_region && region_bytes.is_multiple_of(SEGMENT_BYTES))?;
        let page_bytes = words.page_bytes.get();
        check("page size", page_bytes, page_bytes.is_power_of_two() && page_bytes <= region_bytes)?;
        let (ring_bytes, staging_bytes) = (words.ring_bytes.get(), words.staging_bytes.get());
        let is_ring = ring_bytes == 0 || ring_bytes.is_power_of_two();
        check("ring size", ring_bytes, is_ring && ring_bytes <= CHANNEL_MAX_BYTES)?;
        let is_area = staging_bytes.is_multiple_of(8) && staging_bytes <= CHANNEL_MAX_BYTES;
        check("staging size", staging_bytes, is_area)?;
        let requests_in_flight = words.requests_in_flight.get();
        let is_credit = requests_in_flight > 0 && requests_in_flight as usize <= REQUESTS_IN_FLIGHT_MAX;
        check("requests in flight", requests_in_flight.into(), is_credit)?;
        Ok(Welcome {
            session,
            table_id: words.table_id.get(),
            incarnation: words.incarnation.get(),
            region_bytes,
            page_bytes,
            ring_bytes,
            staging_bytes,
            requests_in_flight,
            server_pid: words.server_pid.get(),
        })
    }
}
