//! Messages between client and server, the same on every transport that carries them.
//!
//! ```text
//! request  | seq:64 | session:64 | operand:64 | op:8 flags:8 key_bytes:16 value_bytes:32 | [staged: offset:64 hash:64] | [ttl:64] | key | value |
//! reply    | seq:64 | version:64 | place_epoch:64 | line:64 | slot:64 | status:8 flags:8 slot_index:16 total_bytes:32 | chunk |
//! ```
//!
//! Flags of a request: bit 0, the value is staged; bits 1 and 2, the kind of the condition, whose version, if it names one,
//! is the operand; bit 3, a time to live is there. Little-endian. Decoding yields a typed message or a [`Refusal`] that names the reason; any bytes may come.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod op;
mod refusal;
#[cfg(test)]
mod tests;

use crate::layout::{LineNumber, Slot};
use crate::limits::{INLINE_VALUE_MAX_BYTES, KEY_MAX_BYTES, TTL_MAX_NS, VALUE_MAX_BYTES};

pub use op::{Condition, Op};
pub use refusal::{Malformed, Refusal};

/// Version of the messages and of the hello; both sides must have the same.
pub const PROTOCOL_VERSION: u32 = 5;

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
/// Bytes of a time to live.
const TTL_BYTES: usize = 8;
/// Bytes before the key, at most.
const REQUEST_HEADER_BYTES_MAX: usize = REQUEST_HEADER_BYTES + STAGED_HEADER_BYTES + TTL_BYTES;
/// Bytes of a reply before its chunk.
pub const REPLY_HEADER_BYTES: usize = size_of::<ReplyHeader>();

const _: () = assert!(
    REQUEST_HEADER_BYTES_MAX + KEY_MAX_BYTES + INLINE_VALUE_MAX_BYTES <= crate::ring::MESSAGE_MAX_BYTES
);
const _: () =
    assert!(REPLY_HEADER_BYTES + crate::limits::REPLY_CHUNK_BYTES <= crate::ring::MESSAGE_MAX_BYTES);

const STAGED: u8 = 1;
const CONDITION_SHIFT: u32 = 1;
const CONDITION: u8 = 3 << CONDITION_SHIFT;
const TTL: u8 = 8;
const MORE: u8 = 1;
const HINT: u8 = 2;

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

impl Value<'_> {
    /// Bytes of the value.
    pub fn len_bytes(self) -> usize {
        match self {
            Value::Inline(bytes) => bytes.len(),
            Value::Staged { len_bytes, .. } => len_bytes as usize,
        }
    }
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
    /// What must hold for a write to be done.
    pub condition: Condition,
    /// How long the value shall live, in ns; without end if `None`.
    pub ttl_ns: Option<u64>,
    /// The key; empty for operations that are about none.
    pub key: &'a [u8],
    /// The value; empty and inline for operations that have none.
    pub value: Value<'a>,
}

impl<'a> Request<'a> {
    /// A request without a condition or a time to live.
    pub fn new(seq: u64, session: u64, op: Op, key: &'a [u8], value: Value<'a>) -> Request<'a> {
        Request { seq, session, op, condition: Condition::Always, ttl_ns: None, key, value }
    }

    /// The header of the message; key and inline value follow it in this order.
    pub fn header(&self) -> RequestBytes {
        assert!(self.key.len() <= KEY_MAX_BYTES, "the client checked the key's length");
        let (flags, value_bytes) = match self.value {
            Value::Inline(bytes) => (0, bytes.len() as u32),
            Value::Staged { len_bytes, .. } => (STAGED, len_bytes),
        };
        let (kind, operand) = self.condition.encode();
        let header = RequestHeader {
            seq: self.seq.into(),
            session: self.session.into(),
            operand: operand.into(),
            op: self.op as u8,
            flags: flags | kind << CONDITION_SHIFT | if self.ttl_ns.is_some() { TTL } else { 0 },
            key_bytes: (self.key.len() as u16).into(),
            value_bytes: value_bytes.into(),
        };
        let mut bytes = RequestBytes { bytes: [0; REQUEST_HEADER_BYTES_MAX], used: REQUEST_HEADER_BYTES };
        bytes.bytes[..REQUEST_HEADER_BYTES].copy_from_slice(header.as_bytes());
        if let Value::Staged { offset_bytes, hash, .. } = self.value {
            let staged = StagedHeader { offset_bytes: offset_bytes.into(), hash: hash.into() };
            bytes.push(staged.as_bytes());
        }
        if let Some(ttl_ns) = self.ttl_ns {
            bytes.push(&ttl_ns.to_le_bytes());
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
        let op = Op::decode(header.op).ok_or(malformed(Malformed::UnknownOp))?;
        let (key_bytes, value_bytes) = (header.key_bytes.get() as usize, header.value_bytes.get());
        let condition =
            Condition::decode((header.flags & CONDITION) >> CONDITION_SHIFT, header.operand.get());
        let has_ttl = header.flags & TTL != 0;
        if header.flags & !(STAGED | CONDITION | TTL) != 0
            || (condition != Condition::Always && !op.is_write())
            || (has_ttl && !op.takes_ttl())
        {
            return Err(malformed(Malformed::UnknownFlags));
        }
        let staged = match header.flags & STAGED {
            0 => None,
            _ => Some(StagedHeader::ref_from_prefix(rest).map_err(|_| malformed(Malformed::Short))?),
        };
        let rest = staged.map_or(rest, |(_, rest)| rest);
        let (ttl_ns, rest) = match rest.split_first_chunk() {
            _ if !has_ttl => (None, rest),
            Some((ttl, rest)) => (Some(u64::from_le_bytes(*ttl)), rest),
            None => return Err(malformed(Malformed::Short)),
        };
        let inline_bytes = if staged.is_some() { 0 } else { value_bytes as usize };
        if rest.len() != key_bytes + inline_bytes {
            return Err(malformed(Malformed::Length));
        }
        if op.has_key() == (key_bytes == 0) {
            return Err(if op.has_key() { Refusal::KeyEmpty } else { malformed(Malformed::Length) });
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
        if !op.takes_value_of(value_bytes as usize, staged.is_some()) || inline_bytes > INLINE_VALUE_MAX_BYTES
        {
            return Err(malformed(Malformed::Length));
        }
        if let Some(found_ns) = ttl_ns
            && !(1..=TTL_MAX_NS).contains(&found_ns)
        {
            return Err(Refusal::TtlOutOfRange { found_ns });
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
        let (seq, session) = (header.seq.get(), header.session.get());
        Ok(Request { seq, session, op, condition, ttl_ns, key, value })
    }
}

/// An encoded request header.
pub struct RequestBytes {
    bytes: [u8; REQUEST_HEADER_BYTES_MAX],
    used: usize,
}

impl RequestBytes {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
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
    /// The key is not there, and the condition or the operation wants it to be.
    NotFound,
    /// The condition does not hold of the key, which is there with the version in the reply.
    Unmet,
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
    /// Bytes of the whole value: the one that a GET asked for, or that an add or append has made.
    pub total_bytes: u32,
    /// More messages of this reply follow.
    pub has_more: bool,
    /// Where the key is now.
    pub hint: Option<IndexHint>,
    /// The part of the value in this message; parts come in order. An append sends none of them.
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
            Status::Unmet => (2, self.version, 0),
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
            2 => Status::Unmet,
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
