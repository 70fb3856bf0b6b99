//! The bytes of the region. Nothing else in the project knows an offset; `docs/layout.md` has the pictures.
//!
//! The region is addressed by offset from its start and holds no pointers. It is cut into segments of 2 MiB:
//!
//! ```text
//! segment   0 ..            superblock: identity, guard line, counters, intents, segment table
//!           then 1          directory: 8-byte entries, each the number of an index segment
//!           then            index, block and free segments, in any order; the segment table says which
//!
//! index segment             32768 lines of 64 bytes: 30720 home lines, then 2048 overflow lines
//! line      | header | slot 0 | slot 1 | ... | slot 6 |        8 words
//! header    | depth:6 | moving:1 | overflow:1 | prefix:24 | next:16 | home:16 |      bit 0 on the left
//! slot      | place:40 | span:8 | fingerprint:16 |             zero: empty
//! block     | word 0 | check | value length:32, key length:16, flags:16 | key | value | expiry:64 if a flag says so |
//! ```
//!
//! A block above 320 KiB lies in a run of pages: see `pages`.

mod pages;

pub use pages::{
    MARKER, PAGE_BYTES, PAGE_GRANULES, PAGE_HEAD_WORDS, PAGE_PAYLOAD_BYTES, PAGE_PAYLOAD_WORDS, PAGE_WORDS,
    Run, SEGMENT_PAGES, is_large, pages_of, stored_bytes,
};

mod counters;
mod lines;

pub use counters::{COUNTER_NAMES, Counter, EVICTED_AGES};
pub use lines::{
    HOME_LINES, HOMES, Header, LINE_BYTES, LINE_SLOTS, LINE_WORDS, LineNumber, OVERFLOW_LINES, SEGMENT_LINES,
    WINDOW_WORDS,
};

/// Bytes of a granule, the unit of places and spans.
pub const GRANULE_BYTES: u64 = 16;
/// Bytes of a segment, the size of a huge page.
pub const SEGMENT_BYTES: u64 = 2 << 20;
/// Words of a segment.
pub const SEGMENT_WORDS: usize = SEGMENT_BYTES as usize / 8;
/// Granules of a segment.
pub const SEGMENT_GRANULES: u64 = SEGMENT_BYTES / GRANULE_BYTES;
/// Bits of a place.
pub const PLACE_BITS: u32 = 40;

// ---------------------------------------------------------------------------------------------------------------
// Superblock. Offsets in words of 8 bytes from the start of the region.

/// Offsets of the superblock's words.
pub mod superblock {
    /// `MAGIC`; stored last when a table is made, so that a half-made one is not taken for a table.
    pub const MAGIC: usize = 0;
    /// `LAYOUT_VERSION`.
    pub const LAYOUT_VERSION: usize = 1;
    /// Bytes of the region.
    pub const REGION_BYTES: usize = 2;
    /// Random per table; part of every block's check.
    pub const TABLE_ID: usize = 3;
    /// Seed of the key hash.
    pub const HASH_SEED: usize = 4;
    /// Random per start of the server.
    pub const INCARNATION: usize = 5;
    /// Number of the directory's segment.
    pub const DIRECTORY_SEGMENT: usize = 6;
    /// Longest time of a lookup whose miss counts, in ns.
    pub const GRACE_NS: usize = 7;

    /// The guard line: what a reader looks at around a GET. Written rarely, so it stays in every reader's cache.
    /// Its first word is a futex word of 32 bits: the thread that owns the region, marked by the kernel at its death.
    pub const OWNER: usize = 8;
    /// Raised when a segment is about to change its kind, class or block starts.
    pub const PLACE_EPOCH: usize = 9;
    /// Depth of the directory: it has `1 << depth` entries.
    pub const DIRECTORY_DEPTH: usize = 10;
    /// Longest age of a place epoch that counts, in ns.
    pub const LEASE_NS: usize = 11;

    /// The server's clock, ns since 1970: keys expire by it. It does not go back, and is never behind this word.
    pub const CLOCK_NS: usize = 16;
    /// Every version ever used is below this.
    pub const VERSION_CEILING: usize = 24;
    /// Bytes of the longest key and of the largest value that the server takes.
    pub const KEY_MAX_BYTES: usize = 32;
    /// See `KEY_MAX_BYTES`.
    pub const VALUE_MAX_BYTES: usize = 33;
    /// Bytes of the pages that back the region.
    pub const PAGE_BYTES: usize = 34;
    /// The server's process id, for people and benchmarks.
    pub const SERVER_PID: usize = 35;
    /// Workers, each with an intent record and a counter page.
    pub const WORKERS: usize = 36;
    /// When the server started, ns since 1970.
    pub const STARTED_NS: usize = 37;

    /// 1 if the server evicts keys when it is full: then clients report some of their hits. Else 0.
    pub const EVICTS: usize = 38;

    /// Words of the identity part that a client reads at connect.
    pub const IDENTITY_WORDS: usize = 64;

    /// First intent record; one per worker. Reserved for region files (crash recovery).
    pub const INTENTS: usize = 512;
    /// Words of an intent record: session, sequence number, result, old and new place and version, slot, and room to
    /// keep a small value that is being updated in place.
    pub const INTENT_WORDS: usize = 32;
    /// First counter page; one per worker, each with a single writer.
    pub const COUNTERS: usize = 4096;
    /// Words of a counter page.
    pub const COUNTER_WORDS: usize = 64;
    /// In each page: keys evicted, by the time since their last use. See [`super::EVICTED_AGES`].
    pub const EVICTED_AGES: usize = COUNTER_WORDS - super::EVICTED_AGES;
    /// The counter page of whoever splits index segments, in front of the workers'.
    pub const GROWTH_COUNTERS: usize = COUNTERS - COUNTER_WORDS;
    /// The counter page of whoever makes segments free, in front of that.
    pub const SPACE_COUNTERS: usize = GROWTH_COUNTERS - COUNTER_WORDS;
    /// The first of the counter pages, which follow each other.
    pub const COUNTERS_FIRST: usize = SPACE_COUNTERS;

    /// Where the counter pages of a server with so many workers start.
    pub fn counter_pages(workers: usize) -> impl Iterator<Item = usize> {
        (COUNTERS_FIRST..COUNTERS + workers * COUNTER_WORDS).step_by(COUNTER_WORDS)
    }

    /// First entry of the segment table.
    pub const SEGMENT_TABLE: usize = 8192;

    const _: () = assert!(INTENTS + crate::limits::WORKERS_MAX * INTENT_WORDS <= COUNTERS_FIRST);
    const _: () = assert!(COUNTERS + crate::limits::WORKERS_MAX * COUNTER_WORDS <= SEGMENT_TABLE);
    const _: () = assert!(OWNER.is_multiple_of(8) && LEASE_NS < OWNER + 8, "the guard is one cache line");
    const _: () = assert!(IDENTITY_WORDS <= INTENTS && EVICTS < IDENTITY_WORDS);
}

/// First word of a region: "KVONESID" in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KVONESID");
/// Changes whenever a byte of the layout changes its meaning.
pub const LAYOUT_VERSION: u64 = 2;

/// What a segment holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentKind {
    /// Nothing yet.
    Free = 0,
    /// The superblock and the segment table.
    Superblock = 1,
    /// The directory.
    Directory = 2,
    /// Index lines. Never changes again.
    Index = 3,
    /// Blocks of one size class.
    Blocks = 4,
    /// Pages of large blocks.
    Large = 5,
}

/// An entry of the segment table: `kind:8 | class:8 | 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// What the segment holds.
    pub kind: SegmentKind,
    /// The span of its blocks, for [`SegmentKind::Blocks`]; else 0.
    pub class: u8,
}

impl SegmentEntry {
    /// The entry as a word.
    pub fn encode(self) -> u64 {
        self.kind as u64 | (self.class as u64) << 8
    }

    /// The entry in a word, or `None` if it is no entry.
    pub fn decode(word: u64) -> Option<SegmentEntry> {
        let kind = match word & 0xff {
            0 => SegmentKind::Free,
            1 => SegmentKind::Superblock,
            2 => SegmentKind::Directory,
            3 => SegmentKind::Index,
            4 => SegmentKind::Blocks,
            5 => SegmentKind::Large,
            _ => return None,
        };
        let class = (word >> 8) as u8;
        (word >> 16 == 0 && (kind == SegmentKind::Blocks) == (class != 0))
            .then_some(SegmentEntry { kind, class })
    }
}

/// Segments that superblock and segment table take in a region of `segments`.
pub const fn superblock_segments(segments: u64) -> u64 {
    (superblock::SEGMENT_TABLE as u64 * 8 + segments * 8).div_ceil(SEGMENT_BYTES)
}

/// Depth of the deepest directory: its entries fill one segment.
pub const DIRECTORY_DEPTH_MAX: u32 = (SEGMENT_BYTES / 8).trailing_zeros();

/// Where a block starts, in granules from the start of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(pub u64);

impl Place {
    /// Offset of the block in words.
    #[inline]
    pub fn word(self) -> usize {
        (self.0 * (GRANULE_BYTES / 8)) as usize
    }

    /// The segment that the block starts in.
    pub fn segment(self) -> u64 {
        self.0 / SEGMENT_GRANULES
    }
}

/// How much to read for a block, in one byte: exact granules up to 16 (256 bytes), then eight steps per doubling. The
/// size classes of blocks are these very steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span(pub u8);

impl Span {
    /// The largest span of a block in one piece: a size class.
    pub const SMALL_MAX: Span = Span::of_bytes(crate::limits::SMALL_BLOCK_MAX_BYTES);

    /// The largest span of all, of a run of pages.
    pub const MAX: Span = Span::of_bytes(pages::BLOCK_PAGES_MAX as usize * PAGE_BYTES as usize);

    /// The smallest span of at least `bytes`.
    pub const fn of_bytes(bytes: usize) -> Span {
        let granules = (bytes as u64).div_ceil(GRANULE_BYTES);
        if granules <= 16 {
            return Span(if granules == 0 { 1 } else { granules as u8 });
        }
        // The step's base is the largest power of two below `granules`; a step is an eighth of it.
        let shift = (granules - 1).ilog2() - 3;
        let eighths = ((granules - 1) >> shift) - 8;
        Span((17 + (shift - 1) * 8 + eighths as u32) as u8)
    }

    /// True if it is that of a block in pages: then it says how many bytes its pages have at most.
    #[inline]
    pub fn is_large(self) -> bool {
        self > Span::SMALL_MAX
    }

    /// Granules to read.
    #[inline]
    pub fn granules(self) -> u64 {
        let code = self.0 as u64;
        if code <= 16 {
            return code;
        }
        (9 + (code - 17) % 8) << ((code - 17) / 8 + 1)
    }

    /// Bytes to read.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.granules() * GRANULE_BYTES
    }

    /// Words to read.
    #[inline]
    pub fn words(self) -> usize {
        self.bytes() as usize / 8
    }
}

/// A slot of an index line: where the block of a key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u64);

impl Slot {
    /// The empty slot.
    pub const EMPTY: Slot = Slot(0);

    /// A slot in use.
    pub fn new(fingerprint: u16, span: Span, place: Place) -> Slot {
        assert!(
            fingerprint != 0 && span.0 != 0 && place.0 < 1 << PLACE_BITS,
            "a slot in use has no zero field"
        );
        Slot(place.0 | (span.0 as u64) << 40 | (fingerprint as u64) << 48)
    }

    /// True if it names no block.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its fingerprint.
    #[inline]
    pub fn fingerprint(self) -> u16 {
        (self.0 >> 48) as u16
    }

    /// How much to read.
    #[inline]
    pub fn span(self) -> Span {
        Span((self.0 >> 40) as u8)
    }

    /// Where the block starts.
    #[inline]
    pub fn place(self) -> Place {
        Place(self.0 & ((1 << PLACE_BITS) - 1))
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Blocks.

/// Bytes before the key.
pub const BLOCK_HEADER_BYTES: usize = 24;
/// Words before the key.
pub const BLOCK_HEADER_WORDS: usize = 3;
/// Set in word 0 of a block that is not live: being written, or dead.
pub const NOT_LIVE: u64 = 1 << 63;

/// The third word of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Bytes of the value.
    pub value_bytes: u32,
    /// Bytes of the key.
    pub key_bytes: u16,
    /// 0 or [`EXPIRES`]; a reader that meets a flag it does not know refuses the block.
    pub flags: u16,
}

/// Flag of a block: the 8 bytes behind the value say when it expires, in ns since 1970 by the server's clock.
pub const EXPIRES: u16 = 1;
/// Bytes of an expiry.
pub const EXPIRY_BYTES: usize = 8;

impl Lengths {
    /// As a word.
    #[inline]
    pub fn encode(self) -> u64 {
        self.value_bytes as u64 | (self.key_bytes as u64) << 32 | (self.flags as u64) << 48
    }

    /// From a word; any word is lengths, believed only after the check.
    #[inline]
    pub fn decode(word: u64) -> Lengths {
        Lengths { value_bytes: word as u32, key_bytes: (word >> 32) as u16, flags: (word >> 48) as u16 }
    }

    /// Bytes of the block up to the end of its value. At most 2^33, so it cannot overflow.
    #[inline]
    pub fn value_end(self) -> usize {
        BLOCK_HEADER_BYTES + self.data_bytes()
    }

    /// Bytes of the whole block.
    #[inline]
    pub fn block_bytes(self) -> usize {
        self.value_end() + if self.expires() { EXPIRY_BYTES } else { 0 }
    }

    /// Bytes of key and value.
    #[inline]
    pub fn data_bytes(self) -> usize {
        self.key_bytes as usize + self.value_bytes as usize
    }

    /// True if an expiry follows the value.
    #[inline]
    pub fn expires(self) -> bool {
        self.flags & EXPIRES != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_the_steps_of_the_design() {
        let steps: Vec<u64> = (1..=32).map(|code| Span(code).bytes()).collect();
        let small: Vec<u64> = (1..=16).map(|i| i * 16).collect();
        assert_eq!(steps[..16], small);
        assert_eq!(
            steps[16..],
            [288, 320, 352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 832, 896, 960, 1024]
        );
    }

    #[test]
    fn the_span_of_a_length_is_the_smallest_that_holds_it() {
        for bytes in (1..70_000).chain((1 << 20) - 9..=(1 << 20) + 1000) {
            let span = Span::of_bytes(bytes);
            assert!(span.bytes() >= bytes as u64, "{bytes}");
            assert!(span.0 == 1 || Span(span.0 - 1).bytes() < bytes as u64, "{bytes}");
            if bytes > 256 {
                assert!((span.bytes() as f64) < bytes as f64 * 1.125, "{bytes} takes {}", span.bytes());
            }
        }
    }

    #[test]
    fn fields_come_back_from_slots_and_headers() {
        let slot = Slot::new(0xabcd, Span(77), Place((1 << 40) - 2));
        assert_eq!((slot.fingerprint(), slot.span(), slot.place()), (0xabcd, Span(77), Place((1 << 40) - 2)));
        let home = Header::home(18, 0x2_5a5a).with_next(0xfffe);
        assert_eq!((home.depth(), home.prefix(), home.next()), (18, 0x2_5a5a, 0xfffe));
        assert!(!home.is_moving() && !home.is_overflow());
        let overflow = home.with_moving(true).overflow_of(1234);
        assert_eq!((overflow.depth(), overflow.prefix(), overflow.next()), (18, 0x2_5a5a, 0));
        assert!(overflow.is_moving() && overflow.is_overflow() && overflow.home_of_overflow() == 1234);
        assert!(!overflow.with_moving(false).is_moving());
    }

    #[test]
    fn segment_entries_round_trip_and_garbage_is_refused() {
        for kind in [SegmentKind::Free, SegmentKind::Superblock, SegmentKind::Directory, SegmentKind::Index] {
            let entry = SegmentEntry { kind, class: 0 };
            assert_eq!(SegmentEntry::decode(entry.encode()), Some(entry));
        }
        let blocks = SegmentEntry { kind: SegmentKind::Blocks, class: 9 };
        assert_eq!(SegmentEntry::decode(blocks.encode()), Some(blocks));
        let large = SegmentEntry { kind: SegmentKind::Large, class: 0 };
        assert_eq!(SegmentEntry::decode(large.encode()), Some(large));
        for word in [6, 0x0105, 0x0104_0000, 0x0003 | 9 << 8, 4] {
            assert_eq!(SegmentEntry::decode(word), None, "{word:#x}");
        }
    }

    #[test]
    fn a_large_region_needs_more_superblock_segments() {
        assert_eq!(superblock_segments(8), 1);
        assert_eq!(superblock_segments(253_952), 1);
        assert_eq!(superblock_segments(253_953), 2);
        assert_eq!(superblock_segments(crate::limits::REGION_MAX_BYTES / SEGMENT_BYTES), 33);
    }
}
