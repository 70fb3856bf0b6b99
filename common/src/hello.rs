//! The first message each way on a connection, before anything else: who is there, and what may be used.
//!
//! ```text
//! hello    | "KVHELLO\n":64 | version:32 | flags:32 |                                             16 bytes
//! answer   | "KVANSWR\n":64 | version:32 | status:32 | a:64 | b:64 |                              a refusal: 32 bytes
//!          | session:64 | table_id:64 | incarnation:64 | region_bytes:64 | page_bytes:64 |
//!          | ring_bytes:64 | staging_bytes:64 | requests_in_flight:32 | server_pid:32 |           an acceptance: 96 bytes
//! ```
//!
//! Little-endian. `version` is the sender's. The 16 bytes of the hello and the first 32 of the answer stay as they are
//! in every version of the protocol, so that programs of different releases can tell each other that they differ.
//!
//! A transport carries each as one message, and the descriptors of [`Descriptor`] with an acceptance. A client that
//! cannot send its hello should still look for an answer: some refusals come before the hello was read.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::SEGMENT_BYTES;
use crate::limits::{CHANNEL_MAX_BYTES, REGION_MAX_BYTES, REGION_MIN_BYTES, REQUESTS_IN_FLIGHT_MAX};
use crate::wire::PROTOCOL_VERSION;

const HELLO_MAGIC: [u8; 8] = *b"KVHELLO\n";
const ANSWER_MAGIC: [u8; 8] = *b"KVANSWR\n";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloWords {
    magic: [u8; 8],
    version: U32,
    flags: U32,
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
/// Bytes of an answer that accepts, which is the longest.
pub const ANSWER_BYTES: usize = REFUSAL_BYTES + size_of::<WelcomeWords>();

const _: () = assert!(HELLO_BYTES == 16 && REFUSAL_BYTES == 32 && ANSWER_BYTES == 96);

/// What a client says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The client's version of the protocol.
    pub version: u32,
}

impl Hello {
    /// The hello of this program.
    pub fn ours() -> Hello {
        Hello { version: PROTOCOL_VERSION }
    }

    /// As bytes.
    pub fn encode(self) -> [u8; HELLO_BYTES] {
        let words = HelloWords { magic: HELLO_MAGIC, version: self.version.into(), flags: 0.into() };
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
        if words.flags.get() != 0 || !rest.is_empty() {
            return Err(HelloRefusal::Garbage);
        }
        Ok(Hello { version })
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
    /// Bytes of each of the two rings that only this client and the server share.
    pub ring_bytes: u64,
    /// Bytes of the staging area that follows them.
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

/// Why a server does not take a client. The server closes the connection after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloRefusal {
    /// The two speak different versions of the protocol.
    #[error("the server speaks protocol version {server}, the client {client}; use programs of one release")]
    WrongVersion {
        /// The server's version.
        server: u32,
        /// The client's version.
        client: u32,
    },
    /// The peer's user may not connect.
    #[error("user {uid} may not connect; the server has to be started with --allow-uid {uid}")]
    NotPermitted {
        /// The peer's user, as the kernel says.
        uid: u32,
    },
    /// As many clients as the server takes are connected.
    #[error(
        "{limit} clients are connected, which is the limit; close some or start the server with more --max-clients"
    )]
    TooManyClients {
        /// The limit.
        limit: u64,
    },
    /// The server drains.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// What the peer sent is no hello.
    #[error("what arrived is no hello of this protocol; is another program using this socket?")]
    Garbage,
    /// The hello did not come in time.
    #[error("no hello came within {waited_ms} ms")]
    TooLate {
        /// How long the server waited.
        waited_ms: u64,
    },
    /// The server has no descriptors or memory left for another client.
    #[error("the server has no resources left for another client: {errno}", errno = std::io::Error::from_raw_os_error(*.os_error as i32))]
    NoResources {
        /// The system's error number.
        os_error: u32,
    },
}

impl HelloRefusal {
    fn encode(self) -> (u32, u64, u64) {
        match self {
            HelloRefusal::WrongVersion { server, client } => (1, server.into(), client.into()),
            HelloRefusal::NotPermitted { uid } => (2, uid.into(), 0),
            HelloRefusal::TooManyClients { limit } => (3, limit, 0),
            HelloRefusal::ShuttingDown => (4, 0, 0),
            HelloRefusal::Garbage => (5, 0, 0),
            HelloRefusal::TooLate { waited_ms } => (6, waited_ms, 0),
            HelloRefusal::NoResources { os_error } => (7, os_error.into(), 0),
        }
    }

    fn decode(status: u32, a: u64, b: u64) -> Option<HelloRefusal> {
        let word = |value: u64| u32::try_from(value).ok();
        Some(match status {
            1 => HelloRefusal::WrongVersion { server: word(a)?, client: word(b)? },
            2 => HelloRefusal::NotPermitted { uid: word(a)? },
            3 => HelloRefusal::TooManyClients { limit: a },
            4 => HelloRefusal::ShuttingDown,
            5 => HelloRefusal::Garbage,
            6 => HelloRefusal::TooLate { waited_ms: a },
            7 => HelloRefusal::NoResources { os_error: word(a).filter(|&number| number <= 4095)? },
            _ => return None,
        })
    }
}

/// What a server says to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Come in.
    Welcome(Welcome),
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
    /// As bytes: [`ANSWER_BYTES`] of them, or [`REFUSAL_BYTES`].
    pub fn encode(self) -> Vec<u8> {
        let verdict = |status: u32, a: u64, b: u64| VerdictWords {
            magic: ANSWER_MAGIC,
            version: PROTOCOL_VERSION.into(),
            status: status.into(),
            a: a.into(),
            b: b.into(),
        };
        match self {
            Answer::Welcome(welcome) => [verdict(0, 0, 0).as_bytes(), welcome.words().as_bytes()].concat(),
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
        let words = WelcomeWords::ref_from_bytes(rest)
            .map_err(|_| AnswerError::Field { field: "length", found: message.len() as u64 })?;
        Welcome::from_words(words).map(Answer::Welcome)
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
        check("ring size", ring_bytes, ring_bytes.is_power_of_two() && ring_bytes <= CHANNEL_MAX_BYTES)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WELCOME: Welcome = Welcome {
        session: 7,
        table_id: 0x0102_0304_0506_0708,
        incarnation: 9,
        region_bytes: 32 << 20,
        page_bytes: 4096,
        ring_bytes: 65536,
        staging_bytes: 1 << 20,
        requests_in_flight: 64,
        server_pid: 4711,
    };

    /// The bytes as the picture at the top draws them.
    #[test]
    fn golden_hello_and_answers() {
        assert_eq!(&Hello::ours().encode(), b"KVHELLO\n\x01\0\0\0\0\0\0\0");
        let refused = Answer::Refused(HelloRefusal::WrongVersion { server: 1, client: 2 }).encode();
        assert_eq!(refused, b"KVANSWR\n\x01\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        let golden: &[u8] = b"KVANSWR\n\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
            \x07\0\0\0\0\0\0\0\x08\x07\x06\x05\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\
            \0\0\0\x02\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x10\0\0\0\0\0\x40\0\0\0\x67\x12\0\0";
        assert_eq!(Answer::Welcome(WELCOME).encode(), golden);
        assert_eq!(Answer::decode(golden), Ok(Answer::Welcome(WELCOME)));
    }

    #[test]
    fn what_is_no_hello_is_refused_with_the_reason() {
        let hello = Hello::ours().encode();
        for end in 0..HELLO_BYTES {
            assert_eq!(Hello::decode(&hello[..end]), Err(HelloRefusal::Garbage));
        }
        assert_eq!(Hello::decode(b"GET / HTTP/1.1\r\nHost: x\r\n"), Err(HelloRefusal::Garbage));
        assert_eq!(Hello::decode(&[&hello[..], b"x"].concat()), Err(HelloRefusal::Garbage));
        let other = [&Hello { version: 9 }.encode()[..], b"more"].concat();
        assert_eq!(Hello::decode(&other), Err(HelloRefusal::WrongVersion { server: 1, client: 9 }));
        let answer = Answer::Welcome(WELCOME).encode();
        for end in 0..ANSWER_BYTES {
            assert!(Answer::decode(&answer[..end]).is_err());
        }
    }

    #[test]
    fn answers_of_other_versions_and_damaged_ones_are_named() {
        let mut answer = Answer::Welcome(WELCOME).encode();
        answer[8] = 2;
        assert_eq!(Answer::decode(&answer), Err(AnswerError::WrongVersion { found: 2 }));
        let mut refusal = Answer::Refused(HelloRefusal::Garbage).encode();
        refusal[12] = 99;
        assert_eq!(Answer::decode(&refusal), Err(AnswerError::UnknownStatus { found: 99 }));
        assert_eq!(Answer::decode(b"HTTP/1.1"), Err(AnswerError::NotAServer));
        for (field, welcome) in [
            ("session", Welcome { session: 0, ..WELCOME }),
            ("region size", Welcome { region_bytes: (32 << 20) + 8, ..WELCOME }),
            ("ring size", Welcome { ring_bytes: 65537, ..WELCOME }),
            ("staging size", Welcome { staging_bytes: u64::MAX, ..WELCOME }),
            ("page size", Welcome { page_bytes: 0, ..WELCOME }),
            ("requests in flight", Welcome { requests_in_flight: 0, ..WELCOME }),
        ] {
            let error = Answer::decode(&Answer::Welcome(welcome).encode()).unwrap_err();
            assert!(matches!(error, AnswerError::Field { field: found, .. } if found == field), "{error}");
        }
    }

    proptest! {
        #[test]
        fn refusals_round_trip(status in 1u32..8, a: u32, b: u32) {
            if let Some(refusal) = HelloRefusal::decode(status, a.into(), b.into()) {
                prop_assert!(!refusal.to_string().is_empty());
                let bytes = Answer::Refused(refusal).encode();
                prop_assert_eq!(bytes.len(), REFUSAL_BYTES);
                prop_assert_eq!(Answer::decode(&bytes), Ok(Answer::Refused(refusal)));
            }
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = (Hello::decode(&bytes), Answer::decode(&bytes));
        }

        #[test]
        fn arbitrary_bytes_behind_the_magic(bytes in proptest::collection::vec(any::<u8>(), 0..100), status in 0u8..9) {
            let mut answer = [&ANSWER_MAGIC[..], &[1, 0, 0, 0, status, 0, 0, 0], &bytes].concat();
            let _ = Answer::decode(&answer);
            answer.truncate(ANSWER_BYTES);
            if let Ok(answer) = Answer::decode(&answer) {
                prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
            }
            let _ = Hello::decode(&[&HELLO_MAGIC[..], &bytes].concat());
        }
    }
}
