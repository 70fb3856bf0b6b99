//! Why a request was not carried out.

use crate::limits::{KEY_MAX_BYTES, TTL_MAX_NS};

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
    /// No run of free pages is long enough for a large value.
    #[error(
        "region full: a value of this size takes {run_bytes} bytes in one piece, and the largest piece that is free has \
         {largest_bytes}; delete large values or start the server with more --memory"
    )]
    NoRun {
        /// Bytes of its pages.
        run_bytes: u64,
        /// Bytes of the longest run of pages that are free or in free segments.
        largest_bytes: u64,
    },
    /// A part or the end of a value of which no part is awaited: its upload was not begun, or was given up.
    #[error(
        "no upload is under way: it was not begun, or given up when another one began or a part was refused"
    )]
    NoUpload,
    /// The parts of a value do not make up what was announced. The upload is given up.
    #[error("{found_bytes} bytes of a value came whose upload announced {announced_bytes}")]
    UploadLength {
        /// Bytes announced when it was begun.
        announced_bytes: u64,
        /// Bytes that have come, the refused part included.
        found_bytes: u64,
    },
    /// The end of an upload names another key than its beginning. The upload is given up.
    #[error("the upload was begun under another key")]
    UploadKey,
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
    /// An add to a value that is no counter.
    #[error(
        "the value, of {found_bytes} bytes, is no counter: counters are decimal numbers of 64 bits with sign, written as \
         42 or -7; put one, or delete the key, which then counts as 0"
    )]
    NotACounter {
        /// Bytes of the value.
        found_bytes: u64,
    },
    /// An add whose sum has no place in 64 bits.
    #[error("{value} and {delta} make a number that needs more than 64 bits")]
    CounterOverflow {
        /// The counter.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// A key cannot live for so long, or for no time.
    #[error(
        "a time to live of {found_ns} ns; keys live for 1 to {TTL_MAX_NS} ns (100 years), or without end: give no time then"
    )]
    TtlOutOfRange {
        /// The time to live.
        found_ns: u64,
    },
}

impl Refusal {
    pub(super) fn encode(self) -> (u8, u64, u64) {
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
            Refusal::NotACounter { found_bytes } => (26, found_bytes, 0),
            Refusal::CounterOverflow { value, delta } => (27, value as u64, delta as u64),
            Refusal::TtlOutOfRange { found_ns } => (32, found_ns, 0),
            Refusal::NoRun { run_bytes, largest_bytes } => (28, run_bytes, largest_bytes),
            Refusal::NoUpload => (29, 0, 0),
            Refusal::UploadLength { announced_bytes, found_bytes } => (30, announced_bytes, found_bytes),
            Refusal::UploadKey => (31, 0, 0),
        }
    }

    pub(super) fn decode(code: u8, a: u64, b: u64) -> Result<Refusal, Malformed> {
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
            26 => Refusal::NotACounter { found_bytes: a },
            27 => Refusal::CounterOverflow { value: a as i64, delta: b as i64 },
            32 => Refusal::TtlOutOfRange { found_ns: a },
            28 => Refusal::NoRun { run_bytes: a, largest_bytes: b },
            29 => Refusal::NoUpload,
            30 => Refusal::UploadLength { announced_bytes: a, found_bytes: b },
            31 => Refusal::UploadKey,
            _ => return Err(Malformed::UnknownOp),
        })
    }
}
