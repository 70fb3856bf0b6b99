//! Messages between client and server, the same on every transport that carries them.
//!
//! ```text
//! request  | seq:64 | session:64 | operand:64 | op:8 flags:8 key_bytes:16 value_bytes:32 | [staged: offset:64 hash:64] | key | value |
//! reply    | seq:64 | version:64 | place_epoch:64 | line:64 | slot:64 | status:8 flags:8 slot_index:16 total_bytes:32 | chunk |
//! ```
//!
//! Little-endian. Decoding yields a typed message or a [`Refusal`] that names the reason; any bytes may come.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::{LineNumber, Slot};
use crate::limits::{INLINE_VALUE_MAX_BYTES, KEY_MAX_BYTES, VALUE_MAX_BYTES};

/// Version of the messages and of the hello; both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 3;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestHeader {
    seq: U64,
    session: U64,
    operand: U64,
    op: u8,
    flags: u8,
    key_bytes: U16,
    value_bytes: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct StagedHeader {
    offset_bytes: U64,
    hash: U64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ReplyHeader {
    seq: U64,
    version: U64,
    place_epoch: U64,
    line: U64,
    slot: U64,
    status: u8,
    flags: u8,
    slot_index: U16,
    total_bytes: U32,
}

/// Bytes of a request before an inline value's key.
pub const REQUEST_HEADER_BYTES: usize = size_of::<RequestHeader>();
/// Bytes between the header and the key of a request whose value is staged.
pub const STAGED_HEADER_BYTES: usize = size_of::<StagedHeader>();
/// Bytes of a reply before its chunk.
pub const REPLY_HEADER_BYTES: usize = size_of::<ReplyHeader>();

const _: () = assert!(
    REQUEST_HEADER_BYTES + size_of::<StagedHeader>() + KEY_MAX_BYTES + INLINE_VALUE_MAX_BYTES
        <= crate::ring::MESSAGE_MAX_BYTES
);
const _: () =
    assert!(REPLY_HEADER_BYTES + crate::limits::REPLY_CHUNK_BYTES <= crate::ring::MESSAGE_MAX_BYTES);

const STAGED: u8 = 1;
const MORE: u8 = 1;
const HINT: u8 = 2;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// An empty reply.
    Ping = 0,
    /// The value, read by the server: the answer of last resort.
    Get = 1,
    /// Insert or update.
    Put = 2,
    /// Delete.
    Delete = 3,
    /// Update if the version is still the operand.
    CompareAndSet = 4,
}

/// Where the value of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In the memory that the client lends to the server; `hash` is the xxh3-64 of its bytes.
    Staged {
        /// Offset in the staging area.
        offset_bytes: u64,
        /// Length of the value.
        len_bytes: u32,
        /// What its bytes must hash to.
        hash: u64,
    },
}

/// A request, borrowed from the message that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Rises by one with each request of a session.
    pub seq: u64,
    /// The session that the hello opened.
    pub session: u64,
    /// What is asked for.
    pub op: Op,
    /// The expected version, for [`Op::CompareAndSet`]; else 0.
    pub operand: u64,
    /// The key; empty for [`Op::Ping`].
    pub key: &'a [u8],
    /// The value; empty and inline for operations that have none.
    pub value: Value<'a>,
}

impl<'a> Request<'a> {
    /// The header of the message; key and inline value follow it in this order.
    pub fn header(&self) -> RequestBytes {
        assert!(self.key.len() <= KEY_MAX_BYTES, "the client checked the key's length");
        let (flags, value_bytes) = match self.value {
            Value::Inline(bytes) => (0, bytes.len() as u32),
            Value::Staged { len_bytes, .. } => (STAGED, len_bytes),
        };
        let header = RequestHeader {
            seq: self.seq.into(),
            session: self.session.into(),
            operand: self.operand.into(),
            op: self.op as u8,
            flags,
            key_bytes: (self.key.len() as u16).into(),
            value_bytes: value_bytes.into(),
        };
        let mut bytes = RequestBytes { bytes: [0; REQUEST_HEADER_BYTES + 16], used: REQUEST_HEADER_BYTES };
        bytes.bytes[..REQUEST_HEADER_BYTES].copy_from_slice(header.as_bytes());
        if let Value::Staged { offset_bytes, hash, .. } = self.value {
            let staged = StagedHeader { offset_bytes: offset_bytes.into(), hash: hash.into() };
            bytes.bytes[REQUEST_HEADER_BYTES..].copy_from_slice(staged.as_bytes());
            bytes.used += 16;
        }
        bytes
    }

    /// The parts of the message, given its header.
    pub fn parts<'b>(&self, header: &'b RequestBytes) -> [&'b [u8]; 3]
    where
        'a: 'b,
    {
        let value = if let Value::Inline(bytes) = self.value { bytes } else { &[] };
        [&header.bytes[..header.used], self.key, value]
    }

    /// The request in a message. On refusal the sequence number is given when the message was long enough to have one.
    pub fn decode(message: &'a [u8]) -> Result<Request<'a>, (Option<u64>, Refusal)> {
        let Ok((header, rest)) = RequestHeader::ref_from_prefix(message) else {
            return Err((None, Refusal::Malformed { reason: Malformed::Short }));
        };
        let seq = header.seq.get();
        Request::decode_rest(header, rest).map_err(|refusal| (Some(seq), refusal))
    }

    fn decode_rest(header: &RequestHeader, rest: &'a [u8]) -> Result<Request<'a>, Refusal> {
        let malformed = |reason| Refusal::Malformed { reason };
        let op = match header.op {
            0 => Op::Ping,
            1 => Op::Get,
            2 => Op::Put,
            3 => Op::Delete,
            4 => Op::CompareAndSet,
            _ => return Err(malformed(Malformed::UnknownOp)),
        };
        let (key_bytes, value_bytes) = (header.key_bytes.get() as usize, header.value_bytes.get());
        let has_value = matches!(op, Op::Put | Op::CompareAndSet);
        let staged = match header.flags {
            0 => None,
            STAGED => Some(StagedHeader::ref_from_prefix(rest).map_err(|_| malformed(Malformed::Short))?),
            _ => return Err(malformed(Malformed::UnknownFlags)),
        };
        let rest = staged.map_or(rest, |(_, rest)| rest);
        let inline_bytes = if staged.is_some() { 0 } else { value_bytes as usize };
        if rest.len() != key_bytes + inline_bytes {
            return Err(malformed(Malformed::Length));
        }
        if (op == Op::Ping) != (key_bytes == 0) {
            return Err(if op == Op::Ping { malformed(Malformed::Length) } else { Refusal::KeyEmpty });
        }
        if key_bytes > KEY_MAX_BYTES {
            return Err(Refusal::KeyTooLong { found_bytes: key_bytes as u64 });
        }
        if value_bytes as usize > VALUE_MAX_BYTES {
            return Err(Refusal::ValueTooLarge {
                found_bytes: value_bytes as u64,
                limit_bytes: VALUE_MAX_BYTES as u64,
            });
        }
        if (!has_value && (value_bytes > 0 || staged.is_some())) || inline_bytes > INLINE_VALUE_MAX_BYTES {
            return Err(malformed(Malformed::Length));
        }
        let (key, value) = rest.split_at(key_bytes);
        let value = match staged {
            None => Value::Inline(value),
            Some((staged, _)) => Value::Staged {
                offset_bytes: staged.offset_bytes.get(),
                len_bytes: value_bytes,
                hash: staged.hash.get(),
            },
        };
        let (seq, session, operand) = (header.seq.get(), header.session.get(), header.operand.get());
        Ok(Request { seq, session, op, operand, key, value })
    }
}

/// An encoded request header.
pub struct RequestBytes {
    bytes: [u8; REQUEST_HEADER_BYTES + 16],
    used: usize,
}

/// Where the key's slot is now: the writer's own index cache follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexHint {
    /// The place epoch when the server answered.
    pub place_epoch: u64,
    /// The line.
    pub line: LineNumber,
    /// Which of its seven slots.
    pub slot_index: u16,
    /// What the slot holds.
    pub slot: Slot,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done; for writes the version is the new one, for a GET the value's.
    Done,
    /// The key is not there.
    NotFound,
    /// Compare-and-set: the version is another one, given in the reply.
    VersionMismatch,
    /// Not done.
    Refused(Refusal),
}

/// A reply, borrowed from the message that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The request's.
    pub seq: u64,
    /// How it ended.
    pub status: Status,
    /// See [`Status`].
    pub version: u64,
    /// Bytes of the whole value of a GET.
    pub total_bytes: u32,
    /// More messages of this reply follow.
    pub has_more: bool,
    /// Where the key is now.
    pub hint: Option<IndexHint>,
    /// The part of the value in this message; parts come in order.
    pub chunk: &'a [u8],
}

impl<'a> Reply<'a> {
    /// A reply without value or hint.
    pub fn new(seq: u64, status: Status, version: u64) -> Reply<'static> {
        Reply { seq, status, version, total_bytes: 0, has_more: false, hint: None, chunk: &[] }
    }

    /// The header of the message; the chunk follows it.
    pub fn header(&self) -> [u8; REPLY_HEADER_BYTES] {
        let (status, version, detail) = match self.status {
            Status::Done => (0, self.version, 0),
            Status::NotFound => (1, self.version, 0),
            Status::VersionMismatch => (2, self.version, 0),
            Status::Refused(refusal) => refusal.encode(),
        };
        let hint = self.hint;
        let header = ReplyHeader {
            seq: self.seq.into(),
            version: version.into(),
            place_epoch: hint.map_or(detail, |hint| hint.place_epoch).into(),
            line: hint.map_or(0, |hint| hint.line.0).into(),
            slot: hint.map_or(0, |hint| hint.slot.0).into(),
            status,
            flags: if self.has_more { MORE } else { 0 } | if hint.is_some() { HINT } else { 0 },
            slot_index: hint.map_or(0, |hint| hint.slot_index).into(),
            total_bytes: self.total_bytes.into(),
        };
        header.as_bytes().try_into().expect("a header has its size")
    }

    /// The reply in a message, or what is wrong with the message.
    pub fn decode(message: &'a [u8]) -> Result<Reply<'a>, Malformed> {
        let (header, chunk) = ReplyHeader::ref_from_prefix(message).map_err(|_| Malformed::Short)?;
        let version = header.version.get();
        let status = match header.status {
            0 => Status::Done,
            1 => Status::NotFound,
            2 => Status::VersionMismatch,
            code => Status::Refused(Refusal::decode(code, version, header.place_epoch.get())?),
        };
        if header.flags & !(MORE | HINT) != 0 {
            return Err(Malformed::UnknownFlags);
        }
        let (total_bytes, slot_index) = (header.total_bytes.get(), header.slot_index.get());
        if total_bytes as usize > VALUE_MAX_BYTES || chunk.len() > total_bytes as usize {
            return Err(Malformed::Length);
        }
        if slot_index as usize >= crate::layout::LINE_SLOTS {
            return Err(Malformed::Length);
        }
        let hint = (header.flags & HINT != 0).then(|| IndexHint {
            place_epoch: header.place_epoch.get(),
            line: LineNumber(header.line.get()),
            slot_index,
            slot: Slot(header.slot.get()),
        });
        let has_more = header.flags & MORE != 0;
        Ok(Reply { seq: header.seq.get(), status, version, total_bytes, has_more, hint, chunk })
    }
}

/// What is wrong with the form of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Malformed {
    /// Shorter than its header.
    #[error("shorter than its header")]
    Short = 1,
    /// The lengths that it states do not fit.
    #[error("the lengths that it states do not fit")]
    Length = 2,
    /// An operation or status that this program does not know.
    #[error("an operation or status that this program does not know")]
    UnknownOp = 3,
    /// Flags that this program does not know.
    #[error("flags that this program does not know")]
    UnknownFlags = 4,
    /// Another session's number.
    #[error("another session's number")]
    Session = 5,
    /// The ring that carries the messages is not what it must be.
    #[error("the ring that carries the messages is not what it must be")]
    Ring = 6,
    /// A frame of the connection is none that may come, or names words outside of what there is.
    #[error("a frame of the connection is none that may come, or names words outside of what there is")]
    Frame = 7,
}

/// Why the server did not do what it was asked. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The message is none that the protocol has.
    #[error("malformed request: {reason}")]
    Malformed {
        /// What is wrong.
        reason: Malformed,
    },
    /// Keys have at least one byte.
    #[error("the key is empty; keys have 1 to {KEY_MAX_BYTES} bytes")]
    KeyEmpty,
    /// The key is longer than the limit.
    #[error("the key has {found_bytes} bytes; keys have 1 to {KEY_MAX_BYTES} bytes")]
    KeyTooLong {
        /// Bytes of the key.
        found_bytes: u64,
    },
    /// The value is larger than the limit.
    #[error("the value has {found_bytes} bytes; this server takes at most {limit_bytes}")]
    ValueTooLarge {
        /// Bytes of the value.
        found_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// No segment is free for a block of this size, and none of its class has room.
    #[error(
        "region full: no block of {block_bytes} bytes is free, and {free_segments} segments; segments that hold blocks \
         of other sizes keep them; delete keys of this size or start the server with more --memory"
    )]
    RegionFull {
        /// Bytes of a block of the class.
        block_bytes: u64,
        /// Free segments of the region.
        free_segments: u64,
    },
    /// The part of the index that the key belongs to has no slot and no overflow line left.
    #[error(
        "index full: {index_segments} index segments, the one of this key has no room, and no segment is free to split it; \
         start the server with more --memory"
    )]
    IndexFull {
        /// Index segments of the table.
        index_segments: u64,
    },
    /// Too many keys share one home: chance does not bring this about, chosen keys do.
    #[error("the key's home is full: {chain_lines} overflow lines are chained there, which is the limit")]
    HomeFull {
        /// Overflow lines of the chain.
        chain_lines: u64,
    },
    /// The staged value is outside the staging area.
    #[error("the staged value ends at byte {end_bytes}, the staging area has {area_bytes}")]
    StagedOutside {
        /// Where it would end.
        end_bytes: u64,
        /// Bytes of the area.
        area_bytes: u64,
    },
    /// The bytes in the staging area are not those that the request announced.
    #[error("the staged value changed while it was taken: hash {found:#x}")]
    StagedChanged {
        /// Hash of the bytes found.
        found: u64,
    },
    /// The server drains and takes no new requests.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl Refusal {
    fn encode(self) -> (u8, u64, u64) {
        match self {
            Refusal::Malformed { reason } => (16, reason as u64, 0),
            Refusal::KeyEmpty => (17, 0, 0),
            Refusal::KeyTooLong { found_bytes } => (18, found_bytes, 0),
            Refusal::ValueTooLarge { found_bytes, limit_bytes } => (19, found_bytes, limit_bytes),
            Refusal::RegionFull { block_bytes, free_segments } => (20, block_bytes, free_segments),
            Refusal::IndexFull { index_segments } => (21, index_segments, 0),
            Refusal::HomeFull { chain_lines } => (22, chain_lines, 0),
            Refusal::StagedOutside { end_bytes, area_bytes } => (23, end_bytes, area_bytes),
            Refusal::StagedChanged { found } => (24, found, 0),
            Refusal::ShuttingDown => (25, 0, 0),
        }
    }

    fn decode(code: u8, a: u64, b: u64) -> Result<Refusal, Malformed> {
        Ok(match code {
            16 => Refusal::Malformed {
                reason: match a {
                    1 => Malformed::Short,
                    2 => Malformed::Length,
                    3 => Malformed::UnknownOp,
                    4 => Malformed::UnknownFlags,
                    5 => Malformed::Session,
                    6 => Malformed::Ring,
                    7 => Malformed::Frame,
                    _ => return Err(Malformed::UnknownOp),
                },
            },
            17 => Refusal::KeyEmpty,
            18 => Refusal::KeyTooLong { found_bytes: a },
            19 => Refusal::ValueTooLarge { found_bytes: a, limit_bytes: b },
            20 => Refusal::RegionFull { block_bytes: a, free_segments: b },
            21 => Refusal::IndexFull { index_segments: a },
            22 => Refusal::HomeFull { chain_lines: a },
            23 => Refusal::StagedOutside { end_bytes: a, area_bytes: b },
            24 => Refusal::StagedChanged { found: a },
            25 => Refusal::ShuttingDown,
            _ => return Err(Malformed::UnknownOp),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(request: &Request) -> Vec<u8> {
        request.parts(&request.header()).concat()
    }

    #[test]
    fn golden_request() {
        let value = Value::Inline(b"v");
        let request = Request { seq: 1, session: 2, op: Op::CompareAndSet, operand: 3, key: b"k", value };
        let golden = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\x01\0\x01\0\0\0kv";
        assert_eq!(message(&request), golden);
        assert_eq!(Request::decode(golden), Ok(request));
    }

    #[test]
    fn refusals_name_the_reason() {
        let put = |key: &[u8], value: &[u8]| {
            let mut bytes = vec![0; 24];
            bytes.extend_from_slice(&[2, 0]);
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
            [&bytes[..], key, value].concat()
        };
        let refusal = |bytes: &[u8]| Request::decode(bytes).unwrap_err().1;
        assert_eq!(refusal(&[0; 31]), Refusal::Malformed { reason: Malformed::Short });
        assert_eq!(refusal(&put(b"", b"v")), Refusal::KeyEmpty);
        assert_eq!(refusal(&put(&[1; KEY_MAX_BYTES + 1], b"")), Refusal::KeyTooLong { found_bytes: 1025 });
        assert!(Request::decode(&put(&[1; KEY_MAX_BYTES], &[])).is_ok());
        assert!(matches!(refusal(&put(b"k", &vec![0; VALUE_MAX_BYTES + 1])), Refusal::ValueTooLarge { .. }));
        let mut truncated = put(b"key", b"value");
        truncated.pop();
        assert_eq!(refusal(&truncated), Refusal::Malformed { reason: Malformed::Length });
    }

    fn any_refusal() -> impl Strategy<Value = Refusal> {
        (16u8..26, 1u64..7, any::<u64>()).prop_map(|(code, a, b)| Refusal::decode(code, a, b).unwrap())
    }

    proptest! {
        #[test]
        fn requests_round_trip(
            seq: u64, session: u64, operand: u64, op in 1u8..5, key in proptest::collection::vec(any::<u8>(), 1..64),
            bytes: Vec<u8>, staged: Option<(u64, u64)>,
        ) {
            let op = [Op::Ping, Op::Get, Op::Put, Op::Delete, Op::CompareAndSet][op as usize];
            let value = match (matches!(op, Op::Put | Op::CompareAndSet), staged) {
                (false, _) => Value::Inline(&[]),
                (true, None) => Value::Inline(&bytes),
                (true, Some((offset_bytes, hash))) => Value::Staged { offset_bytes, len_bytes: 1 << 20, hash },
            };
            let request = Request { seq, session, op, operand, key: &key, value };
            let bytes = message(&request);
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
            for cut in 0..bytes.len() {
                prop_assert!(Request::decode(&bytes[..cut]).is_err());
            }
        }

        #[test]
        fn replies_round_trip(
            seq: u64, version: u64, refusal in any_refusal(), status in 0usize..4, chunk: Vec<u8>, has_more: bool,
            hint: Option<(u64, u64, u64)>,
        ) {
            let status = [Status::Done, Status::NotFound, Status::VersionMismatch, Status::Refused(refusal)][status];
            let refused = matches!(status, Status::Refused(_));
            let hint = hint.filter(|_| !refused).map(|(place_epoch, line, slot)| IndexHint {
                place_epoch, line: LineNumber(line), slot_index: (line % 7) as u16, slot: Slot(slot),
            });
            let total_bytes = chunk.len() as u32 + 5;
            let reply = Reply { seq, status, version, total_bytes, has_more, hint, chunk: &chunk };
            let bytes = [&reply.header()[..], &chunk].concat();
            let decoded = Reply::decode(&bytes).unwrap();
            let expected_version = if refused { decoded.version } else { version };
            prop_assert_eq!(decoded, Reply { version: expected_version, ..reply });
        }

        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>) {
            let _ = Request::decode(&bytes);
            let _ = Reply::decode(&bytes);
        }

        #[test]
        fn arbitrary_bytes_behind_plausible_headers(mut bytes in proptest::collection::vec(any::<u8>(), 32..96), op in 0u8..6, flags in 0u8..3) {
            (bytes[24], bytes[25]) = (op, flags);
            bytes[26..32].copy_from_slice(&[3, 0, (op & 1) * 4, 0, 0, 0]);
            let _ = Request::decode(&bytes);
        }
    }
}
