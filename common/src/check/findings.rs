//! What a check can find: one kind per invariant.

use std::fmt;

use crate::layout::{Header, LineNumber, PAGE_WORDS, Place, SEGMENT_BYTES, SegmentKind, Slot};
use crate::probe::IdentityError;

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
    /// Keys whose block lies in pages, and those pages.
    pub large_keys: u64,
    /// See `large_keys`.
    pub used_pages: u64,
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
        (self.index_segments * SEGMENT_BYTES) as f64 / self.keys as f64
    }

    /// READs of index lines that a lookup of a present key takes on average, without a cache.
    pub fn index_reads_per_lookup(&self) -> f64 {
        1.0 + self.overflow_reads as f64 / self.keys as f64
    }
}

/// What is wrong with a table. Any of these is a fault of the server, or memory that changed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckFinding {
    /// The superblock or directory cannot be read.
    Identity(IdentityError),
    /// A word of the segment table is no entry.
    SegmentEntry {
        /// The segment.
        segment: u64,
        /// The word found.
        found: u64,
    },
    /// A word that the layout does not use is not zero.
    Reserved {
        /// The word, from the region's start.
        word: usize,
        /// What it is.
        found: u64,
    },
    /// A segment is of another kind than its use says.
    Kind {
        /// The segment.
        segment: u64,
        /// What it is used as.
        expected: SegmentKind,
        /// What the segment table says.
        found: SegmentKind,
    },
    /// No directory entry leads to an index segment, and no split fills it.
    Unreachable {
        /// The segment.
        segment: u64,
    },
    /// Two numbers of the same thing differ.
    Sum {
        /// Of what.
        what: String,
        /// As counted.
        expected: u64,
        /// As kept.
        found: u64,
    },
    /// A header is another one than the line's use says.
    Header {
        /// The line.
        line: LineNumber,
        /// The header that belongs there, its link apart.
        expected: Header,
        /// The header found.
        found: Header,
    },
    /// A link leads out of the overflow part, or to a line that is in a chain already, or on where chains must end.
    Link {
        /// The line.
        line: LineNumber,
        /// Where its header leads.
        next: u16,
    },
    /// An empty line ends a chain.
    EmptyTail {
        /// The line.
        line: LineNumber,
    },
    /// A slot is wrong.
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
    KeyTwice {
        /// A block of the key.
        first: Place,
        /// Another.
        second: Place,
    },
    /// A block is in use, or free, twice.
    BlockTwice {
        /// The block.
        place: Place,
    },
    /// A page of a large segment is in no run, or in two, or free and in one.
    Page {
        /// The page, counted from the region's start.
        page: u64,
    },
    /// A run in use is not the one that the server gave out there.
    Run {
        /// Where it starts.
        place: Place,
        /// Pages of the block.
        found: Option<u64>,
        /// Pages of the run that was taken there.
        kept: Option<u64>,
    },
    /// A free block is live: a reader with an old place would believe it.
    FreeBlockLive {
        /// The block.
        place: Place,
    },
    /// The list of free overflow lines and the chains disagree.
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

/// A finding in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FindingDescription {
    /// Its kind, one per invariant: what programs compare.
    pub kind: &'static str,
    /// Where.
    pub place: String,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl CheckFinding {
    /// The finding in words.
    pub fn describe(&self) -> FindingDescription {
        let says = |kind, place: String, expected: String, found: String| FindingDescription {
            kind,
            place,
            expected,
            found,
        };
        match self {
            CheckFinding::Identity(error) => {
                says("identity", "superblock".into(), "what a server writes".into(), error.to_string())
            }
            CheckFinding::SegmentEntry { segment, found } => {
                says("segment_entry", of_segment(*segment), "a kind and its class".into(), hex(*found))
            }
            CheckFinding::Reserved { word, found } => {
                says("reserved", of_byte(*word), "0, the layout does not use it".into(), hex(*found))
            }
            CheckFinding::Kind { segment, expected, found } => {
                says("kind", of_segment(*segment), format!("{expected:?}"), format!("{found:?}"))
            }
            CheckFinding::Unreachable { segment } => says(
                "unreachable",
                of_segment(*segment),
                "in the directory, or being filled by a split".into(),
                "neither".into(),
            ),
            CheckFinding::Sum { what, expected, found } => {
                says("sum", what.clone(), expected.to_string(), found.to_string())
            }
            CheckFinding::Header { line, expected, found } => {
                says("header", of_line(*line), format!("header {:#x}", expected.0), hex(found.0))
            }
            CheckFinding::Link { line, next } => says(
                "link",
                of_line(*line),
                "no link, or one to an overflow line of no chain yet".into(),
                format!("line {next} of the segment"),
            ),
            CheckFinding::EmptyTail { line } => {
                says("empty_tail", of_line(*line), "keys, since it ends a chain".into(), "none".into())
            }
            CheckFinding::Slot { line, index, slot, fault } => says(
                fault.kind(),
                format!("slot {index} of {}", of_line(*line)),
                fault.expected().into(),
                format!("{fault} ({}, span {} bytes)", of_place(slot.place()), slot.span().bytes()),
            ),
            CheckFinding::KeyTwice { first, second } => says(
                "key_twice",
                of_place(*second),
                "a key that no other slot has".into(),
                format!("the key of the block at {}", of_place(*first)),
            ),
            CheckFinding::BlockTwice { place } => {
                says("block_twice", of_place(*place), "a block of one slot".into(), "one of two".into())
            }
            CheckFinding::Page { page } => says(
                "page",
                of_byte(*page as usize * PAGE_WORDS),
                "a page of one block".into(),
                "a page of none, or of two".into(),
            ),
            CheckFinding::Run { place, found, kept } => says(
                "run",
                of_place(*place),
                format!("{kept:?} pages, as the server keeps"),
                format!("{found:?} pages"),
            ),
            CheckFinding::FreeBlockLive { place } => {
                says("free_block_live", of_place(*place), "not live, since it is free".into(), "live".into())
            }
            CheckFinding::OverflowLine { line, listed, in_use } => says(
                "overflow_line",
                of_line(*line),
                "free once, or in a chain".into(),
                format!("free {listed} times, in a chain: {in_use}"),
            ),
        }
    }
}

impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FindingDescription { kind, place, expected, found } = self.describe();
        write!(f, "{kind}: {place}: expected {expected}, found {found}")
    }
}

impl SlotFault {
    fn kind(self) -> &'static str {
        match self {
            SlotFault::UnusedLine => "unused_line",
            SlotFault::NoBlock => "no_block",
            SlotFault::NotLive => "not_live",
            SlotFault::Damaged => "damaged",
            SlotFault::Marker { .. } => "marker",
            SlotFault::Span { .. } => "span",
            SlotFault::Fingerprint { .. } => "fingerprint",
            SlotFault::Home { .. } => "home",
            SlotFault::GivenAway => "given_away",
            SlotFault::Ceiling { .. } => "ceiling",
        }
    }

    fn expected(self) -> &'static str {
        match self {
            SlotFault::UnusedLine => "empty",
            SlotFault::NoBlock => "a block start of a segment with such blocks",
            SlotFault::NotLive => "a live block",
            SlotFault::Damaged => "a block that passes its check",
            SlotFault::Marker { .. } => "markers at the start of every page but the first",
            SlotFault::Span { .. } => "the span of its block",
            SlotFault::Fingerprint { .. } => "the fingerprint of its key",
            SlotFault::Home { .. } => "a key whose home has this line",
            SlotFault::GivenAway => "a key that the segment answers for, or an equal slot where it was moved",
            SlotFault::Ceiling { .. } => "a version below the ceiling",
        }
    }
}

fn of_segment(segment: u64) -> String {
    format!("segment {segment}")
}

fn of_line(line: LineNumber) -> String {
    format!("line {} of segment {}", line.in_segment(), line.segment())
}

fn of_place(place: Place) -> String {
    of_byte(place.word())
}

fn of_byte(word: usize) -> String {
    format!("byte {:#x}", word as u64 * 8)
}

fn hex(word: u64) -> String {
    format!("{word:#x}")
}
