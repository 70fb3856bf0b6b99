//! What a request asks for, and under which condition.

use crate::limits::HITS_PER_REPORT_MAX;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// An empty reply.
    Ping = 0,
    /// The value, read by the server: the answer of last resort. If the request has a value, it is 8 bytes: how many bytes of
    /// the key's value the client has already. The answer has at most [`ANSWER_MAX_BYTES`](crate::limits::ANSWER_MAX_BYTES)
    /// from there on.
    Get = 1,
    /// Insert or update.
    Put = 2,
    /// Delete.
    Delete = 3,
    /// Add the 8 bytes of the value, a little-endian two's complement, to the counter; an absent key is one of 0.
    Add = 4,
    /// Put the value behind the one that is there; an absent key has an empty one.
    Append = 5,
    /// Give the key another time to live, or none.
    Touch = 6,
    /// The same, and the value.
    GetAndTouch = 7,
    /// How long the key will live: 8 bytes, the ns that are left; none if it has no end.
    Ttl = 8,
    /// Begin to put a value that lies in pages and comes in parts. The value of the request is 8 bytes: how many bytes it
    /// will have. What was begun before in this session and not ended is given up.
    PutBegin = 9,
    /// The next part of that value.
    PutPart = 10,
    /// Put what has come, under the key with which it was begun.
    PutEnd = 11,
    /// The keys of a part of a walk over all keys. The value is the cursor, 8 bytes; the reply's version is that of the part
    /// behind it, 0 if there is none.
    Scan = 12,
    /// The same, and the keys are deleted; the reply has their number, 8 bytes.
    Clear = 13,
    /// The value is places, 8 bytes each, in which the client has found values: a server that evicts spares them.
    Hits = 14,
}

impl Op {
    pub(super) const ALL: [Op; 15] = [
        Op::Ping,
        Op::Get,
        Op::Put,
        Op::Delete,
        Op::Add,
        Op::Append,
        Op::Touch,
        Op::GetAndTouch,
        Op::Ttl,
        Op::PutBegin,
        Op::PutPart,
        Op::PutEnd,
        Op::Scan,
        Op::Clear,
        Op::Hits,
    ];

    pub(super) fn decode(code: u8) -> Option<Op> {
        Op::ALL.into_iter().find(|&op| op as u8 == code)
    }

    /// True if it changes its key, and only that, and may have a condition.
    pub fn is_write(self) -> bool {
        match self {
            Op::Put | Op::Delete | Op::Add | Op::Append | Op::Touch | Op::GetAndTouch | Op::PutEnd => true,
            Op::Ping | Op::Get | Op::Ttl | Op::PutBegin | Op::PutPart | Op::Scan | Op::Clear | Op::Hits => {
                false
            }
        }
    }

    /// True if it names a key.
    pub fn has_key(self) -> bool {
        !matches!(self, Op::Ping | Op::PutPart | Op::Scan | Op::Clear | Op::Hits)
    }

    /// True if it comes with a value, of which this says what length it may have.
    pub(super) fn takes_value_of(self, value_bytes: usize, is_staged: bool) -> bool {
        match self {
            Op::Put | Op::Append | Op::PutPart => true,
            Op::Add | Op::PutBegin | Op::Scan | Op::Clear => value_bytes == size_of::<u64>() && !is_staged,
            Op::Hits => value_bytes.is_multiple_of(8) && value_bytes <= HITS_PER_REPORT_MAX * 8 && !is_staged,
            Op::Get => (value_bytes == 0 || value_bytes == size_of::<u64>()) && !is_staged,
            Op::Ping | Op::Delete | Op::Touch | Op::GetAndTouch | Op::Ttl | Op::PutEnd => {
                value_bytes == 0 && !is_staged
            }
        }
    }

    /// True if a time to live may come with it.
    pub(super) fn takes_ttl(self) -> bool {
        matches!(self, Op::Put | Op::Touch | Op::GetAndTouch | Op::PutBegin)
    }
}

/// What must hold of a key for a write to be done. If it does not hold, nothing is changed, and the answer says what is
/// there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Nothing.
    #[default]
    Always,
    /// The key is absent.
    Absent,
    /// The key is present.
    Present,
    /// The key is present with this version.
    Version(u64),
}

impl Condition {
    /// Its kind, and the operand of the message.
    pub(super) fn encode(self) -> (u8, u64) {
        match self {
            Condition::Always => (0, 0),
            Condition::Absent => (1, 0),
            Condition::Present => (2, 0),
            Condition::Version(version) => (3, version),
        }
    }

    pub(super) fn decode(kind: u8, operand: u64) -> Condition {
        match kind {
            0 => Condition::Always,
            1 => Condition::Absent,
            2 => Condition::Present,
            _ => Condition::Version(operand),
        }
    }

    /// Whether it holds of a key that is present with this version, or absent.
    pub fn holds(self, version: Option<u64>) -> bool {
        match self {
            Condition::Always => true,
            Condition::Absent => version.is_none(),
            Condition::Present => version.is_some(),
            Condition::Version(expected) => version == Some(expected),
        }
    }
}
