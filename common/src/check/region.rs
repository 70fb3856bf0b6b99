//! Where a check has the words of a region from.

use std::convert::Infallible;

use crate::limits::SMALL_BLOCK_MAX_BYTES;
use crate::region::ReadWords;

/// Words of a piece, at most: a block in one piece is in one.
pub const PIECE_MAX_WORDS: usize = 64 << 10;

const _: () = assert!(SMALL_BLOCK_MAX_BYTES <= PIECE_MAX_WORDS * 8);

/// Words of a region that are read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where they start.
    pub at_word: usize,
    /// How many; at most [`PIECE_MAX_WORDS`].
    pub len_words: usize,
}

impl Piece {
    /// The word behind it.
    pub fn end_word(self) -> usize {
        self.at_word + self.len_words
    }
}

/// Takes the words of a piece.
pub type Take<'a> = &'a mut dyn FnMut(Piece, &[u64]);

/// The words of a region, wherever they are.
pub trait Region {
    /// Why words cannot be had.
    type Error;

    /// Words of the region.
    fn len_words(&self) -> usize;

    /// Hands the words of the pieces, which lie in the region, to `take`, in the order of the pieces.
    ///
    /// # Errors
    /// Not all were handed over.
    fn read(&mut self, pieces: &mut dyn Iterator<Item = Piece>, take: Take) -> Result<(), Self::Error>;

    /// True if somebody may write to it meanwhile: then nothing is a finding that was seen once.
    fn is_live(&self) -> bool {
        false
    }

    /// Lets time pass before what was found is looked at again, for the `look`th time, counted from 1: some ms first, and
    /// then more and more, so that the last looks are hundreds of ms apart.
    ///
    /// # Errors
    /// The region cannot be read any more.
    fn look_again(&mut self, _look: u32) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// Memory of this process, which nobody writes to meanwhile.
impl Region for ReadWords {
    type Error = Infallible;

    fn len_words(&self) -> usize {
        ReadWords::len_words(self)
    }

    fn read(&mut self, pieces: &mut dyn Iterator<Item = Piece>, take: Take) -> Result<(), Infallible> {
        let mut words = Vec::new();
        for piece in pieces {
            words.resize(piece.len_words, 0);
            self.copy_out(piece.at_word, &mut words);
            take(piece, &words);
        }
        Ok(())
    }
}

/// The pieces of so many words.
pub fn cut(at_word: usize, len_words: usize) -> impl Iterator<Item = Piece> {
    (at_word..at_word + len_words).step_by(PIECE_MAX_WORDS).map(move |start| Piece {
        at_word: start,
        len_words: PIECE_MAX_WORDS.min(at_word + len_words - start),
    })
}

/// Reads words into `out`, from its start.
pub(super) fn read_into<R: Region>(region: &mut R, at_word: usize, out: &mut [u64]) -> Result<(), R::Error> {
    region.read(&mut cut(at_word, out.len()), &mut |piece, words| {
        out[piece.at_word - at_word..][..words.len()].copy_from_slice(words);
    })
}

/// Reads single words.
pub(super) fn read_each<R: Region>(
    region: &mut R,
    at_words: impl IntoIterator<Item = usize>,
) -> Result<Vec<u64>, R::Error> {
    let mut found = Vec::new();
    let mut pieces = at_words.into_iter().map(|at_word| Piece { at_word, len_words: 1 });
    region.read(&mut pieces, &mut |_, words| found.push(words[0]))?;
    Ok(found)
}
