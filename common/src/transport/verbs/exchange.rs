//! What two sides tell each other over the control connection, after the hello was answered.
//!
//! ```text
//! half     | kind:32 | rkey:32 | address:64 | bytes:64 | receive_bytes:32 | receives:32 | endpoint:256 |     64 bytes
//! verdict  | kind:32 | status:32 | text |                                                             8 to 520 bytes
//! credit   | taken:64 |                                            8 bytes, by SEND over the queue pair, client to server
//! ```
//!
//! Little-endian. First the server's half (kind 1; the memory is the region), then the client's (kind 2; the memory is its
//! staging area), then the server's verdict (kind 3): status 0, it is connected; status 1, it is not, and the text says
//! why. Half and verdict are framed as the hello is. `endpoint` is that of [`Endpoint::to_bytes`]. Where rdma_cm connects
//! the queue pairs, the server's half is followed by where it waits for the request, see [`super::meeting`]; the rest is the same.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{INLINE_VALUE_MAX_BYTES, KEY_MAX_BYTES, REPLY_CHUNK_BYTES};
use crate::verbs::{ENDPOINT_BYTES, Endpoint, EndpointError, RemoteMemory};
use crate::wire::{REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, STAGED_HEADER_BYTES};

/// Bytes of the longest request.
pub const REQUEST_MAX_BYTES: usize =
    REQUEST_HEADER_BYTES + STAGED_HEADER_BYTES + KEY_MAX_BYTES + INLINE_VALUE_MAX_BYTES;
/// Bytes of the longest reply.
pub const REPLY_MAX_BYTES: usize = REPLY_HEADER_BYTES + REPLY_CHUNK_BYTES;

/// Bytes of a message that says how many replies were taken. No request is so short.
pub const CREDIT_BYTES: usize = 8;
const _: () = assert!(CREDIT_BYTES < REQUEST_HEADER_BYTES);

/// Credit messages that a client may have in flight: it sends one when half of its receives are new.
pub const CREDITS_IN_FLIGHT_MAX: usize = 2;

/// Bytes of the longest text of a verdict.
pub const VERDICT_TEXT_MAX_BYTES: usize = 512;

/// Receives that a peer can have, at most.
const RECEIVES_MAX: u32 = 1 << 16;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HalfWords {
    kind: U32,
    rkey: U32,
    address: U64,
    len_bytes: U64,
    receive_bytes: U32,
    receives: U32,
    endpoint: [u8; ENDPOINT_BYTES],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct VerdictWords {
    kind: U32,
    status: U32,
}

const _: () = assert!(size_of::<HalfWords>() == 64 && size_of::<VerdictWords>() == 8);

const VERDICT: u32 = 3;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// The server: its memory is the region.
    Server = 1,
    /// The client: its memory is its staging area.
    Client = 2,
}

/// One side's half of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Half {
    /// The queue pair.
    pub endpoint: Endpoint,
    /// The memory that the other side may READ.
    pub memory: RemoteMemory,
    /// Bytes that each of its receives takes.
    pub receive_bytes: u32,
    /// Messages that the other side may send before it hears that some were taken: requests without a reply, or replies.
    pub receives: u32,
}

/// What a server says when it has both halves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its queue pair is connected.
    Connected,
    /// It is not, for people.
    Refused(String),
}

/// Why a message of the exchange cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// Another message was expected.
    #[error(
        "a message of {found_bytes} bytes and kind {found}, expected kind {expected}; use programs of one release"
    )]
    Kind {
        /// The kind expected.
        expected: u32,
        /// The kind found.
        found: u32,
        /// Its length.
        found_bytes: usize,
    },
    /// A field has a value that no peer of this release sends.
    #[error("{field} is {found}, which cannot be; use programs of one release")]
    Field {
        /// Which.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// The queue pair's part.
    #[error("the peer's queue pair: {0}")]
    Endpoint(#[from] EndpointError),
}

pub(super) fn kind_error(expected: u32, message: &[u8]) -> ExchangeError {
    let found = U32::ref_from_prefix(message).map_or(0, |(kind, _)| kind.get());
    ExchangeError::Kind { expected, found, found_bytes: message.len() }
}

impl Half {
    /// As bytes.
    pub fn encode(&self, side: Side) -> [u8; 64] {
        let words = HalfWords {
            kind: (side as u32).into(),
            rkey: self.memory.rkey.into(),
            address: self.memory.address.into(),
            len_bytes: self.memory.len_bytes.into(),
            receive_bytes: self.receive_bytes.into(),
            receives: self.receives.into(),
            endpoint: self.endpoint.to_bytes(),
        };
        words.as_bytes().try_into().expect("a half has its size")
    }

    /// The half of `side` in a message.
    ///
    /// # Errors
    /// [`ExchangeError`]; among others if the peer's receives are too short for this side's messages.
    pub fn decode(side: Side, message: &[u8]) -> Result<Half, ExchangeError> {
        let words = HalfWords::ref_from_bytes(message)
            .ok()
            .filter(|words| words.kind.get() == side as u32)
            .ok_or_else(|| kind_error(side as u32, message))?;
        let check = |field, found: u64, holds: bool| {
            if holds { Ok(()) } else { Err(ExchangeError::Field { field, found }) }
        };
        let memory = RemoteMemory {
            address: words.address.get(),
            len_bytes: words.len_bytes.get(),
            rkey: words.rkey.get(),
        };
        check("the memory's length", memory.len_bytes, memory.len_bytes.is_multiple_of(8))?;
        check(
            "the memory's address",
            memory.address,
            memory.address.is_multiple_of(8) && memory.address.checked_add(memory.len_bytes).is_some(),
        )?;
        let needed = match side {
            Side::Server => REQUEST_MAX_BYTES,
            Side::Client => REPLY_MAX_BYTES,
        };
        let (receive_bytes, receives) = (words.receive_bytes.get(), words.receives.get());
        check("the length of a receive", receive_bytes.into(), receive_bytes as usize >= needed)?;
        check("the number of receives", receives.into(), (2..=RECEIVES_MAX).contains(&receives))?;
        Ok(Half { endpoint: Endpoint::from_bytes(&words.endpoint)?, memory, receive_bytes, receives })
    }
}

impl Verdict {
    /// As bytes; a text that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let (status, text) = match self {
            Verdict::Connected => (0, ""),
            Verdict::Refused(text) => {
                let mut end = text.len().min(VERDICT_TEXT_MAX_BYTES);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                (1, &text[..end])
            }
        };
        let words = VerdictWords { kind: VERDICT.into(), status: status.into() };
        [words.as_bytes(), text.as_bytes()].concat()
    }

    /// The verdict in a message. Control characters of its text become spaces.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn decode(message: &[u8]) -> Result<Verdict, ExchangeError> {
        let (words, text) = VerdictWords::ref_from_prefix(message)
            .ok()
            .filter(|(words, _)| words.kind.get() == VERDICT)
            .ok_or_else(|| kind_error(VERDICT, message))?;
        let field = |field, found| ExchangeError::Field { field, found };
        match words.status.get() {
            0 if text.is_empty() => Ok(Verdict::Connected),
            1 if text.len() <= VERDICT_TEXT_MAX_BYTES => {
                let text = String::from_utf8_lossy(text);
                Ok(Verdict::Refused(text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()))
            }
            0 | 1 => Err(field("the length of the verdict's text", text.len() as u64)),
            status => Err(field("the verdict", status.into())),
        }
    }
}

/// The message that says that `taken` replies were taken since the beginning.
pub fn encode_credit(taken: u64) -> [u8; CREDIT_BYTES] {
    taken.to_le_bytes()
}

/// The number in a message, if it is one that says how many replies were taken.
pub fn decode_credit(message: &[u8]) -> Option<u64> {
    message.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::verbs::{Gid, Mtu};

    fn half() -> Half {
        Half {
            endpoint: Endpoint {
                queue_pair: 0x312,
                sequence: 0xff_ffff,
                lid: 0x109,
                gid: Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1)),
                mtu: Mtu::B1024,
                reads_started_max: 16,
                reads_served_max: 128,
            },
            memory: RemoteMemory { address: 0x7f00_0020_0000, len_bytes: 1 << 30, rkey: 0x1234_5678 },
            receive_bytes: 0x2448,
            receives: 32,
        }
    }

    /// Written down by hand from the picture above; docs/layout.md shows the same.
    const HALF: [u8; 64] = [
        1, 0, 0, 0, 0x78, 0x56, 0x34, 0x12, 0, 0, 0x20, 0, 0, 0x7f, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0x48,
        0x24, 0, 0, 32, 0, 0, 0, 0x12, 0x03, 0, 0, 0xff, 0xff, 0xff, 0, 0x09, 0x01, 3, 16, 128, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1,
    ];

    #[test]
    fn bytes_are_as_described() {
        assert_eq!(half().encode(Side::Server), HALF);
        assert_eq!(Half::decode(Side::Server, &HALF), Ok(half()));
        assert_eq!(Verdict::Connected.encode(), [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Verdict::Refused("no".into()).encode(), [3, 0, 0, 0, 1, 0, 0, 0, b'n', b'o']);
        assert_eq!(encode_credit(0x102), [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!((decode_credit(&encode_credit(7)), decode_credit(&[0; 9])), (Some(7), None));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let with = |change: fn(&mut Half)| {
            let mut half = half();
            change(&mut half);
            Half::decode(Side::Server, &half.encode(Side::Server))
        };
        let field = |result: Result<Half, ExchangeError>| match result {
            Err(ExchangeError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(with(|half| half.memory.len_bytes = 7)), "the memory's length");
        assert_eq!(field(with(|half| half.memory.address = u64::MAX - 7)), "the memory's address");
        assert_eq!(field(with(|half| half.receive_bytes = 100)), "the length of a receive");
        assert_eq!(field(with(|half| half.receives = 0)), "the number of receives");
        let expected = ExchangeError::Kind { expected: 2, found: 1, found_bytes: 64 };
        assert_eq!(Half::decode(Side::Client, &HALF), Err(expected));
        let mut wrong_mtu = HALF;
        wrong_mtu[42] = 9;
        assert_eq!(Half::decode(Side::Server, &wrong_mtu), Err(EndpointError::Mtu(9).into()));
        assert!(Verdict::decode(&[3, 0, 0, 0, 0, 0, 0, 0, b'x']).is_err());
        assert!(Verdict::decode(&[3, 0, 0, 0, 2, 0, 0, 0]).is_err());
        assert!(Verdict::decode(&[4, 0, 0, 0, 0, 0, 0, 0]).is_err());
        let long = Verdict::Refused("é\n".repeat(400)).encode();
        let expected = format!("{}é", "é ".repeat(170));
        assert_eq!(Verdict::decode(&long), Ok(Verdict::Refused(expected)));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), kind in 0u8..5) {
            if bytes.len() >= 4 {
                bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
            }
            for side in [Side::Server, Side::Client] {
                if let Ok(half) = Half::decode(side, &bytes) {
                    prop_assert_eq!(&half.encode(side)[..], &bytes[..]);
                }
            }
            if let Ok(Verdict::Refused(text)) = Verdict::decode(&bytes) {
                prop_assert!(!text.contains(char::is_control));
            }
        }

        #[test]
        fn a_half_survives_any_values(
            queue_pair in 0u32..1 << 24, sequence in 0u32..1 << 24, lid: u16, gid: [u8; 16], mtu in 1u32..=5,
            reads: (u8, u8), rkey: u32, address in 0u64..1 << 48, words in 0u64..1 << 40, receives in 2u32..1 << 16,
        ) {
            let half = Half {
                endpoint: Endpoint {
                    queue_pair, sequence, lid, gid: Gid(gid), mtu: Mtu::from_code(mtu).unwrap(),
                    reads_started_max: reads.0, reads_served_max: reads.1,
                },
                memory: RemoteMemory { address: address & !7, len_bytes: words * 8, rkey },
                receive_bytes: 1 << 14,
                receives,
            };
            prop_assert_eq!(Half::decode(Side::Client, &half.encode(Side::Client)), Ok(half));
        }
    }
}
