//! The GET, as a state machine without I/O: words in, `Read | Fetch | Found | Absent | Ask | RefreshDirectory` out.
//!
//! ```text
//!            cache has a match                        valid, wanted key
//!   start ---------------------------> block -----------------------------> Found
//!     |                                 ^  |  other key: next match, then overflow, then again
//!     | no match                  match |  |  not live, torn, stale: again
//!     v                                 |  v           a large block: its first page, then the others (`fetch`)
//!   window --- stale directory -> RefreshDirectory     again: window, at most GET_ATTEMPTS_MAX times, then Ask
//!     |  no match, overflow line
//!     v
//!   overflow ... -- no match, no more lines --> Absent, if the lines and the clock allow it
//! ```

use std::ops::Range;

use kv_common::adversary::{Mutant, mutant};
use kv_common::block::{Verdict, judge};
use kv_common::hash::KeyHash;
use kv_common::large::{Assembled, Assembly, NotAssembled};
use kv_common::layout::{LINE_WORDS, LineNumber, PAGE_WORDS, Slot, WINDOW_WORDS};
use kv_common::limits::{DIRECTORY_REFRESHES_MAX, GET_ATTEMPTS_MAX, OVERFLOW_CHAIN_MAX};
use kv_common::probe::{LineState, Matches, TableView, judge_overflow, judge_window};

use crate::cache::IndexCache;
use crate::fetch::Fetch;
use crate::stats::Stats;

/// What the machine wants next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// READ these words of the region and come back with them. They lie inside it.
    Read { at_word: usize, len_words: usize },
    /// The value is at `value` in the bytes of the words just given.
    Found { version: u64, value: Range<usize> },
    /// The same, if this time, by the server's clock, has not come; else the key is absent.
    FoundExpiring { version: u64, value: Range<usize>, expires_ns: u64 },
    /// A large block: make the READs of [`Get::fetch`], then `start` again. READs need not come back in their order.
    Fetch,
    /// The value of a large block; if it has an expiry, as for `FoundExpiring`.
    FoundLarge { version: u64, bytes: Vec<u8>, expires_ns: Option<u64> },
    /// There is no memory for the value.
    NoMemory { bytes: usize },
    /// The key was absent at some moment since the GET began.
    Absent,
    /// The directory is stale: read it anew, then `start` again.
    RefreshDirectory,
    /// Reading does not settle it; the server must.
    Ask,
}

/// What the machine works with; borrowed from the client for one step.
pub(crate) struct Context<'a> {
    pub(crate) view: &'a TableView,
    pub(crate) cache: &'a mut IndexCache,
    pub(crate) stats: &'a mut Stats,
    /// The place epoch, as of a moment after the words of this step were read, no older than LEASE.
    pub(crate) place_epoch: u64,
    /// The client's own clock.
    pub(crate) now_ns: &'a dyn Fn() -> u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Window,
    Overflow {
        line: u16,
    },
    Block {
        slot: Slot,
        is_cached: bool,
    },
    /// The first page of a large block.
    Head {
        slot: Slot,
        is_cached: bool,
    },
    /// The others.
    Pages {
        slot: Slot,
        is_cached: bool,
    },
}

/// One GET under way.
#[derive(Debug)]
pub(crate) struct Get {
    hash: KeyHash,
    home: LineNumber,
    phase: Phase,
    matches: Matches,
    /// Matches tried so far.
    tried: usize,
    /// The overflow line to look at when the matches are used up, 0 for none.
    next: u16,
    /// The large block whose pages are being read.
    fetch: Option<Box<Fetch>>,
    /// Overflow lines looked at in this lookup.
    chain: usize,
    /// Some line of this lookup was moving: its miss is none.
    is_moving: bool,
    /// Some match of this lookup named a valid block of another key: its miss is none.
    is_unclear: bool,
    /// The place epoch under which the places at hand were learned.
    place_epoch: u64,
    lookup_started_ns: u64,
    attempts: u32,
    refreshes: u32,
    /// The index cache was asked; it counts once per GET.
    is_counted: bool,
}

impl Get {
    pub(crate) fn new(hash: KeyHash) -> Get {
        Get {
            hash,
            home: LineNumber(0),
            phase: Phase::Window,
            matches: Matches::none(),
            tried: 0,
            next: 0,
            fetch: None,
            chain: 0,
            is_moving: false,
            is_unclear: false,
            place_epoch: 0,
            lookup_started_ns: 0,
            attempts: 0,
            refreshes: 0,
            is_counted: false,
        }
    }

    /// A GET whose first match in the index cache, `slot`, has been read; go on with those words. `matches` is what the
    /// cache has now.
    pub(crate) fn at_cached_block(
        hash: KeyHash,
        home: LineNumber,
        slot: Slot,
        matches: Matches,
        place_epoch: u64,
    ) -> Get {
        let phase = Phase::Block { slot, is_cached: true };
        Get { home, phase, matches, tried: 1, place_epoch, is_counted: true, ..Get::new(hash) }
    }

    /// The slot that names the block in which the value was found, if that is none in pages.
    pub(crate) fn found_slot(&self) -> Option<Slot> {
        match self.phase {
            Phase::Block { slot, .. } | Phase::Pages { slot, .. } => Some(slot),
            Phase::Window | Phase::Overflow { .. } | Phase::Head { .. } => None,
        }
    }

    /// Begins, or begins again with a new directory; or goes on once a large block was fetched.
    pub(crate) fn start(&mut self, cx: &mut Context) -> Action {
        if let Some(fetch) = self.fetch.take_if(|fetch| fetch.is_complete()) {
            return self.on_pages(*fetch, cx);
        }
        self.fetch = None;
        self.home = cx.view.home(self.hash);
        if cx.cache.place_epoch() != cx.place_epoch {
            cx.stats.place_epochs += 1;
            cx.cache.restart(cx.place_epoch);
        }
        self.matches = cx.cache.find(self.home, self.hash);
        if !std::mem::replace(&mut self.is_counted, true) {
            cx.stats.index_cache_lookups += 1;
        }
        if self.matches.is_empty() {
            if mutant(Mutant::BelieveCachedMiss) {
                return Action::Absent;
            }
            return self.read_window(cx);
        }
        (self.place_epoch, self.tried, self.next) = (cx.cache.place_epoch(), 0, 0);
        self.read_match(cx, true)
    }

    /// Goes on with the words that the last `Read` brought.
    pub(crate) fn words(&mut self, key: &[u8], words: &[u64], cx: &mut Context) -> Action {
        match self.phase {
            Phase::Block { slot, is_cached } => self.on_block(key, words, slot, is_cached, cx),
            Phase::Window => self.on_window(words, cx),
            Phase::Overflow { line } => self.on_overflow(words, line, cx),
            Phase::Head { slot, is_cached } => self.on_head(key, words, slot, is_cached, cx),
            Phase::Pages { .. } => unreachable!("pages are fetched, not given"),
        }
    }

    /// The large block whose pages are being read.
    pub(crate) fn fetch(&mut self) -> &mut Fetch {
        self.fetch.as_mut().expect("it asked for READs of pages")
    }

    /// A place counts only under the place epoch in which it was learned: a segment that has changed its kind may hold bytes
    /// that a writer chose, shaped like a block.
    fn is_of_other_epoch(&self, cx: &Context) -> bool {
        self.place_epoch != cx.place_epoch && !mutant(Mutant::SkipPlaceEpoch)
    }

    fn on_block(
        &mut self,
        key: &[u8],
        words: &[u64],
        slot: Slot,
        is_cached: bool,
        cx: &mut Context,
    ) -> Action {
        let verdict = judge(words, key, slot.place(), cx.view.table_id);
        if self.is_of_other_epoch(cx) {
            return self.again(cx);
        }
        match verdict {
            Verdict::Found { version, value } => {
                cx.stats.index_cache_hits += u64::from(is_cached);
                Action::Found { version, value }
            }
            Verdict::Expiring { version, value, expires_ns } => {
                cx.stats.index_cache_hits += u64::from(is_cached);
                Action::FoundExpiring { version, value, expires_ns }
            }
            verdict => self.not_found(verdict, slot, is_cached, cx),
        }
    }

    /// The first page of a large block. What it says is not proved before the last one was read.
    fn on_head(
        &mut self,
        key: &[u8],
        words: &[u64],
        slot: Slot,
        is_cached: bool,
        cx: &mut Context,
    ) -> Action {
        if self.is_of_other_epoch(cx) {
            return self.again(cx);
        }
        match Assembly::begin(words, key, slot, cx.view) {
            Ok(assembly) => {
                self.phase = Phase::Pages { slot, is_cached };
                self.fetch = Some(Box::new(Fetch::new(assembly)));
                Action::Fetch
            }
            Err(NotAssembled::NoMemory(bytes)) => Action::NoMemory { bytes },
            Err(NotAssembled::Judged(verdict)) => self.not_found(verdict, slot, is_cached, cx),
        }
    }

    /// All pages of a large block.
    fn on_pages(&mut self, fetch: Fetch, cx: &mut Context) -> Action {
        let Phase::Pages { slot, is_cached } = self.phase else { unreachable!("pages were read") };
        if self.is_of_other_epoch(cx) {
            return self.again(cx);
        }
        match fetch.finish(cx.view.table_id) {
            Some(Assembled { version, expires_ns, value }) => {
                cx.stats.index_cache_hits += u64::from(is_cached);
                cx.stats.large_values += 1;
                Action::FoundLarge { version, bytes: value, expires_ns }
            }
            None => {
                cx.stats.retries_large += 1;
                self.not_found(Verdict::Torn, slot, is_cached, cx)
            }
        }
    }

    /// What was read is not the wanted value.
    fn not_found(&mut self, verdict: Verdict, slot: Slot, is_cached: bool, cx: &mut Context) -> Action {
        match verdict {
            Verdict::Found { .. } | Verdict::Expiring { .. } => unreachable!("it is found"),
            Verdict::NotLive if mutant(Mutant::DeadIsMiss) => Action::Absent,
            Verdict::NotLive => {
                cx.stats.retries_dead += 1;
                self.again(cx)
            }
            Verdict::OtherKey if mutant(Mutant::OtherKeyIsMiss) && !is_cached => Action::Absent,
            Verdict::OtherKey => {
                self.is_unclear = true;
                self.other_key(slot, is_cached, cx)
            }
            Verdict::Torn if is_cached => {
                cx.stats.retries_stale += 1;
                cx.cache.forget(self.home, slot);
                self.again(cx)
            }
            Verdict::Torn => {
                cx.stats.retries_torn += 1;
                self.again(cx)
            }
        }
    }

    /// A valid block of another key: either two keys share the fingerprint, or the place was given away.
    fn other_key(&mut self, slot: Slot, is_cached: bool, cx: &mut Context) -> Action {
        cx.stats.other_keys += 1;
        if self.tried < self.matches.slots().len() {
            return self.read_match(cx, is_cached);
        }
        if is_cached {
            cx.stats.retries_stale += 1;
            cx.cache.forget(self.home, slot);
            return self.read_window(cx);
        }
        if self.next != 0 {
            return self.read_overflow(cx);
        }
        self.again(cx)
    }

    fn on_window(&mut self, words: &[u64], cx: &mut Context) -> Action {
        self.matches = Matches::none();
        match judge_window(words, self.hash, &mut self.matches) {
            LineState::StaleDirectory | LineState::Reused => {
                self.refreshes += 1;
                cx.stats.directory_refreshes += 1;
                if self.refreshes > DIRECTORY_REFRESHES_MAX { Action::Ask } else { Action::RefreshDirectory }
            }
            LineState::Answers { next, is_moving } => {
                if self.place_epoch == cx.cache.place_epoch() {
                    cx.cache.keep(self.home, &words[..LINE_WORDS]);
                    cx.cache.keep(self.home.next(), &words[LINE_WORDS..]);
                }
                self.is_moving = is_moving;
                self.next = if mutant(Mutant::SkipOverflow) { 0 } else { next };
                self.use_matches(cx)
            }
        }
    }

    fn on_overflow(&mut self, words: &[u64], line: u16, cx: &mut Context) -> Action {
        self.matches = Matches::none();
        match judge_overflow(words, self.home.in_segment() as u16, self.hash, &mut self.matches) {
            LineState::StaleDirectory | LineState::Reused => {
                cx.stats.overflow_reused += 1;
                self.again(cx)
            }
            LineState::Answers { next, is_moving } => {
                if self.place_epoch == cx.cache.place_epoch() {
                    cx.cache.keep(self.home.sibling(line), words);
                }
                self.is_moving |= is_moving;
                self.next = next;
                self.use_matches(cx)
            }
        }
    }

    /// Lines were read: on to the block of the first match, else to the overflow line, else it is a miss.
    fn use_matches(&mut self, cx: &mut Context) -> Action {
        self.tried = 0;
        if !self.matches.is_empty() {
            return self.read_match(cx, false);
        }
        if self.next != 0 {
            return self.read_overflow(cx);
        }
        self.miss(cx)
    }

    /// All lines of the key were read and no slot names it. That is a claim, too.
    fn miss(&mut self, cx: &mut Context) -> Action {
        if self.is_moving && !mutant(Mutant::BelieveMovingMiss) {
            cx.stats.moving_misses += 1;
            return Action::Ask;
        }
        if self.is_unclear {
            return self.again(cx);
        }
        if (cx.now_ns)().saturating_sub(self.lookup_started_ns) >= cx.view.grace_ns
            && !mutant(Mutant::BelieveSlowMiss)
        {
            cx.stats.slow_lookups += 1;
            return self.again(cx);
        }
        Action::Absent
    }

    /// Looks again, a bounded number of times.
    fn again(&mut self, cx: &mut Context) -> Action {
        self.attempts += 1;
        if self.attempts >= GET_ATTEMPTS_MAX {
            return Action::Ask;
        }
        if cx.cache.place_epoch() != cx.place_epoch {
            cx.stats.place_epochs += 1;
            cx.cache.restart(cx.place_epoch);
        }
        self.read_window(cx)
    }

    fn read_window(&mut self, cx: &mut Context) -> Action {
        self.phase = Phase::Window;
        (self.chain, self.is_moving, self.is_unclear) = (0, false, false);
        self.place_epoch = cx.place_epoch;
        self.lookup_started_ns = (cx.now_ns)();
        read(self.home.word(), WINDOW_WORDS, cx)
    }

    fn read_overflow(&mut self, cx: &mut Context) -> Action {
        self.chain += 1;
        if self.chain > OVERFLOW_CHAIN_MAX {
            return self.again(cx);
        }
        cx.stats.overflow_reads += 1;
        self.phase = Phase::Overflow { line: self.next };
        read(self.home.sibling(self.next).word(), LINE_WORDS, cx)
    }

    fn read_match(&mut self, cx: &mut Context, is_cached: bool) -> Action {
        let slot = self.matches.slots()[self.tried];
        self.tried += 1;
        if cx.view.first_page(slot).is_some() {
            self.phase = Phase::Head { slot, is_cached };
            return read(slot.place().word(), PAGE_WORDS, cx);
        }
        let Some(len_words) = cx.view.block_words(slot) else {
            // No server writes such a slot; it is not followed.
            cx.stats.retries_torn += 1;
            cx.cache.forget(self.home, slot);
            return self.again(cx);
        };
        self.phase = Phase::Block { slot, is_cached };
        read(slot.place().word(), len_words, cx)
    }
}

fn read(at_word: usize, len_words: usize, cx: &mut Context) -> Action {
    cx.stats.reads += 1;
    cx.stats.read_bytes += len_words as u64 * 8;
    Action::Read { at_word, len_words }
}
