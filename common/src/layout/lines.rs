//! The lines of index segments, and their headers.

use super::{DIRECTORY_DEPTH_MAX, SEGMENT_BYTES};

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;
/// Words of a line.
pub const LINE_WORDS: usize = 8;
/// Words of a window: a home line and the next.
pub const WINDOW_WORDS: usize = 2 * LINE_WORDS;
/// Slots of a line.
pub const LINE_SLOTS: usize = 7;
/// Lines of an index segment.
pub const SEGMENT_LINES: u64 = SEGMENT_BYTES / LINE_BYTES;
/// Overflow lines of an index segment, its last ones. With 1/16 of the lines a segment takes keys until 76 % of all its
/// slots are full (simulated, 20 runs: 76.5 % at the least); with 1/32 until 73 %, with 3/32 until 78 %.
pub const OVERFLOW_LINES: u64 = SEGMENT_LINES / 16;
/// Home lines of an index segment.
pub const HOME_LINES: u64 = SEGMENT_LINES - OVERFLOW_LINES;
/// Homes of an index segment: the last home line is nobody's home, since a window is two lines.
pub const HOMES: u64 = HOME_LINES - 1;

/// Number of a line in the whole region: its offset in lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LineNumber(pub u64);

impl LineNumber {
    /// Line `line` of segment `segment`.
    pub fn new(segment: u64, line: u64) -> LineNumber {
        debug_assert!(line < SEGMENT_LINES);
        LineNumber(segment * SEGMENT_LINES + line)
    }

    /// Offset of its header in words.
    #[inline]
    pub fn word(self) -> usize {
        self.0 as usize * LINE_WORDS
    }

    /// The line after it.
    #[inline]
    pub fn next(self) -> LineNumber {
        LineNumber(self.0 + 1)
    }

    /// Its segment.
    pub fn segment(self) -> u64 {
        self.0 / SEGMENT_LINES
    }

    /// Its number inside the segment.
    pub fn in_segment(self) -> u64 {
        self.0 % SEGMENT_LINES
    }

    /// The line with number `line` of the same segment.
    #[inline]
    pub fn sibling(self, line: u16) -> LineNumber {
        LineNumber((self.0 & !(SEGMENT_LINES - 1)) | line as u64)
    }
}

/// The header of an index line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub u64);

impl Header {
    const MOVING: u64 = 1 << 6;
    const OVERFLOW: u64 = 1 << 7;

    /// The header of an overflow line that is in no chain.
    pub const FREE: Header = Header(0);

    /// The header of a home line of a segment that answers for hashes whose low `depth` bits are `prefix`.
    pub fn home(depth: u32, prefix: u64) -> Header {
        assert!(depth <= DIRECTORY_DEPTH_MAX && prefix < 1 << depth, "depth and prefix of one segment");
        Header(depth as u64 | prefix << 8)
    }

    /// The header of an overflow line of `home` in the same segment as a line with header `self`.
    pub fn overflow_of(self, home: u16) -> Header {
        Header((self.0 & 0xffff_ff3f) | Header::OVERFLOW | (self.0 & Header::MOVING) | (home as u64) << 48)
    }

    /// The same with the number of the next overflow line, 0 for none.
    pub fn with_next(self, next: u16) -> Header {
        Header(self.0 & !(0xffff << 32) | (next as u64) << 32)
    }

    /// Low hash bits that the segment was split by.
    #[inline]
    pub fn depth(self) -> u32 {
        (self.0 & 0x3f) as u32
    }

    /// True while the segment is being split: a miss here does not count.
    #[inline]
    pub fn is_moving(self) -> bool {
        self.0 & Header::MOVING != 0
    }

    /// True for an overflow line that is in use.
    #[inline]
    pub fn is_overflow(self) -> bool {
        self.0 & Header::OVERFLOW != 0
    }

    /// The low hash bits that the segment answers for.
    #[inline]
    pub fn prefix(self) -> u64 {
        self.0 >> 8 & 0xff_ffff
    }

    /// The number of the next overflow line in this segment, 0 for none.
    #[inline]
    pub fn next(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// The home that an overflow line belongs to.
    #[inline]
    pub fn home_of_overflow(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// True if the segment answers for `hash`.
    #[inline]
    pub fn answers_for(self, hash: crate::hash::KeyHash) -> bool {
        self.depth() <= DIRECTORY_DEPTH_MAX && hash.prefix(self.depth()) == self.prefix()
    }

    /// The same header, marked moving or not.
    pub fn with_moving(self, moving: bool) -> Header {
        Header(self.0 & !Header::MOVING | if moving { Header::MOVING } else { 0 })
    }

    /// The header of the same line when its segment has given the other half of its hashes away: it answers for one more
    /// bit, which is 0, and is moving no more.
    pub fn deepened(self) -> Header {
        assert!(self.depth() < DIRECTORY_DEPTH_MAX, "a segment of the greatest depth is not split");
        Header(self.with_moving(false).0 + 1)
    }
}

const _: () = assert!(DIRECTORY_DEPTH_MAX <= 24, "the prefix has 24 bits");
const _: () = assert!(SEGMENT_LINES <= 1 << 16, "line numbers in headers have 16 bits");
const _: () =
    assert!(HOME_LINES > 0 && OVERFLOW_LINES > 0, "line 0 is a home, so 0 can mean no overflow line");
