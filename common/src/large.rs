//! Large blocks as their pages come: how a reader judges one, and puts the value together meanwhile.
//!
//! The check is that of every block (see [`crate::block`]), over the payload without what stands at the start of pages; its
//! inner hash is fed as pages come, in their order. Nothing of it is believed before the last page was judged.

use std::fmt;
use std::ops::Range;

use crate::adversary::{Mutant, mutant};
use crate::block::{self, Verdict};
use crate::hash::PayloadHasher;
use crate::layout::{
    BLOCK_HEADER_BYTES, EXPIRES, Lengths, NOT_LIVE, PAGE_HEAD_WORDS, PAGE_PAYLOAD_BYTES, PAGE_WORDS, Run,
    Slot, is_large, pages_of,
};
use crate::limits::PAGES_PER_READ;
use crate::probe::TableView;
use crate::region::bytes_of;

/// A large block whose first page said that it may be the wanted one.
pub struct Assembly {
    run: Run,
    version: u64,
    check: u64,
    lengths: Lengths,
    hasher: PayloadHasher,
    /// The pages before this one were fed.
    next_page: u64,
    value: Vec<u8>,
    /// What follows the value: when it expires, if it does.
    expiry: Vec<u8>,
}

/// A large block that is as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// Its version.
    pub version: u64,
    /// When it expires, ns since 1970 by the server's clock, if it does.
    pub expires_ns: Option<u64>,
    /// Its value.
    pub value: Vec<u8>,
}

/// Why there is no [`Assembly`] of a first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAssembled {
    /// What the page is instead. `OtherKey` is no fact here, unlike in [`block::judge`]: nothing of it was proved.
    Judged(Verdict),
    /// There is no memory for a value of so many bytes.
    NoMemory(usize),
}

/// Pages of a block for one READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the block's pages is the first of them.
    pub first_page: u64,
    /// Where they start in the region.
    pub at_word: usize,
    /// How many words to READ: the last page only as far as it is used.
    pub len_words: usize,
}

impl Assembly {
    /// Judges the first page of the block that `slot` names, read as a whole, for the wanted `key`.
    ///
    /// # Errors
    /// [`NotAssembled`].
    pub fn begin(words: &[u64], key: &[u8], slot: Slot, view: &TableView) -> Result<Assembly, NotAssembled> {
        let torn = || NotAssembled::Judged(Verdict::Torn);
        if words.len() != PAGE_WORDS {
            return Err(torn());
        }
        if words[0] & NOT_LIVE != 0 && !mutant(Mutant::SkipLive) {
            return Err(NotAssembled::Judged(Verdict::NotLive));
        }
        let lengths = Lengths::decode(words[2]);
        let run = run_of(lengths, slot, view).ok_or_else(torn)?;
        let found = block::key_of(words).ok_or_else(torn)?;
        if found != key && !mutant(Mutant::SkipKey) {
            return Err(NotAssembled::Judged(Verdict::OtherKey));
        }
        let value_bytes = lengths.value_bytes as usize;
        let mut value = Vec::new();
        value.try_reserve_exact(value_bytes).map_err(|_| NotAssembled::NoMemory(value_bytes))?;
        let mut assembly = Assembly {
            run,
            version: words[0] & !NOT_LIVE,
            check: words[1],
            lengths,
            hasher: PayloadHasher::new(),
            next_page: 0,
            value,
            expiry: Vec::new(),
        };
        assembly.feed(words);
        Ok(assembly)
    }

    /// The piece that starts with this page; `None` behind the last one.
    pub fn piece(&self, first_page: u64) -> Option<Piece> {
        piece_of(self.run, self.lengths, first_page)
    }

    /// Pages that were fed.
    pub fn pages_fed(&self) -> u64 {
        self.next_page
    }

    /// True once all were.
    pub fn is_complete(&self) -> bool {
        self.next_page == self.run.pages
    }

    /// Takes the next pages, whole, and the last one as far as it is used.
    pub fn feed(&mut self, words: &[u64]) {
        for page in words.chunks(PAGE_WORDS) {
            let start = self.next_page as usize * PAGE_PAYLOAD_BYTES;
            let payload = payload_of(page, self.next_page, self.lengths);
            self.hasher.update(payload);
            let Range { start: from, end: to } = self.value_range();
            let within = |at: usize| at.saturating_sub(start).min(payload.len());
            self.value.extend_from_slice(&payload[within(from)..within(to)]);
            self.expiry.extend_from_slice(&payload[within(to)..]);
            self.next_page += 1;
        }
    }

    /// Where the value lies in the payload.
    fn value_range(&self) -> Range<usize> {
        let start = BLOCK_HEADER_BYTES - PAGE_HEAD_WORDS * 8 + self.lengths.key_bytes as usize;
        start..start + self.lengths.value_bytes as usize
    }

    /// Judges the whole: what it is, if what was fed is the block of a version as it was written.
    pub fn finish(self, table_id: u64) -> Option<Assembled> {
        assert!(self.is_complete(), "all pages were fed");
        let check = block::check_of(self.hasher.finish(), self.version, self.run.place(), table_id);
        let is_whole = check == self.check || mutant(Mutant::SkipCheck) || mutant(Mutant::CheckOnlyHead);
        // Behind the value of a block without an expiry there is nothing.
        let expires_ns = self.expiry.try_into().ok().map(u64::from_le_bytes);
        is_whole.then_some(Assembled { version: self.version, expires_ns, value: self.value })
    }
}

/// The pages of a block with these lengths, if the slot, the region and the server's limit allow for it.
pub fn run_of(lengths: Lengths, slot: Slot, view: &TableView) -> Option<Run> {
    let block_bytes = lengths.block_bytes();
    if lengths.flags & !EXPIRES != 0
        || lengths.value_bytes as usize > view.value_max_bytes
        || !is_large(block_bytes)
    {
        return None;
    }
    let run = Run::at(slot.place(), pages_of(block_bytes))?;
    (run.span() == slot.span() && run.page_word(run.pages) <= view.region_words).then_some(run)
}

/// The piece of a block that starts with this page; `None` behind the last one.
pub(crate) fn piece_of(run: Run, lengths: Lengths, first_page: u64) -> Option<Piece> {
    if first_page >= run.pages {
        return None;
    }
    let end_page = run.pages.min(first_page + PAGES_PER_READ);
    // Words of the last page behind the block.
    let payload_words = (lengths.block_bytes() - PAGE_HEAD_WORDS * 8).div_ceil(8);
    let unused_words = run.pages as usize * (PAGE_WORDS - PAGE_HEAD_WORDS) - payload_words;
    let unused_words = if end_page == run.pages { unused_words } else { 0 };
    let len_words = (end_page - first_page) as usize * PAGE_WORDS - unused_words;
    Some(Piece { first_page, at_word: run.page_word(first_page), len_words })
}

/// The payload in the block's page with this number.
pub(crate) fn payload_of(page: &[u64], number: u64, lengths: Lengths) -> &[u8] {
    let payload_bytes = lengths.block_bytes() - PAGE_HEAD_WORDS * 8;
    let payload = &bytes_of(page)[PAGE_HEAD_WORDS * 8..];
    &payload[..payload.len().min(payload_bytes - number as usize * PAGE_PAYLOAD_BYTES)]
}

impl fmt::Debug for Assembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Assembly { run, version, lengths, next_page, .. } = self;
        let mut f = f.debug_struct("Assembly");
        f.field("run", run).field("version", version).field("lengths", lengths).field("next_page", next_page);
        f.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{MARKER, Span};

    const TABLE: u64 = 0x7ab1e;
    const KEY: &[u8] = b"a key";

    fn view() -> TableView {
        let mut view = TableView::unread(100 * PAGE_WORDS);
        (view.table_id, view.value_max_bytes) = (TABLE, 2 << 20);
        view
    }

    /// The pages of a block as the layout document describes them, and its slot.
    fn pages(value: &[u8], version: u64) -> (Vec<u64>, Slot) {
        let lengths = Lengths { value_bytes: value.len() as u32, key_bytes: KEY.len() as u16, flags: 0 };
        let payload = [&lengths.encode().to_le_bytes()[..], KEY, value].concat();
        let run = Run { first_page: 3, pages: payload.len().div_ceil(65_520) as u64 };
        let hash = xxhash_rust::xxh3::xxh3_64(&payload);
        let mut words = vec![0; run.pages as usize * PAGE_WORDS];
        for (i, piece) in payload.chunks(65_520).enumerate() {
            let page = &mut words[i * PAGE_WORDS..(i + 1) * PAGE_WORDS];
            (page[0], page[1]) = (MARKER, MARKER);
            crate::region::bytes_of_mut(&mut page[2..])[..piece.len()].copy_from_slice(piece);
        }
        (words[0], words[1]) = (version, block::check_of(hash, version, run.place(), TABLE));
        (words, Slot::new(7, run.span(), run.place()))
    }

    fn value(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i % 251) as u8).collect()
    }

    /// Reads the block piece by piece.
    fn read(words: &[u64], slot: Slot) -> Option<(u64, Vec<u8>)> {
        let base = slot.place().word();
        let mut assembly = Assembly::begin(&words[..PAGE_WORDS], KEY, slot, &view()).ok()?;
        while let Some(piece) = assembly.piece(assembly.pages_fed()) {
            let at = piece.at_word - base;
            assembly.feed(&words[at..at + piece.len_words]);
        }
        let Assembled { version, expires_ns, value } = assembly.finish(TABLE)?;
        assert_eq!(expires_ns, None);
        Some((version, value))
    }

    #[test]
    fn a_block_is_put_together_whatever_its_length() {
        let page_ends = [6, 7, 9, 10, 17].map(|pages| pages * 65_520 - 8 - KEY.len());
        for bytes in page_ends.into_iter().flat_map(|bytes| [bytes - 1, bytes, bytes + 1, bytes + 8]) {
            let (words, slot) = pages(&value(bytes), 42);
            assert_eq!(read(&words, slot), Some((42, value(bytes))), "{bytes} bytes");
        }
    }

    #[test]
    fn a_change_of_any_payload_or_of_the_head_is_noticed_and_heads_of_other_pages_do_not_matter() {
        let (words, slot) = pages(&value(600_000), 42);
        for at in (0..words.len()).step_by(4001).chain([0, 1, 2, 3, 8191, 8194]) {
            let mut changed = words.clone();
            changed[at] ^= 4;
            let is_head = at % PAGE_WORDS < PAGE_HEAD_WORDS && at >= PAGE_WORDS;
            let is_behind = at >= words.len() - (PAGE_WORDS - 2 - (600_013 - 9 * 65_520usize).div_ceil(8));
            assert_eq!(read(&changed, slot).is_some(), is_head || is_behind, "word {at}");
        }
    }

    #[test]
    fn what_the_first_page_says_is_judged_before_anything_else_is_read() {
        let (mut words, slot) = pages(&value(500_000), 42);
        let begin = |words: &[u64], key: &[u8], slot: Slot| {
            Assembly::begin(&words[..PAGE_WORDS], key, slot, &view()).err()
        };
        let judged = |verdict| Some(NotAssembled::Judged(verdict));
        assert_eq!(begin(&words, KEY, slot), None);
        assert_eq!(begin(&words, b"other", slot), judged(Verdict::OtherKey));
        let other_span = Slot::new(7, Span(slot.span().0 + 1), slot.place());
        assert_eq!(begin(&words, KEY, other_span), judged(Verdict::Torn));
        let good = words[2];
        for bad in [0, u64::MAX, good | 1 << 49, good & !0xffff_ffff | 100, good | 3 << 20] {
            words[2] = bad;
            assert_eq!(begin(&words, KEY, slot), judged(Verdict::Torn), "{bad:#x}");
        }
        (words[0], words[2]) = (MARKER, good);
        assert_eq!(begin(&words, KEY, slot), judged(Verdict::NotLive));
    }
}
