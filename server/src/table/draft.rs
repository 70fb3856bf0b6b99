//! Large blocks before they are published.
//!
//! # Why pages may be used again at once, with other boundaries
//! A reader may look at any place that it ever learned, whatever is there by now, and its READ brings words of different
//! moments. A block in a size class can be reused at once because block starts stay put there: what lies at one is a word 0
//! and a check that the server wrote. Runs of pages have no fixed starts; but *every* page begins with two words that only
//! the server writes, a word 0 and a check or two markers, and every place that was ever given out for a large block is the
//! start of a page. So, for a READ of the first page at an old place:
//!
//! * It brings a marker as word 0, or a dead word 0: not live.
//! * It brings the word 0 of a block that starts there, of whatever moment: then what it accepts has the check that the READ
//!   brought, made from the hash of the payload that it brought, that word 0, and the place. If check and word 0 are those of
//!   one block, the payload is that block's, or hashes alike: a second preimage of the hash, which is what protects every
//!   block. If word 0 is old and the check is that of a later block there, or a marker, the check would have to come out right
//!   for a version that it was not made of: the same chance as with a block in a class that was used again.
//!
//! The pages after the first are fetched by other READs, at other moments. They need no further argument: their payload
//! counts only through the hash, and the moment of the GET is the one at which word 0 was fetched.
//!
//! No reader is led to a page's inside, so it does not matter what clients put there. The markers of a run are stored, as
//! release stores, when the run is taken: before any word of its payload, while the payload that is in the pages still is that of
//! blocks whose word 0 is dead.
//!
//! Server threads that copy a block without the stripes pin an epoch; a run that was published comes back through the epochs
//! like every block.

use std::ops::Range;

use kv_common::adversary::{Mutant, mutant};
use kv_common::hash::PayloadHasher;
use kv_common::layout::{
    EXPIRES, Lengths, MARKER, NOT_LIVE, PAGE_BYTES, PAGE_HEAD_WORDS, PAGE_PAYLOAD_BYTES, PAGE_PAYLOAD_WORDS,
    Place, Run, Span, pages_of,
};
use kv_common::region::{WORD_BYTES, Words, bytes_of, bytes_of_mut};
use kv_common::wire::Refusal;

use super::Table;
use super::put::{Left, Payload};
use super::worker::grown;

/// Words that are aligned at once.
const ALIGNED_WORDS: usize = 512;

/// Words of what a device stored that are looked at together.
const LANDED_WORDS: usize = 2 << 10;

/// Where the next bytes of a value go, in order, as ranges of bytes of the region.
pub(crate) type Landing = Vec<Range<u64>>;

/// A run that is being filled. Nobody is led to it.
pub(super) struct Draft {
    run: Run,
    lengths: Lengths,
    hasher: PayloadHasher,
    /// Words of payload stored.
    stored_words: usize,
    /// The bytes behind them, of a word that is not complete.
    rest: u64,
    rest_bytes: usize,
    /// Bytes of the value taken.
    taken_bytes: usize,
    /// Bytes that a device was told to store behind these.
    landing_bytes: Option<usize>,
}

impl Draft {
    /// Takes a run for the block of `key` and a value of `value_bytes`, which is a large one, and starts it; whether it has an
    /// expiry is known from here on. `left` has the run until it is published.
    ///
    /// # Errors
    /// [`Refusal::NoRun`].
    pub(super) fn begin(
        table: &Table,
        key: &[u8],
        value_bytes: usize,
        expires: bool,
        left: &mut Left,
    ) -> Result<Draft, Refusal> {
        let flags = if expires { EXPIRES } else { 0 };
        let lengths = Lengths { value_bytes: value_bytes as u32, key_bytes: key.len() as u16, flags };
        let run = table.slab.take_run(pages_of(lengths.block_bytes()))?;
        left.draft = Some((run.span(), run.place()));
        Ok(Draft::start(&table.region, run, lengths, key))
    }

    fn start(region: &Words, run: Run, lengths: Lengths, key: &[u8]) -> Draft {
        let mut draft = Draft {
            run,
            lengths,
            hasher: PayloadHasher::new(),
            stored_words: 0,
            rest: 0,
            rest_bytes: 0,
            taken_bytes: 0,
            landing_bytes: None,
        };
        draft.mark(region);
        draft.put(region, &lengths.encode().to_le_bytes());
        draft.put(region, key);
        draft
    }

    /// Stores what is the server's at the start of every page.
    fn mark(&self, region: &Words) {
        region.store_release(self.run.page_word(0), NOT_LIVE);
        if mutant(Mutant::SkipMarkers) {
            return;
        }
        for page in 1..self.run.pages {
            for word in 0..PAGE_HEAD_WORDS {
                region.store_release(self.run.page_word(page) + word, MARKER);
            }
        }
    }

    /// What it takes of the region.
    pub(super) fn block(&self) -> (Span, Place) {
        (self.run.span(), self.run.place())
    }

    /// Bytes of the value, and how many of them are still to come.
    pub(super) fn value_bytes(&self) -> (usize, usize) {
        let value_bytes = self.lengths.value_bytes as usize;
        (value_bytes, value_bytes - self.taken_bytes)
    }

    /// Takes the next bytes of the value: no more than are to come.
    pub(super) fn write(&mut self, region: &Words, bytes: &[u8]) {
        assert!(bytes.len() <= self.value_bytes().1, "the caller has counted the bytes");
        self.taken_bytes += bytes.len();
        self.put(region, bytes);
    }

    /// Where a device may store the next `len_bytes` bytes of the value; none if so many are not to come.
    pub(super) fn begin_landing(&mut self, region: &Words, len_bytes: usize) -> Option<Landing> {
        if len_bytes > self.value_bytes().1 {
            return None;
        }
        if self.rest_bytes > 0 {
            // The device stores the other bytes of this word.
            region.store(self.run.payload_word(self.stored_words), self.rest);
        }
        self.landing_bytes = Some(len_bytes);
        let mut at = self.stored_words * WORD_BYTES + self.rest_bytes;
        let end = at + len_bytes;
        let mut landing = Landing::new();
        while at < end {
            let now = (end - at).min(PAGE_PAYLOAD_BYTES - at % PAGE_PAYLOAD_BYTES);
            let start = self.run.payload_word(at / WORD_BYTES) * WORD_BYTES + at % WORD_BYTES;
            debug_assert!((start + now) as u64 <= self.run.end_page() * PAGE_BYTES);
            landing.push(start as u64..(start + now) as u64);
            at += now;
        }
        Some(landing)
    }

    /// Whether the next bytes of the value, so many, are where [`Draft::begin_landing`] said. Asked once.
    pub(super) fn has_landed(&mut self, len_bytes: usize) -> bool {
        self.landing_bytes.take() == Some(len_bytes)
    }

    /// Takes these bytes, which nobody changes any more, and hands them to `take`.
    pub(super) fn take_landed(
        &mut self,
        region: &Words,
        len_bytes: usize,
        scratch: &mut Vec<u64>,
        mut take: impl FnMut(&[u8]),
    ) {
        let end = self.stored_words * WORD_BYTES + self.rest_bytes + len_bytes;
        self.taken_bytes += len_bytes;
        while self.stored_words * WORD_BYTES + self.rest_bytes < end {
            let in_page = PAGE_PAYLOAD_WORDS - self.stored_words % PAGE_PAYLOAD_WORDS;
            let words = LANDED_WORDS.min(in_page).min(end.div_ceil(WORD_BYTES) - self.stored_words);
            let until = end.min((self.stored_words + words) * WORD_BYTES);
            let found = grown(scratch, words);
            region.copy_out(self.run.payload_word(self.stored_words), found);
            let bytes = &bytes_of(found)[self.rest_bytes..until - self.stored_words * WORD_BYTES];
            self.hasher.update(bytes);
            take(bytes);
            (self.stored_words, self.rest_bytes) = (until / WORD_BYTES, until % WORD_BYTES);
            self.rest = match self.rest_bytes {
                0 => 0,
                bytes => found[words - 1] & ((1 << (bytes * 8)) - 1),
            };
        }
    }

    /// Ends it, once the value is whole: what is left to do is under the stripes. It has an expiry if it was begun so.
    pub(super) fn finish(mut self, region: &Words, expires_ns: Option<u64>) -> Payload {
        assert_eq!(self.value_bytes().1, 0, "the value is whole");
        assert_eq!(self.lengths.expires(), expires_ns.is_some(), "its pages were counted with the expiry");
        if let Some(expires_ns) = expires_ns {
            self.put(region, &expires_ns.to_le_bytes());
        }
        if self.rest_bytes > 0 {
            self.store(region, &[self.rest]);
        }
        Payload {
            words: 0,
            hash: self.hasher.finish(),
            span: self.run.span(),
            stored_bytes: self.run.bytes(),
            data_bytes: self.lengths.data_bytes() as u64,
            expires_ns,
        }
    }

    /// Appends bytes to the payload.
    fn put(&mut self, region: &Words, bytes: &[u8]) {
        self.hasher.update(bytes);
        let mut aligned = [0; ALIGNED_WORDS];
        for piece in bytes.chunks(ALIGNED_WORDS * 8 - 8) {
            aligned[0] = self.rest;
            let end = self.rest_bytes + piece.len();
            bytes_of_mut(&mut aligned)[self.rest_bytes..end].copy_from_slice(piece);
            self.store(region, &aligned[..end / 8]);
            self.rest_bytes = end % 8;
            self.rest =
                if self.rest_bytes > 0 { aligned[end / 8] & ((1 << (self.rest_bytes * 8)) - 1) } else { 0 };
        }
    }

    /// Stores whole words of payload, beside the heads of pages.
    fn store(&mut self, region: &Words, mut words: &[u64]) {
        while !words.is_empty() {
            let in_page = PAGE_PAYLOAD_WORDS - self.stored_words % PAGE_PAYLOAD_WORDS;
            let (now, later) = words.split_at(words.len().min(in_page));
            region.copy_in(self.run.payload_word(self.stored_words), now);
            self.stored_words += now.len();
            words = later;
        }
    }
}

#[cfg(test)]
mod tests {
    use kv_common::layout::PAGE_WORDS;

    use super::*;

    const VALUE_BYTES: usize = 400_003;

    /// Fills a run with a value in parts of these lengths, in turn, the rest at once. A part at an odd place is stored as a
    /// device would, byte by byte.
    fn fill(key: &[u8], parts: &[usize], lands: bool) -> (Words, u64) {
        let value: Vec<u8> = (0..VALUE_BYTES).map(|i| (i % 251) as u8).collect();
        let lengths =
            Lengths { value_bytes: VALUE_BYTES as u32, key_bytes: key.len() as u16, flags: EXPIRES };
        let run = Run { first_page: 1, pages: pages_of(lengths.block_bytes()) };
        let region = Words::zeroed((run.pages as usize + 2) * PAGE_WORDS);
        let (mut draft, mut rest) = (Draft::start(&region, run, lengths, key), &value[..]);
        for (i, len) in parts.iter().chain([&usize::MAX]).enumerate() {
            let (part, later) = rest.split_at(rest.len().min(*len));
            if lands && i % 2 == 1 {
                land(&mut draft, &region, part);
            } else {
                assert!(!draft.has_landed(part.len()));
                draft.write(&region, part);
            }
            rest = later;
        }
        let hash = draft.finish(&region, Some(77)).hash;
        (region, hash)
    }

    fn land(draft: &mut Draft, region: &Words, part: &[u8]) {
        let landing = draft.begin_landing(region, part.len()).expect("so many are to come");
        let mut bytes = part.iter();
        for at in landing.into_iter().flatten() {
            let (word, shift) = (at as usize / 8, at % 8 * 8);
            let byte = u64::from(*bytes.next().expect("no more than there are"));
            region.store(word, region.load(word) & !(0xff << shift) | byte << shift);
        }
        assert!(bytes.next().is_none() && draft.has_landed(part.len()) && !draft.has_landed(part.len()));
        let mut taken = Vec::new();
        draft.take_landed(region, part.len(), &mut Vec::new(), |piece| taken.extend_from_slice(piece));
        assert!(taken == part);
    }

    #[test]
    fn what_a_device_stores_is_what_would_have_been_written() {
        for key in [&b"k"[..], b"eight by", &[7; 1024]] {
            let (expected, hash) = fill(key, &[], false);
            for parts in [
                &[0][..],
                &[1, 1, 1, 1, 1, 1],
                &[7, 8, 9, 65_520, 3, 65_519, 5],
                &[65_520 - 8 - 1, 131_040, 1, 131_041],
                &[16_384, 100_000, 16_383, 200_001],
            ] {
                let (found, other) = fill(key, parts, true);
                let differs = (0..expected.len_words()).find(|&at| expected.load(at) != found.load(at));
                assert_eq!((differs, other), (None, hash), "{parts:?}");
            }
        }
    }

    #[test]
    fn more_than_is_to_come_lands_nowhere() {
        let lengths = Lengths { value_bytes: 400_000, key_bytes: 1, flags: 0 };
        let region = Words::zeroed(9 * PAGE_WORDS);
        let mut draft = Draft::start(&region, Run { first_page: 0, pages: 7 }, lengths, b"k");
        assert_eq!(draft.begin_landing(&region, 400_001), None);
        assert!(!draft.has_landed(400_001));
        let ranges = draft.begin_landing(&region, 400_000).unwrap();
        assert_eq!(ranges[0], 16 + 8 + 1..65_536);
        assert_eq!(ranges[1], 65_536 + 16..131_072);
        assert_eq!((ranges.len(), ranges[6].end), (7, 6 * 65_536 + 16 + 400_009 - 6 * 65_520));
    }
}
