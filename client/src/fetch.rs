//! The pages of a large block on their way: several READs in flight, back in any order, taken in theirs.

use kv_common::large::{Assembled, Assembly, Piece};
use kv_common::layout::PAGE_WORDS;
use kv_common::limits::PAGE_READS_MAX;

/// A large block of which the first page was read.
#[derive(Debug)]
pub(crate) struct Fetch {
    assembly: Assembly,
    /// The first page that no READ was asked for yet.
    next_page: u64,
    /// Back before those in front of them: first page and words.
    early: Vec<(u64, Vec<u64>)>,
    /// READs asked for whose pages were not taken yet.
    open: usize,
}

impl Fetch {
    pub(crate) fn new(assembly: Assembly) -> Fetch {
        let next_page = assembly.pages_fed();
        Fetch { assembly, next_page, early: Vec::new(), open: 0 }
    }

    /// The next READ, if one may be made: what is in flight, and what waits for it, is bounded.
    pub(crate) fn next_read(&mut self) -> Option<Piece> {
        let piece = self.assembly.piece(self.next_page).filter(|_| self.open < PAGE_READS_MAX)?;
        self.next_page += piece.len_words.div_ceil(PAGE_WORDS) as u64;
        self.open += 1;
        Some(piece)
    }

    /// Takes back a READ that was asked for last and not made.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        self.next_page = piece.first_page;
        self.open -= 1;
    }

    /// The words of the oldest READ that is out.
    pub(crate) fn feed(&mut self, words: &[u64]) {
        self.assembly.feed(words);
        self.open -= 1;
    }

    /// The words of some READ. Buffers that are needed no more go to `spare`.
    pub(crate) fn landed(&mut self, first_page: u64, words: Vec<u64>, spare: &mut Vec<Vec<u64>>) {
        self.early.push((first_page, words));
        while let Some(at) = self.early.iter().position(|(page, _)| *page == self.assembly.pages_fed()) {
            let (_, words) = self.early.swap_remove(at);
            self.feed(&words);
            spare.push(words);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.assembly.is_complete()
    }

    /// Pages that were taken.
    pub(crate) fn pages_done(&self) -> u64 {
        self.assembly.pages_fed()
    }

    /// What it is, if the block is whole.
    pub(crate) fn finish(self, table_id: u64) -> Option<Assembled> {
        self.assembly.finish(table_id)
    }
}
