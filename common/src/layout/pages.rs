//! Large blocks: runs of contiguous pages of 64 KiB, in segments of their own kind.
//!
//! ```text
//! page      0                              1                          2 ...
//!           | word 0 | check | payload ... | marker | marker | ... payload | marker | marker | ...
//! payload   | value length:32, key length:16, flags:16 | key | value | expiry, if a flag says so |     cut into pieces of 8190 words
//! ```
//!
//! The first two words of every page are the server's, whatever clients put: so no place of a large block, however old,
//! leads to words that a client chose where a block's word 0 and check are looked for.

use super::{BLOCK_HEADER_BYTES, EXPIRY_BYTES, GRANULE_BYTES, NOT_LIVE, Place, SEGMENT_BYTES, Span};
use crate::limits::{KEY_MAX_BYTES, SMALL_BLOCK_MAX_BYTES, VALUE_MAX_BYTES};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 64 << 10;
/// Words of a page.
pub const PAGE_WORDS: usize = PAGE_BYTES as usize / 8;
/// Words at the start of a page that only the server writes.
pub const PAGE_HEAD_WORDS: usize = 2;
/// Words of a page that hold payload.
pub const PAGE_PAYLOAD_WORDS: usize = PAGE_WORDS - PAGE_HEAD_WORDS;
/// Bytes of a page that hold payload.
pub const PAGE_PAYLOAD_BYTES: usize = PAGE_PAYLOAD_WORDS * 8;
/// Pages of a segment.
pub const SEGMENT_PAGES: u64 = SEGMENT_BYTES / PAGE_BYTES;
/// Both head words of every page of a run but the first: as word 0 of a block it says "not live".
pub const MARKER: u64 = NOT_LIVE;

/// Granules of a page.
pub const PAGE_GRANULES: u64 = PAGE_BYTES / GRANULE_BYTES;
/// Bytes of a block before its payload: word 0 and check.
const CHECKED_FROM_BYTES: usize = PAGE_HEAD_WORDS * 8;
/// Pages of the largest block.
pub(super) const BLOCK_PAGES_MAX: u64 =
    pages_of(BLOCK_HEADER_BYTES + KEY_MAX_BYTES + VALUE_MAX_BYTES + EXPIRY_BYTES);

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(PAGE_BYTES) && PAGE_BYTES.is_multiple_of(GRANULE_BYTES));
const _: () =
    assert!(BLOCK_HEADER_BYTES + KEY_MAX_BYTES <= PAGE_BYTES as usize, "the key is in the first page");
const _: () =
    assert!(SMALL_BLOCK_MAX_BYTES > 2 * PAGE_BYTES as usize, "a large block has more than one page");

/// True if a block of so many bytes, from its header to its end, lies in pages.
pub const fn is_large(block_bytes: usize) -> bool {
    block_bytes > SMALL_BLOCK_MAX_BYTES
}

/// Pages of a large block of so many bytes, header, key and value.
pub const fn pages_of(block_bytes: usize) -> u64 {
    (block_bytes - CHECKED_FROM_BYTES).div_ceil(PAGE_PAYLOAD_BYTES) as u64
}

/// Bytes that a block of so many bytes takes of the region: those of its class, or of its pages.
pub fn stored_bytes(block_bytes: usize) -> u64 {
    if is_large(block_bytes) {
        pages_of(block_bytes) * PAGE_BYTES
    } else {
        Span::of_bytes(block_bytes).bytes()
    }
}

/// Contiguous pages. Pages are counted from the region's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// The first page.
    pub first_page: u64,
    /// How many.
    pub pages: u64,
}

impl Run {
    /// The run that starts at `place`; `None` if no page starts there.
    pub fn at(place: Place, pages: u64) -> Option<Run> {
        let first_page = place.0 / PAGE_GRANULES;
        place.0.is_multiple_of(PAGE_GRANULES).then_some(Run { first_page, pages })
    }

    /// Where its block starts.
    pub fn place(self) -> Place {
        Place(self.first_page * PAGE_GRANULES)
    }

    /// The page after its last one.
    pub fn end_page(self) -> u64 {
        self.first_page + self.pages
    }

    /// Offset of its page `page`, counted from 0, in words.
    #[inline]
    pub fn page_word(self, page: u64) -> usize {
        (self.first_page + page) as usize * PAGE_WORDS
    }

    /// Offset of this word of its block's payload, in words.
    #[inline]
    pub fn payload_word(self, word: usize) -> usize {
        self.page_word((word / PAGE_PAYLOAD_WORDS) as u64) + PAGE_HEAD_WORDS + word % PAGE_PAYLOAD_WORDS
    }

    /// Its bytes.
    pub fn bytes(self) -> u64 {
        self.pages * PAGE_BYTES
    }

    /// The span of slots that name its block.
    pub fn span(self) -> Span {
        Span::of_bytes(self.bytes() as usize)
    }

    /// The segments that it touches.
    pub fn segments(self) -> std::ops::RangeInclusive<u64> {
        self.first_page / SEGMENT_PAGES..=(self.end_page() - 1) / SEGMENT_PAGES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_a_class_and_the_largest_run_has_a_span() {
        assert_eq!(Span::SMALL_MAX.bytes(), SMALL_BLOCK_MAX_BYTES as u64);
        assert!(Span::MAX.bytes() >= BLOCK_PAGES_MAX * PAGE_BYTES && Span::MAX.is_large());
        assert!(!Span::SMALL_MAX.is_large() && Span(Span::SMALL_MAX.0 + 1).is_large());
        // 1 GiB, the longest key, lengths: so many bytes of payload in pieces of 65,520.
        assert_eq!(BLOCK_PAGES_MAX, ((1u64 << 30) + 1024 + 8).div_ceil(65_520));
    }

    #[test]
    fn pages_hold_what_is_left_beside_their_heads() {
        for pages in [6, 7, 32, 33, 1000] {
            let full = 16 + pages * 65_520;
            assert_eq!((pages_of(full), pages_of(full + 1)), (pages as u64, pages as u64 + 1));
            assert_eq!(stored_bytes(full), pages as u64 * 65_536);
        }
        assert_eq!(stored_bytes(SMALL_BLOCK_MAX_BYTES), 327_680);
        assert_eq!(stored_bytes(SMALL_BLOCK_MAX_BYTES + 1), 6 * 65_536);
        assert_eq!(stored_bytes(49), 64);
    }

    #[test]
    fn runs_start_where_pages_do() {
        assert_eq!(Run::at(Place(4096 * 33), 7), Some(Run { first_page: 33, pages: 7 }));
        assert_eq!(Run::at(Place(4096 * 33 + 1), 7), None);
        let run = Run { first_page: 62, pages: 3 };
        assert_eq!((run.place(), run.page_word(1), run.segments()), (Place(62 * 4096), 63 * 8192, 1..=2));
    }
}
