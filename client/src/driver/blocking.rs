//! READs that a caller waits for, rather than an operation: at connect, for a warm-up, for what a server publishes.

use kv_common::layout::{HOME_LINES, Header, LINE_WORDS, LineNumber, SEGMENT_LINES, superblock};
use kv_common::probe::{IdentityError, TableView};
use kv_common::transport::{Broken, ReadNow, Transport};

use super::Driver;
use super::reads::BLOCKING_TOKEN;
use crate::clock::WATCH_PAUSE_NS;
use crate::error::Error;

/// Words of one READ of a warm-up.
const WARM_UP_WORDS: usize = 8 << 10;
/// For so long the server's clock is watched at connect, if it has to be.
const SETTLE_NS_MAX: u64 = 100_000_000;

/// The one READ of this kind that may be under way.
#[derive(Debug)]
pub(super) enum Blocking {
    Idle,
    Posted,
    /// Back, and not taken yet.
    Done(Result<Vec<u64>, Broken>),
}

/// What a warm-up did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Index lines that were read.
    pub lines: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// True if the cache is a mirror of the whole index now; false if its budget is smaller.
    pub is_complete: bool,
}

impl<T: Transport> Driver<T> {
    /// READs words of the region and waits for them, at most the time of an operation.
    pub(crate) fn read_words_blocking(
        &mut self,
        at_word: usize,
        len_words: usize,
    ) -> Result<Vec<u64>, Error> {
        self.check_alive()?;
        let started_ns = self.transport.now_ns();
        let mut words = vec![0; len_words];
        let read = self.transport.read_now(at_word, &mut words);
        match read.and_then(|read| self.transport.guard_now().map(|_| read)) {
            Ok(ReadNow::Done) => return Ok(words),
            Ok(ReadNow::Post) => {}
            Err(broken) => return Err(self.broke(broken)),
        }
        // One that nobody waits for any more may still be under way.
        self.wait_for_blocking(started_ns)?;
        self.blocking = Blocking::Posted;
        self.transport.post_read(BLOCKING_TOKEN, at_word, words.into());
        self.wait_for_blocking(started_ns)?.expect("it was posted").map_err(|broken| self.broke(broken))
    }

    /// One READ of `len_words` words, from word `at_word` modulo where it can begin, with nothing around it.
    pub(crate) fn raw_read(&mut self, at_word: usize, len_words: usize) -> Result<bool, Error> {
        self.check_alive()?;
        let Some(last_start) = self.view.region_words.checked_sub(len_words) else { return Ok(false) };
        let done = self.transport.raw_read(at_word % (last_start + 1), len_words);
        done.map_err(|broken| self.broke(broken))
    }

    /// Waits until no READ is under way that somebody waits for; returns the last one's words if nobody took them yet.
    fn wait_for_blocking(&mut self, started_ns: u64) -> Result<Option<Result<Vec<u64>, Broken>>, Error> {
        let until_ns = started_ns.saturating_add(self.timeout_ns);
        self.transport.flush();
        loop {
            match std::mem::replace(&mut self.blocking, Blocking::Idle) {
                Blocking::Idle => return Ok(None),
                Blocking::Done(result) => return Ok(Some(result)),
                Blocking::Posted => self.blocking = Blocking::Posted,
            }
            self.check_alive()?;
            let now_ns = self.transport.now_ns();
            if now_ns >= until_ns {
                self.stats.timeouts += 1;
                return Err(Error::Timeout { waited_ms: (now_ns - started_ns) / 1_000_000 });
            }
            self.transport.wait(until_ns);
            self.take_events();
        }
    }

    /// Reads superblock and directory.
    pub(super) fn read_view(&mut self) -> Result<(), Error> {
        let region_words = self.view.region_words;
        if region_words < superblock::IDENTITY_WORDS {
            let found = region_words as u64 * 8;
            return Err(IdentityError::Field { field: "region size", found }.into());
        }
        let posted_ns = self.transport.now_ns();
        let identity = self.read_words_blocking(0, superblock::IDENTITY_WORDS)?;
        self.clock.note(identity[superblock::CLOCK_NS], posted_ns, self.transport.now_ns());
        let mut view = TableView::from_identity(&identity, region_words)?;
        let depth = TableView::check_depth(identity[superblock::DIRECTORY_DEPTH])?;
        let entries = self.read_words_blocking(view.directory_word, 1 << depth)?;
        view.set_directory(&entries)?;
        self.view = view;
        Ok(())
    }

    /// If the first look at the server's clock came long after the hello, looks on until it is known whether that runs, while
    /// it is new: a server that is stopped later can tell nobody what time it is.
    pub(super) fn settle_clock(&mut self) -> Result<(), Error> {
        let until_ns = self.transport.now_ns().saturating_add(SETTLE_NS_MAX);
        while !self.clock.is_settled() && self.transport.now_ns() < until_ns {
            self.transport.wait(self.transport.now_ns() + WATCH_PAUSE_NS);
            let posted_ns = self.transport.now_ns();
            let word = self.read_words_blocking(superblock::CLOCK_NS, 1)?[0];
            self.clock.note(word, posted_ns, self.transport.now_ns());
        }
        Ok(())
    }

    /// Lets the index cache grow with the index, after the directory was read.
    pub(super) fn fit_cache(&mut self) {
        self.cache.fit(self.view.index_lines());
        self.stats.index_cache_bytes = self.cache.bytes();
    }

    /// Fills the index cache from the index, in large READs.
    pub(crate) fn warm_up(&mut self) -> Result<WarmUp, Error> {
        // The index may have grown since the directory was read.
        self.read_view()?;
        self.fit_cache();
        let mut segments = self.view.directory().to_vec();
        segments.sort_unstable();
        segments.dedup();
        let mut done =
            WarmUp { is_complete: self.cache.bytes() / 64 >= self.view.index_lines(), ..WarmUp::default() };
        for segment in segments {
            self.warm_up_segment(segment, &mut done)?;
        }
        Ok(done)
    }

    fn warm_up_segment(&mut self, segment: u64, done: &mut WarmUp) -> Result<(), Error> {
        let lines_per_read = (WARM_UP_WORDS / LINE_WORDS) as u64;
        for first in (0..SEGMENT_LINES).step_by(lines_per_read as usize) {
            let guard = self.read_words_blocking(superblock::PLACE_EPOCH, 1)?[0];
            if guard != self.cache.place_epoch() {
                self.stats.place_epochs += 1;
                self.cache.restart(guard);
            }
            let words = self.read_words_blocking(LineNumber::new(segment, first).word(), WARM_UP_WORDS)?;
            for (i, line) in words.chunks_exact(LINE_WORDS).enumerate() {
                let number = first + i as u64;
                let is_overflow = Header(line[0]).is_overflow();
                if number < HOME_LINES || is_overflow {
                    self.cache.keep(LineNumber::new(segment, number), line);
                }
            }
            done.lines += lines_per_read;
            done.bytes += words.len() as u64 * 8;
        }
        Ok(())
    }
}
