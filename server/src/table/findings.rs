//! What a check can find: one kind per invariant.

use kv_common::layout::{Header, LineNumber, Place, SegmentKind, Slot};
use kv_common::probe::IdentityError;

/// A table that passed its check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Keys present.
    pub keys: u64,
    /// Bytes of their keys and values.
    pub data_bytes: u64,
    /// Keys whose time ends, or is over and who are not removed yet.
    pub expiring_keys: u64,
    /// Bytes of their blocks, rounding included.
    pub block_bytes: u64,
    /// Blocks that are neither in use nor free: on their way back through the epochs. Only the server knows them.
    pub waiting_blocks: u64,
    /// Overflow lines in use.
    pub overflow_lines: u64,
    /// Slots that splits under way have copied and not cleared yet; the keys are counted once.
    pub copied_keys: u64,
    /// Keys whose slot is in an overflow line.
    pub overflow_keys: u64,
    /// READs of overflow lines that looking up every key once takes, after the READ of its window.
    pub overflow_reads: u64,
    /// Segments of superblock and directory.
    pub fixed_segments: u64,
    /// Segments of index lines.
    pub index_segments: u64,
    /// Segments of blocks.
    pub block_segments: u64,
    /// Segments of pages for large blocks.
    pub large_segments: u64,
    /// Pages of them that are free. Only the server knows them.
    pub free_pages: u64,
    /// Segments that hold nothing yet.
    pub free_segments: u64,
}

impl CheckReport {
    /// Bytes of index per key, overflow lines included; infinite without keys.
    pub fn index_bytes_per_key(&self) -> f64 {
        (self.index_segments * kv_common::layout::SEGMENT_BYTES) as f64 / self.keys as f64
    }

    /// READs of index lines that a lookup of a present key takes on average, without a cache.
    pub fn index_reads_per_lookup(&self) -> f64 {
        1.0 + self.overflow_reads as f64 / self.keys as f64
    }
}

/// What is wrong with a table. Any of these is a fault of the server, or memory that changed by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckFinding {
    /// The superblock or directory cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A word of the segment table is no entry.
    #[error("segment {segment} has the entry {found:#x}, which is none")]
    SegmentEntry {
        /// The segment.
        segment: u64,
        /// The word found.
        found: u64,
    },
    /// A segment is of another kind than its use says.
    #[error("segment {segment} is used as {expected:?}, the segment table says {found:?}")]
    Kind {
        /// The segment.
        segment: u64,
        /// What it is used as.
        expected: SegmentKind,
        /// What the segment table says.
        found: SegmentKind,
    },
    /// No directory entry leads to an index segment, and no split fills it.
    #[error("index segment {segment} is not in the directory")]
    Unreachable {
        /// The segment.
        segment: u64,
    },
    /// Two numbers of the same thing differ.
    #[error("{what}: expected {expected}, found {found}")]
    Sum {
        /// Of what.
        what: String,
        /// As counted.
        expected: u64,
        /// As kept.
        found: u64,
    },
    /// A header is another one than the line's use says.
    #[error("line {line:?} has the header {found:?} instead of {expected:?}")]
    Header {
        /// The line.
        line: LineNumber,
        /// The header that belongs there, its link apart.
        expected: Header,
        /// The header found.
        found: Header,
    },
    /// A link leads out of the overflow part, or to a line that is in a chain already, or on where chains must end.
    #[error("line {line:?} is linked to line {next} of its segment, where no chain can go on")]
    Link {
        /// The line.
        line: LineNumber,
        /// Where its header leads.
        next: u16,
    },
    /// An empty line ends a chain.
    #[error("overflow line {line:?} ends a chain and is empty")]
    EmptyTail {
        /// The line.
        line: LineNumber,
    },
    /// A slot is wrong.
    #[error("slot {index} of line {line:?}, {slot:?}: {fault}")]
    Slot {
        /// The line.
        line: LineNumber,
        /// Which of its slots.
        index: usize,
        /// What it holds.
        slot: Slot,
        /// What is wrong.
        fault: SlotFault,
    },
    /// A key has two slots.
    #[error("the block at {second:?} has the same key as the one at {first:?}")]
    KeyTwice {
        /// A block of the key.
        first: Place,
        /// Another.
        second: Place,
    },
    /// A block is in use, or free, twice.
    #[error("the block at {place:?} is counted twice")]
    BlockTwice {
        /// The block.
        place: Place,
    },
    /// A page of a large segment is in no run, or in two, or free and in one.
    #[error("page {page} of the large segments is not accounted for once")]
    Page {
        /// The page, counted from the region's start.
        page: u64,
    },
    /// A run in use is not the one that the server gave out there.
    #[error("the block at {place:?} has {found:?} pages, the server keeps {kept:?}")]
    Run {
        /// Where it starts.
        place: Place,
        /// Pages of the block.
        found: Option<u64>,
        /// Pages of the run that was taken there.
        kept: Option<u64>,
    },
    /// A free block is live: a reader with an old place would believe it.
    #[error("the free block at {place:?} is live")]
    FreeBlockLive {
        /// The block.
        place: Place,
    },
    /// The list of free overflow lines and the chains disagree.
    #[error("overflow line {line:?} is free {listed} times, and in use: {in_use}")]
    OverflowLine {
        /// The line.
        line: LineNumber,
        /// Times in the free list.
        listed: u64,
        /// True if it is in a chain.
        in_use: bool,
    },
}

/// What is wrong with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotFault {
    /// In a line that is free, or nobody's.
    #[error("the line is not in use")]
    UnusedLine,
    /// It names no block of a segment of its class.
    #[error("no block of this span can start there")]
    NoBlock,
    /// The block is not live.
    #[error("its block is not live")]
    NotLive,
    /// The block's check fails.
    #[error("its block is damaged")]
    Damaged,
    /// A page of the block does not begin with the server's marker.
    #[error("page {page} of its block does not begin with a marker")]
    Marker {
        /// Which of the block's pages.
        page: u64,
    },
    /// The block would fit another span.
    #[error("its block has {block_bytes} bytes, which is another span")]
    Span {
        /// Bytes of the block.
        block_bytes: usize,
    },
    /// The key has another fingerprint.
    #[error("the key in its block has the fingerprint {found:#x}")]
    Fingerprint {
        /// The key's fingerprint.
        found: u16,
    },
    /// The key belongs elsewhere.
    #[error("the home of the key in its block is {home:?}")]
    Home {
        /// The key's home.
        home: LineNumber,
    },
    /// Its segment was split and has given the key away, and there is no equal slot in the other one.
    #[error("the key in its block belongs to another segment, which does not have it")]
    GivenAway,
    /// The version is above the ceiling.
    #[error("the version {version} of its block is not below the ceiling")]
    Ceiling {
        /// The version.
        version: u64,
    },
}
