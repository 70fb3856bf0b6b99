//! GETs over transports whose READs are loads: no operation, no queue, no copy of the key.

use std::ops::Range;

use kv_common::block::{Verdict, judge};
use kv_common::hash::KeyHash;
use kv_common::layout::{LINE_WORDS, Slot};
use kv_common::region::bytes_of;
use kv_common::transport::{ReadNow, Transport};

use super::Driver;
use crate::clock::Judgement;
use crate::error::Error;
use crate::get::{Action, Context, Get};
use crate::op::Version;

/// Words of a block that are fetched ahead: the processor follows a longer copy by itself.
const PREFETCH_WORDS_MAX: usize = 256;

/// How a GET that was tried at once ended.
pub(crate) enum GetNow {
    /// The value is at this place in the words of the last READ: those of the landing, or the scratch.
    Found { version: Version, value: Range<usize> },
    /// The same of a large one: [`Driver::take_large`] has it. It is not in here, so that this is as small as it was.
    FoundLarge { version: Version },
    /// Proved absent.
    Absent,
    /// Reading does not settle it: ask the server.
    Ask,
    /// It takes more than READs that are loads: submit it.
    Submit,
}

/// Where the words of a READ go.
pub(crate) trait Landing {
    /// Memory for a READ of so many words; none if they go to the driver's scratch.
    fn room(&mut self, len_words: usize) -> Option<&mut [u64]>;
    /// The words of the last READ, if they went here.
    fn landed(&self, len_words: usize) -> Option<&[u64]>;
}

/// To the driver's scratch.
pub(crate) struct InScratch;

impl Landing for InScratch {
    #[inline]
    fn room(&mut self, _len_words: usize) -> Option<&mut [u64]> {
        None
    }

    #[inline]
    fn landed(&self, _len_words: usize) -> Option<&[u64]> {
        None
    }
}

/// To memory of the user, as far as it is large enough.
pub(crate) struct InRoom<'a> {
    room: &'a mut [u64],
    is_used: bool,
}

impl<'a> InRoom<'a> {
    #[inline]
    pub(crate) fn new(room: &'a mut [u64]) -> InRoom<'a> {
        InRoom { room, is_used: false }
    }

    /// True if the words of the last READ went here.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }
}

impl Landing for InRoom<'_> {
    #[inline]
    fn room(&mut self, len_words: usize) -> Option<&mut [u64]> {
        let room = self.room.get_mut(..len_words);
        self.is_used = room.is_some();
        room
    }

    #[inline]
    fn landed(&self, len_words: usize) -> Option<&[u64]> {
        if self.is_used { self.room.get(..len_words) } else { None }
    }
}

impl<T: Transport> Driver<T> {
    /// A GET whose READs end in `landing`.
    ///
    /// Nearly all of them are the first half: one block, named by the index cache, valid. Whatever else it is, the
    /// machine takes over with the same words.
    #[inline]
    pub(crate) fn get_now(&mut self, key: &[u8], landing: &mut impl Landing) -> Result<GetNow, Error> {
        let hash = self.view.hash(key);
        let slot = self.cache.first_in_window(self.view.home(hash), hash);
        self.get_at(key, hash, slot, self.cache.place_epoch(), landing)
    }

    /// The same, of a key whose hash is known, and the slot that the index cache had for it under `place_epoch`.
    #[inline]
    pub(crate) fn get_at(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        slot: Option<Slot>,
        place_epoch: u64,
        landing: &mut impl Landing,
    ) -> Result<GetNow, Error> {
        if !self.gets_are_loads() || self.broken.is_some() || self.is_behind_write(hash) {
            return Ok(GetNow::Submit);
        }
        // Whatever is read from here on is at least as new as what the slot was learned under.
        let Some((slot, len_words)) = slot.and_then(|slot| Some((slot, self.view.block_words(slot)?))) else {
            let mut get = Get::new(hash);
            let action = self.step(&mut get, None, self.cache.place_epoch(), landing);
            return self.run_now(key, get, action, landing);
        };
        self.stats.index_cache_lookups += 1;
        self.stats.reads += 1;
        self.stats.read_bytes += len_words as u64 * 8;
        if len_words > LINE_WORDS * 4 {
            // The copy's loads fill the processor's window after some lines; this asks for all lines at once.
            self.transport.prefetch(slot.place().word(), len_words.min(PREFETCH_WORDS_MAX));
        }
        let Some(epoch_now) = self.land(slot.place().word(), len_words, landing)? else {
            return Ok(GetNow::Submit);
        };
        let words = match landing.landed(len_words) {
            Some(words) => words,
            None => &self.scratch[..len_words],
        };
        let verdict = judge(words, key, slot.place(), self.view.table_id);
        if let Verdict::Found { version, value } = verdict
            && epoch_now == place_epoch
        {
            self.stats.index_cache_hits += 1;
            self.count_get(Some(true));
            if self.hits.is_due() {
                self.note_hit(slot, false);
            }
            return Ok(GetNow::Found { version, value });
        }
        let home = self.view.home(hash);
        let mut get = Get::at_cached_block(hash, home, slot, self.cache.find(home, hash), place_epoch);
        let action = self.step(&mut get, Some((key, len_words)), epoch_now, landing);
        self.run_now(key, get, action, landing)
    }

    /// After a hit.
    fn note_if_due(&mut self, get: &Get) {
        if self.hits.is_due()
            && let Some(slot) = get.found_slot()
        {
            self.note_hit(slot, false);
        }
    }

    /// Runs the machine to its end where every READ is served at once.
    #[cold]
    fn run_now(
        &mut self,
        key: &[u8],
        mut get: Get,
        mut action: Action,
        landing: &mut impl Landing,
    ) -> Result<GetNow, Error> {
        loop {
            match action {
                Action::Read { at_word, len_words } => {
                    let Some(epoch_now) = self.land(at_word, len_words, landing)? else {
                        return Ok(GetNow::Submit);
                    };
                    action = self.step(&mut get, Some((key, len_words)), epoch_now, landing);
                }
                Action::Found { version, value } => {
                    self.count_get(Some(true));
                    self.note_if_due(&get);
                    return Ok(GetNow::Found { version, value });
                }
                Action::FoundExpiring { version, value, expires_ns } => {
                    // One that asks or is submitted is counted when it has its answer.
                    let now = match self.judge_expiry(expires_ns)? {
                        Judgement::Live => GetNow::Found { version, value },
                        Judgement::Expired => GetNow::Absent,
                        Judgement::LookAt(_) => return Ok(GetNow::Submit),
                        Judgement::Ask => return Ok(GetNow::Ask),
                    };
                    let is_hit = matches!(now, GetNow::Found { .. });
                    self.count_get(Some(is_hit));
                    if is_hit {
                        self.note_if_due(&get);
                    }
                    return Ok(now);
                }
                Action::Fetch => {
                    let Some(epoch_now) = self.fetch_now(&mut get)? else { return Ok(GetNow::Submit) };
                    action = self.step(&mut get, None, epoch_now, landing);
                }
                Action::FoundLarge { version, bytes, expires_ns } => {
                    match self.judge_large(expires_ns)? {
                        Judgement::Live => {}
                        Judgement::LookAt(_) => return Ok(GetNow::Submit),
                        // See `judge_large`.
                        Judgement::Ask | Judgement::Expired => return Ok(GetNow::Ask),
                    }
                    self.count_get(Some(true));
                    self.note_if_due(&get);
                    self.large_value = bytes;
                    return Ok(GetNow::FoundLarge { version });
                }
                Action::NoMemory { bytes } => {
                    self.count_get(None);
                    return Err(Error::NoMemory { bytes });
                }
                Action::Absent => {
                    self.count_get(Some(false));
                    return Ok(GetNow::Absent);
                }
                Action::Ask => return Ok(GetNow::Ask),
                // The submitted GET starts over; this is rare.
                Action::RefreshDirectory => return Ok(GetNow::Submit),
            }
        }
    }

    /// Reads the pages of a large block, and then the place epoch.
    fn fetch_now(&mut self, get: &mut Get) -> Result<Option<u64>, Error> {
        let mut epoch = None;
        while let Some(piece) = get.fetch().next_read() {
            self.count_piece(piece);
            epoch = self.land(piece.at_word, piece.len_words, &mut InScratch)?;
            if epoch.is_none() {
                break;
            }
            get.fetch().feed(&self.scratch[..piece.len_words]);
        }
        Ok(epoch)
    }

    /// Reads words into the landing and then the place epoch; `None` if this transport's READs take time.
    #[inline]
    fn land(
        &mut self,
        at_word: usize,
        len_words: usize,
        landing: &mut impl Landing,
    ) -> Result<Option<u64>, Error> {
        let out = match landing.room(len_words) {
            Some(room) => room,
            None => {
                if self.scratch.len() < len_words {
                    self.scratch.resize(len_words, 0);
                }
                &mut self.scratch[..len_words]
            }
        };
        match self.transport.read_now(at_word, out) {
            Ok(ReadNow::Done) => {}
            Ok(ReadNow::Post) => return Ok(None),
            Err(broken) => return Err(self.broke(broken)),
        }
        self.transport.guard_now().map_err(|broken| self.broke(broken))
    }

    /// One step of a GET whose words, if any, are where the last READ ended.
    fn step(
        &mut self,
        get: &mut Get,
        words: Option<(&[u8], usize)>,
        place_epoch: u64,
        landing: &impl Landing,
    ) -> Action {
        let transport = &self.transport;
        let now_ns = || transport.now_ns();
        let (view, cache, stats) = (&self.view, &mut self.cache, &mut self.stats);
        let mut cx = Context { view, cache, stats, place_epoch, now_ns: &now_ns };
        let Some((key, len_words)) = words else { return get.start(&mut cx) };
        let words = match landing.landed(len_words) {
            Some(words) => words,
            None => &self.scratch[..len_words],
        };
        get.words(key, words, &mut cx)
    }

    /// The large value that `get_now` found.
    #[cold]
    pub(crate) fn take_large(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.large_value)
    }

    /// The bytes in the scratch that `get_now` found.
    #[inline]
    pub(crate) fn found_bytes(&self, value: Range<usize>) -> &[u8] {
        &bytes_of(&self.scratch)[value]
    }

    /// The hash of a key; fetches into the processor's cache what a GET of it looks at first.
    #[inline]
    pub(crate) fn prefetch_lines(&self, key: &[u8]) -> KeyHash {
        let hash = self.view.hash(key);
        self.cache.prefetch(self.view.home(hash));
        hash
    }

    /// The slot that the index cache has for a hash; fetches the start of its block.
    #[inline]
    pub(crate) fn prefetch_block(&self, hash: KeyHash) -> Option<Slot> {
        let slot = self.cache.first_in_window(self.view.home(hash), hash)?;
        let len_words = self.view.block_words(slot)?;
        self.transport.prefetch(slot.place().word(), len_words.min(PREFETCH_WORDS_MAX));
        Some(slot)
    }
}
