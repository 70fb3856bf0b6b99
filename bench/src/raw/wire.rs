//! What the two sides tell each other, as bytes.
//!
//! A frame is: magic (4 bytes, the version is in it), kind (1), zeroes (3), length of what follows (4). Numbers are
//! little-endian. By kind:
//!
//! | kind | message | bytes that follow |
//! |---|---|---|
//! | 1 | setup | operation, connection, measure, 0 (1 each), size, depth, queue pairs, iterations (4 each), ends |
//! | 2 | ready | ends |
//! | 3 | refused | text, UTF-8 |
//! | 4 | connected | |
//! | 5 | done | messages (8) |
//! | 6 | bye | |
//!
//! Ends are: address (8), length (8) and key (4) of the memory, 0 (4), and an endpoint (32) for each queue pair.

use kv_common::verbs::{ENDPOINT_BYTES, Endpoint, EndpointError, RemoteMemory};
use thiserror::Error;

use super::plan::{Connection, Measure, Operation, PlanError, QUEUE_PAIRS_MAX, Test};

/// First bytes of each frame.
const MAGIC: [u8; 4] = *b"kvr1";
/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 12;
const TEST_BYTES: usize = 20;
const MEMORY_BYTES: usize = 24;
/// Longest text of a refusal.
pub const TEXT_MAX_BYTES: usize = 1024;
/// Bytes after the head, at most: a setup with all queue pairs.
pub const BODY_MAX_BYTES: usize = TEST_BYTES + MEMORY_BYTES + QUEUE_PAIRS_MAX as usize * ENDPOINT_BYTES;

/// One side's memory and queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Its buffers.
    pub memory: RemoteMemory,
    /// Its queue pairs; the other side's are connected to them in this order.
    pub endpoints: Vec<Endpoint>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The side that measures wants this, and has these ends.
    Setup(Test, Ends),
    /// The other side has these.
    Ready(Ends),
    /// It will not go on, and why.
    Refused(String),
    /// Its queue pairs are connected, its receives posted.
    Connected,
    /// The measurement is over; messages that were sent, or that arrived.
    Done(u64),
    /// There is nothing more to measure.
    Bye,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Another program, or another version.
    #[error("the peer is no `kv-bench raw` of this version: it sent {0:02x?}")]
    Magic([u8; 4]),
    /// An unknown kind of message.
    #[error("the peer sent a message of the unknown kind {0}")]
    Kind(u8),
    /// A length that the kind does not have.
    #[error("the peer sent a message of kind {kind} with {len_bytes} bytes, which it cannot have")]
    Length {
        /// Its kind.
        kind: u8,
        /// Its length.
        len_bytes: usize,
    },
    /// A field that has no such value.
    #[error("the peer sent {found} as {what}")]
    Field {
        /// Which.
        what: &'static str,
        /// Its value.
        found: u32,
    },
    /// Text that is none.
    #[error("the peer sent a refusal that is not UTF-8")]
    Text,
    /// A measurement that there is not.
    #[error("the peer asks for what cannot be measured: {0}")]
    Plan(#[from] PlanError),
    /// An endpoint that is none.
    #[error("the peer sent an endpoint that is none: {0}")]
    Endpoint(#[from] EndpointError),
}

/// The head of a frame: kind, and bytes that follow.
///
/// # Errors
/// If it is none, or more bytes follow than any message has.
pub fn decode_head(head: &[u8; HEAD_BYTES]) -> Result<(u8, usize), WireError> {
    let (magic, kind) = ([head[0], head[1], head[2], head[3]], head[4]);
    if magic != MAGIC {
        return Err(WireError::Magic(magic));
    }
    if head[5..8] != [0; 3] {
        return Err(WireError::Field { what: "reserved bytes", found: u32::from(head[5]) });
    }
    let len_bytes = u32_at(head, 8) as usize;
    if len_bytes > BODY_MAX_BYTES {
        return Err(WireError::Length { kind, len_bytes });
    }
    Ok((kind, len_bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("the caller checked the length"))
}

impl Message {
    /// The whole frame.
    pub fn to_frame(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Setup(test, ends) => {
                put_test(&mut body, test);
                put_ends(&mut body, ends);
                1
            }
            Self::Ready(ends) => {
                put_ends(&mut body, ends);
                2
            }
            Self::Refused(text) => {
                body.extend_from_slice(shortened(text).as_bytes());
                3
            }
            Self::Connected => 4,
            Self::Done(messages) => {
                body.extend_from_slice(&messages.to_le_bytes());
                5
            }
            Self::Bye => 6,
        };
        let mut frame = MAGIC.to_vec();
        frame.extend_from_slice(&[kind, 0, 0, 0]);
        frame.extend_from_slice(&u32::try_from(body.len()).expect("bodies are short").to_le_bytes());
        frame.extend_from_slice(&body);
        frame
    }

    /// The message of this kind with these bytes.
    ///
    /// # Errors
    /// If it is none.
    pub fn decode(kind: u8, body: &[u8]) -> Result<Self, WireError> {
        let wrong_length = || WireError::Length { kind, len_bytes: body.len() };
        let empty = |message| if body.is_empty() { Ok(message) } else { Err(wrong_length()) };
        match kind {
            1 => {
                let (test, ends) = body.split_at_checked(TEST_BYTES).ok_or_else(wrong_length)?;
                let (test, ends) = (take_test(test)?, take_ends(ends).ok_or_else(wrong_length)??);
                if ends.endpoints.len() != test.queue_pairs as usize {
                    return Err(wrong_length());
                }
                Ok(Self::Setup(test, ends))
            }
            2 => Ok(Self::Ready(take_ends(body).ok_or_else(wrong_length)??)),
            3 if body.len() > TEXT_MAX_BYTES => Err(wrong_length()),
            3 => Ok(Self::Refused(std::str::from_utf8(body).map_err(|_| WireError::Text)?.into())),
            4 => empty(Self::Connected),
            5 if body.len() == 8 => Ok(Self::Done(u64_at(body, 0))),
            5 => Err(wrong_length()),
            6 => empty(Self::Bye),
            other => Err(WireError::Kind(other)),
        }
    }

    /// Its name, for errors.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Setup(..) => "setup",
            Self::Ready(_) => "ready",
            Self::Refused(_) => "refused",
            Self::Connected => "connected",
            Self::Done(_) => "done",
            Self::Bye => "bye",
        }
    }
}

/// As much of `text` as a refusal holds, cut between characters.
fn shortened(text: &str) -> &str {
    let cut = (0..=text.len().min(TEXT_MAX_BYTES)).rev().find(|&at| text.is_char_boundary(at));
    &text[..cut.unwrap_or(0)]
}

fn put_test(body: &mut Vec<u8>, test: &Test) {
    let operation = match test.operation {
        Operation::Read => 0,
        Operation::Write => 1,
        Operation::Send => 2,
    };
    let connection = match test.connection {
        Connection::Rc => 0,
        Connection::Uc => 1,
        Connection::Ud => 2,
    };
    let measure = match test.measure {
        Measure::Latency => 0,
        Measure::Bandwidth => 1,
    };
    body.extend_from_slice(&[operation, connection, measure, 0]);
    for number in [test.size_bytes, test.depth, test.queue_pairs, test.iterations] {
        body.extend_from_slice(&number.to_le_bytes());
    }
}

fn take_test(bytes: &[u8]) -> Result<Test, WireError> {
    let field = |what, at: usize| WireError::Field { what, found: u32::from(bytes[at]) };
    let test = Test {
        operation: match bytes[0] {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Send,
            _ => return Err(field("an operation", 0)),
        },
        connection: match bytes[1] {
            0 => Connection::Rc,
            1 => Connection::Uc,
            2 => Connection::Ud,
            _ => return Err(field("a kind of connection", 1)),
        },
        measure: match bytes[2] {
            0 => Measure::Latency,
            1 => Measure::Bandwidth,
            _ => return Err(field("what to measure", 2)),
        },
        size_bytes: u32_at(bytes, 4),
        depth: u32_at(bytes, 8),
        queue_pairs: u32_at(bytes, 12),
        iterations: u32_at(bytes, 16),
    };
    if bytes[3] != 0 {
        return Err(field("reserved bytes", 3));
    }
    test.check()?;
    Ok(test)
}

fn put_ends(body: &mut Vec<u8>, ends: &Ends) {
    body.extend_from_slice(&ends.memory.address.to_le_bytes());
    body.extend_from_slice(&ends.memory.len_bytes.to_le_bytes());
    body.extend_from_slice(&ends.memory.rkey.to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    for endpoint in &ends.endpoints {
        body.extend_from_slice(&endpoint.to_bytes());
    }
}

/// `None` if this is no length that ends have.
fn take_ends(bytes: &[u8]) -> Option<Result<Ends, WireError>> {
    let (memory, endpoints) = bytes.split_at_checked(MEMORY_BYTES)?;
    let (endpoints, rest) = endpoints.as_chunks::<ENDPOINT_BYTES>();
    if !rest.is_empty() || endpoints.is_empty() || endpoints.len() > QUEUE_PAIRS_MAX as usize {
        return None;
    }
    let reserved = u32_at(memory, 20);
    if reserved != 0 {
        return Some(Err(WireError::Field { what: "reserved bytes", found: reserved }));
    }
    let memory =
        RemoteMemory { address: u64_at(memory, 0), len_bytes: u64_at(memory, 8), rkey: u32_at(memory, 16) };
    let endpoints = endpoints.iter().map(Endpoint::from_bytes).collect::<Result<_, _>>();
    Some(endpoints.map(|endpoints| Ends { memory, endpoints }).map_err(WireError::from))
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
