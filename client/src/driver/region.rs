//! READs of any words of the region, several in flight, for those who look at all of it.

use std::collections::VecDeque;

use kv_common::check::{PIECE_MAX_WORDS, Piece, Region, Take};
use kv_common::transport::{Broken, ReadBuffer, ReadNow, Transport};

use super::Driver;
use crate::error::Error;

/// Set in the tokens of these READs; the rest is a number that rises. (READs of operations do not have it set, and the other
/// tokens that have it set are the two greatest of all.)
pub(super) const REGION_TOKEN: u64 = 1 << 63;
/// READs in flight, and words in them.
const IN_FLIGHT_MAX: usize = 32;
const IN_FLIGHT_MAX_WORDS: usize = 4 * PIECE_MAX_WORDS;
/// The longest pause between two looks at the same words.
const PAUSE_MAX_MS: u64 = 300;

/// Such READs that were posted.
#[derive(Debug, Default)]
pub(super) struct RegionReads {
    /// In their order, the oldest in front, with the words of those that are back.
    open: VecDeque<(Piece, Option<Vec<u64>>)>,
    open_words: usize,
    /// The number of the oldest.
    oldest: u64,
    spare: Vec<Vec<u64>>,
}

impl RegionReads {
    /// Lets those go that nobody waits for any more.
    pub(super) fn forget(&mut self) {
        self.oldest += self.open.len() as u64;
        self.open.clear();
        self.open_words = 0;
    }

    fn has_room(&self, len_words: usize) -> bool {
        self.open.is_empty()
            || self.open.len() < IN_FLIGHT_MAX && self.open_words + len_words <= IN_FLIGHT_MAX_WORDS
    }

    /// The oldest, if it is back.
    fn take(&mut self) -> Option<(Piece, Vec<u64>)> {
        self.open.front().filter(|(_, words)| words.is_some())?;
        let (piece, words) = self.open.pop_front()?;
        self.oldest += 1;
        self.open_words -= piece.len_words;
        Some((piece, words?))
    }

    fn landed(&mut self, token: u64, words: Vec<u64>) {
        let number = token & !REGION_TOKEN;
        match number.checked_sub(self.oldest).and_then(|at| self.open.get_mut(at as usize)) {
            Some((_, landed)) => *landed = Some(words),
            None => self.spare.push(words),
        }
    }
}

impl<T: Transport> Driver<T> {
    /// READs pieces of the region and hands their words over, in the order of the pieces. No READ may take longer than an
    /// operation.
    pub(crate) fn read_region(
        &mut self,
        pieces: &mut dyn Iterator<Item = Piece>,
        take: Take,
    ) -> Result<(), Error> {
        self.check_alive()?;
        self.region_reads.forget();
        let mut next = pieces.next();
        let mut progressed_ns = self.transport.now_ns();
        loop {
            while let Some(piece) = next.filter(|piece| self.region_reads.has_room(piece.len_words)) {
                if !self.read_piece(piece, take)? {
                    break;
                }
                next = pieces.next();
            }
            if let Some((piece, words)) = self.region_reads.take() {
                take(piece, &words);
                self.region_reads.spare.push(words);
                progressed_ns = self.transport.now_ns();
            } else if next.is_none() && self.region_reads.open.is_empty() {
                return Ok(());
            } else {
                self.wait_for_read(progressed_ns)?;
            }
        }
    }

    /// Loads a piece and hands it over, or posts its READ. False if it has to wait for others.
    fn read_piece(&mut self, piece: Piece, take: Take) -> Result<bool, Error> {
        assert!(piece.end_word() <= self.view.region_words, "{piece:?} lies in the region");
        let mut words = self.region_reads.spare.pop().unwrap_or_default();
        words.resize(piece.len_words, 0);
        let read = self.transport.read_now(piece.at_word, &mut words);
        match read.and_then(|read| self.transport.guard_now().map(|_| read)) {
            Ok(ReadNow::Done) => {
                take(piece, &words);
                self.region_reads.spare.push(words);
                Ok(true)
            }
            Ok(ReadNow::Post) if self.reads_in_flight < self.transport.reads_in_flight_max() => {
                let number = self.region_reads.oldest + self.region_reads.open.len() as u64;
                self.region_reads.open.push_back((piece, None));
                self.region_reads.open_words += piece.len_words;
                self.reads_in_flight += 1;
                self.transport.post_read(REGION_TOKEN | number, piece.at_word, ReadBuffer::Private(words));
                Ok(true)
            }
            Ok(ReadNow::Post) => {
                self.region_reads.spare.push(words);
                Ok(false)
            }
            Err(broken) => Err(self.broke(broken)),
        }
    }

    fn wait_for_read(&mut self, progressed_ns: u64) -> Result<(), Error> {
        self.transport.flush();
        let (now_ns, until_ns) = (self.transport.now_ns(), progressed_ns.saturating_add(self.timeout_ns));
        if now_ns >= until_ns {
            self.stats.timeouts += 1;
            return Err(Error::Timeout { waited_ms: (now_ns - progressed_ns) / 1_000_000 });
        }
        self.transport.wait(until_ns);
        self.take_events();
        self.check_alive()
    }

    /// A READ of these is back.
    pub(super) fn on_region_read(&mut self, token: u64, words: Vec<u64>, result: Result<(), Broken>) {
        match result {
            Ok(()) => self.region_reads.landed(token, words),
            Err(broken) => self.fail_all(broken),
        }
    }

    fn pause(&mut self, pause_ns: u64) -> Result<(), Error> {
        let until_ns = self.transport.now_ns().saturating_add(pause_ns);
        while self.transport.now_ns() < until_ns {
            self.transport.wait(until_ns);
            self.take_events();
            self.check_alive()?;
        }
        Ok(())
    }
}

/// The region of a server that runs.
impl<T: Transport> Region for Driver<T> {
    type Error = Error;

    fn len_words(&self) -> usize {
        self.view.region_words
    }

    fn read(&mut self, pieces: &mut dyn Iterator<Item = Piece>, take: Take) -> Result<(), Error> {
        self.read_region(pieces, take)
    }

    fn is_live(&self) -> bool {
        true
    }

    fn look_again(&mut self, look: u32) -> Result<(), Error> {
        self.pause((1 << look).min(PAUSE_MAX_MS) * 1_000_000)
    }
}
