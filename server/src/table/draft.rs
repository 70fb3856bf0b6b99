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

use kv_common::adversary::{Mutant, mutant};
use kv_common::hash::PayloadHasher;
use kv_common::layout::{
    EXPIRES, Lengths, MARKER, NOT_LIVE, PAGE_HEAD_WORDS, PAGE_PAYLOAD_WORDS, Place, Run, Span, pages_of,
};
use kv_common::region::{Words, bytes_of_mut};
use kv_common::wire::Refusal;

use super::Table;
use super::put::{Left, Payload};

/// Words that are aligned at once.
const ALIGNED_WORDS: usize = 512;

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
        let mut draft = Draft {
            run,
            lengths,
            hasher: PayloadHasher::new(),
            stored_words: 0,
            rest: 0,
            rest_bytes: 0,
            taken_bytes: 0,
        };
        draft.mark(&table.region);
        draft.put(&table.region, &lengths.encode().to_le_bytes());
        draft.put(&table.region, key);
        Ok(draft)
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
            let (page, at) = (self.stored_words / PAGE_PAYLOAD_WORDS, self.stored_words % PAGE_PAYLOAD_WORDS);
            let (now, later) = words.split_at(words.len().min(PAGE_PAYLOAD_WORDS - at));
            region.copy_in(self.run.page_word(page as u64) + PAGE_HEAD_WORDS + at, now);
            self.stored_words += now.len();
            words = later;
        }
    }
}
