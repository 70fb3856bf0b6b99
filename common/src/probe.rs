//! Where to look for a key, and what the index lines that a READ brought say about it.

use wide::{i64x4, u64x4};

use crate::adversary::{Mutant, mutant};
use crate::hash::KeyHash;
use crate::layout::{
    DIRECTORY_DEPTH_MAX, HOME_LINES, Header, LAYOUT_VERSION, LINE_WORDS, LineNumber, MAGIC, Run,
    SEGMENT_BYTES, SEGMENT_LINES, SEGMENT_WORDS, Slot, Span, WINDOW_WORDS, superblock,
};
use crate::limits::{GRACE_NS_MAX, LEASE_NS, REGION_MAX_BYTES, REGION_MIN_BYTES, VALUE_MAX_BYTES};

/// What is wrong with a superblock, in the words of whoever has to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The first word is not the magic.
    #[error("not a table: the region starts with {found:#018x} instead of {MAGIC:#018x}")]
    Magic {
        /// The word found.
        found: u64,
    },
    /// Made by another version of the layout.
    #[error(
        "the table has layout version {found}, this program reads version {LAYOUT_VERSION}; use programs of one release"
    )]
    LayoutVersion {
        /// The version found.
        found: u64,
    },
    /// A field has a value that no server writes.
    #[error("the superblock is damaged: {field} is {found}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
}

/// What a reader knows of a table: identity and directory. An old directory stays right for its own depth, or the
/// depth bits of the lines say that it is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableView {
    /// Random per table, part of every check.
    pub table_id: u64,
    /// Random per start of the server.
    pub incarnation: u64,
    /// Seed of the key hash.
    pub seed: u64,
    /// Words of the region; nothing is read beyond.
    pub region_words: usize,
    /// A miss counts only if its lookup took less.
    pub grace_ns: u64,
    /// A place epoch counts only if it was read less than this ago.
    pub lease_ns: u64,
    /// The server evicts, and wants to hear of hits.
    pub evicts: bool,
    /// Bytes of the largest value that the server takes.
    pub value_max_bytes: usize,
    /// Word at which the directory starts.
    pub directory_word: usize,
    /// Index segments by low hash bits.
    directory: Vec<u64>,
    depth: u32,
}

impl TableView {
    /// From the identity words at the start of a region of `region_words`; the directory is still empty.
    pub fn from_identity(words: &[u64], region_words: usize) -> Result<TableView, IdentityError> {
        assert!(words.len() >= superblock::IDENTITY_WORDS, "the identity part is read as a whole");
        let check = |field, found, holds: bool| {
            if holds { Ok(found) } else { Err(IdentityError::Field { field, found }) }
        };
        if words[superblock::MAGIC] != MAGIC {
            return Err(IdentityError::Magic { found: words[superblock::MAGIC] });
        }
        if words[superblock::LAYOUT_VERSION] != LAYOUT_VERSION {
            return Err(IdentityError::LayoutVersion { found: words[superblock::LAYOUT_VERSION] });
        }
        let bytes = words[superblock::REGION_BYTES];
        let is_size =
            (REGION_MIN_BYTES..=REGION_MAX_BYTES).contains(&bytes) && bytes.is_multiple_of(SEGMENT_BYTES);
        check("region size", bytes, is_size && bytes == region_words as u64 * 8)?;
        let directory = words[superblock::DIRECTORY_SEGMENT];
        check("directory segment", directory, directory > 0 && directory < bytes / SEGMENT_BYTES)?;
        let grace_ns = words[superblock::GRACE_NS];
        check("GRACE", grace_ns, grace_ns > 0 && grace_ns <= GRACE_NS_MAX)?;
        let lease_ns = words[superblock::LEASE_NS];
        check("LEASE", lease_ns, lease_ns > 0 && lease_ns <= LEASE_NS * 1000)?;
        let value_max_bytes = words[superblock::VALUE_MAX_BYTES];
        check("largest value", value_max_bytes, (1..=VALUE_MAX_BYTES as u64).contains(&value_max_bytes))?;
        Ok(TableView {
            table_id: words[superblock::TABLE_ID],
            incarnation: words[superblock::INCARNATION],
            seed: words[superblock::HASH_SEED],
            region_words,
            grace_ns,
            lease_ns,
            evicts: words[superblock::EVICTS] == 1,
            value_max_bytes: value_max_bytes as usize,
            directory_word: directory as usize * SEGMENT_WORDS,
            directory: Vec::new(),
            depth: 0,
        })
    }

    /// The view of a region before anything of it was read.
    pub fn unread(region_words: usize) -> TableView {
        TableView { region_words, ..TableView::default() }
    }

    /// Checks a depth that was read from the superblock, before the directory is read.
    pub fn check_depth(depth: u64) -> Result<u32, IdentityError> {
        if depth > DIRECTORY_DEPTH_MAX as u64 {
            return Err(IdentityError::Field { field: "directory depth", found: depth });
        }
        Ok(depth as u32)
    }

    /// Takes the directory entries that a READ brought.
    pub fn set_directory(&mut self, entries: &[u64]) -> Result<(), IdentityError> {
        assert!(entries.len().is_power_of_two(), "a directory has 1 << depth entries");
        let segments = self.region_words as u64 / SEGMENT_WORDS as u64;
        if let Some(&found) = entries.iter().find(|&&segment| segment == 0 || segment >= segments) {
            return Err(IdentityError::Field { field: "directory entry", found });
        }
        self.directory.clear();
        self.directory.extend_from_slice(entries);
        self.depth = entries.len().ilog2();
        Ok(())
    }

    /// Index segments by low hash bits, as of the last refresh.
    pub fn directory(&self) -> &[u64] {
        &self.directory
    }

    /// The hash of `key` in this table.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash::new(self.seed, key)
    }

    /// The home line of a hash.
    #[inline]
    pub fn home(&self, hash: KeyHash) -> LineNumber {
        LineNumber::new(self.directory[hash.prefix(self.depth) as usize], hash.home())
    }

    /// How many words to read for the block that a slot names, or `None` if no block in one piece can be there. Spans are
    /// rounded up to a class, so the last block of the region may be given fewer words than its span.
    #[inline]
    pub fn block_words(&self, slot: Slot) -> Option<usize> {
        if slot.span().0 == 0 || slot.span() > Span::SMALL_MAX {
            return None;
        }
        let room = self.region_words.checked_sub(slot.place().word()).filter(|&room| room > 0)?;
        Some(slot.span().words().min(room))
    }

    /// The first page of the large block that a slot names, or `None` if no such block can be there.
    pub fn first_page(&self, slot: Slot) -> Option<Run> {
        let run = Run::at(slot.place(), 1).filter(|_| slot.span().is_large() && slot.span() <= Span::MAX)?;
        (run.page_word(1) <= self.region_words).then_some(run)
    }

    /// Index lines of all segments that the directory names.
    pub fn index_lines(&self) -> u64 {
        let mut segments = self.directory.clone();
        segments.sort_unstable();
        segments.dedup();
        segments.len() as u64 * SEGMENT_LINES
    }
}

/// Slots whose fingerprint matched, in the order found. More matches than it holds are counted and not kept: the GET
/// then ends with a request to the server rather than with a miss.
#[derive(Clone, Copy, Debug)]
pub struct Matches {
    slots: [Slot; Matches::CAPACITY],
    found: u8,
}

impl Matches {
    const CAPACITY: usize = 4;

    /// No match yet.
    #[inline]
    pub fn none() -> Matches {
        Matches { slots: [Slot::EMPTY; Matches::CAPACITY], found: 0 }
    }

    /// Adds the slots of a line of 8 words that carry `fingerprint`.
    #[inline]
    pub fn add_line(&mut self, line: &[u64; LINE_WORDS], fingerprint: u16) {
        let mut mask = match_mask(line, fingerprint);
        while mask != 0 {
            self.add(Slot(line[mask.trailing_zeros() as usize]));
            mask &= mask - 1;
        }
    }

    #[inline]
    fn add(&mut self, slot: Slot) {
        if let Some(free) = self.slots.get_mut(self.found as usize) {
            *free = slot;
        }
        self.found = self.found.saturating_add(1);
    }

    /// The matches that were kept.
    #[inline]
    pub fn slots(&self) -> &[Slot] {
        &self.slots[..(self.found as usize).min(Matches::CAPACITY)]
    }

    /// True if no slot matched.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.found == 0
    }
}

/// Bit `i`: word `i` of the line is a slot that carries the fingerprint. Bit 0, the header's, is never set.
#[inline]
fn match_mask(line: &[u64; LINE_WORDS], fingerprint: u16) -> u32 {
    let wanted = u64x4::splat(u64::from(fingerprint));
    let half = |i: usize| {
        let words = u64x4::new([line[i], line[i + 1], line[i + 2], line[i + 3]]);
        let equal = (words >> 48u64).cmp_eq(wanted);
        i64x4::from(equal.to_array().map(|lane| lane as i64)).move_mask() as u32
    };
    (half(0) | half(4) << 4) & !1
}

/// The first slot of two lines, of those that are present, that carries `fingerprint`. One mask for both: which of the
/// two a key is in is as good as random, and a branch on it would be mispredicted half of the time.
#[inline]
pub fn first_match(lines: [&[u64; LINE_WORDS]; 2], is_present: [bool; 2], fingerprint: u16) -> Option<Slot> {
    let of_line = |i: usize| match_mask(lines[i], fingerprint) & 0u32.wrapping_sub(u32::from(is_present[i]));
    let mask = of_line(0) | of_line(1) << LINE_WORDS;
    if mask == 0 {
        return None;
    }
    let at = mask.trailing_zeros() as usize;
    Some(Slot(lines[at / LINE_WORDS][at % LINE_WORDS]))
}

/// What lines that were read say about a key whose fingerprint is in none or some of their slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineState {
    /// The lines answer for this hash; `next` is the overflow line to follow, 0 for none, and `is_moving` says that a
    /// miss here is no miss.
    Answers {
        /// Number of the next overflow line in this segment.
        next: u16,
        /// The segment is being split.
        is_moving: bool,
    },
    /// The segment answers for other hashes: the directory is stale.
    StaleDirectory,
    /// An overflow line that belongs to another home by now, or to none: look again.
    Reused,
}

/// Judges the 16 words of a window and collects matching slots.
pub fn judge_window(words: &[u64], hash: KeyHash, matches: &mut Matches) -> LineState {
    assert_eq!(words.len(), WINDOW_WORDS, "a window is read as a whole");
    let (home, next) = (Header(words[0]), Header(words[LINE_WORDS]));
    let is_right = home.answers_for(hash) && next.answers_for(hash) || mutant(Mutant::SkipDepth);
    if !is_right || home.is_overflow() || next.is_overflow() {
        return LineState::StaleDirectory;
    }
    matches.add_line(line(&words[..LINE_WORDS]), hash.fingerprint());
    matches.add_line(line(&words[LINE_WORDS..]), hash.fingerprint());
    answers(home, home.is_moving() || next.is_moving())
}

/// Judges the 8 words of an overflow line of `home` (its number in the segment) and collects matching slots.
pub fn judge_overflow(words: &[u64], home: u16, hash: KeyHash, matches: &mut Matches) -> LineState {
    assert_eq!(words.len(), LINE_WORDS, "a line is read as a whole");
    let header = Header(words[0]);
    if !header.is_overflow() || header.home_of_overflow() != home || !header.answers_for(hash) {
        return LineState::Reused;
    }
    matches.add_line(line(words), hash.fingerprint());
    answers(header, header.is_moving())
}

/// Words that are known to be a line.
#[inline]
pub fn line(words: &[u64]) -> &[u64; LINE_WORDS] {
    words.try_into().expect("a line has a header and seven slots")
}

/// What a header that answers for the hash leads to. A `next` that is no overflow line's number comes from no server;
/// it is not followed, and not taken for the end of the chain either.
fn answers(header: Header, is_moving: bool) -> LineState {
    let next = header.next();
    if next != 0 && !(HOME_LINES..SEGMENT_LINES).contains(&(next as u64)) {
        return LineState::Reused;
    }
    LineState::Answers { next, is_moving }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Place;
    use crate::limits::GRACE_NS;
    use proptest::prelude::*;

    fn identity(region_bytes: u64) -> Vec<u64> {
        let mut words = vec![0; superblock::IDENTITY_WORDS];
        words[superblock::MAGIC] = MAGIC;
        words[superblock::LAYOUT_VERSION] = LAYOUT_VERSION;
        words[superblock::REGION_BYTES] = region_bytes;
        words[superblock::DIRECTORY_SEGMENT] = 1;
        words[superblock::GRACE_NS] = GRACE_NS;
        words[superblock::LEASE_NS] = LEASE_NS;
        words[superblock::VALUE_MAX_BYTES] = VALUE_MAX_BYTES as u64;
        words
    }

    #[test]
    fn identities_that_no_server_writes_are_refused() {
        let good = identity(REGION_MIN_BYTES);
        let words = REGION_MIN_BYTES as usize / 8;
        assert!(TableView::from_identity(&good, words).is_ok());
        assert!(TableView::from_identity(&good, words + 1).is_err(), "another size than the mapping's");
        for (at, bad) in [
            (superblock::MAGIC, 0),
            (superblock::LAYOUT_VERSION, LAYOUT_VERSION + 1),
            (superblock::REGION_BYTES, REGION_MIN_BYTES + 8),
            (superblock::DIRECTORY_SEGMENT, 8),
            (superblock::DIRECTORY_SEGMENT, u64::MAX),
            (superblock::GRACE_NS, 0),
            (superblock::LEASE_NS, u64::MAX),
            (superblock::VALUE_MAX_BYTES, 0),
            (superblock::VALUE_MAX_BYTES, VALUE_MAX_BYTES as u64 + 1),
        ] {
            let mut words_bad = good.clone();
            words_bad[at] = bad;
            assert!(TableView::from_identity(&words_bad, words).is_err(), "word {at} = {bad:#x}");
        }
        assert!(TableView::check_depth(DIRECTORY_DEPTH_MAX as u64 + 1).is_err());
        let mut view = TableView::from_identity(&good, words).unwrap();
        assert!(view.set_directory(&[2, 8]).is_err(), "outside the region");
        assert!(view.set_directory(&[0]).is_err(), "the superblock is no index");
    }

    fn window(header: Header) -> Vec<u64> {
        let mut words = vec![0; WINDOW_WORDS];
        (words[0], words[LINE_WORDS]) = (header.0, header.0);
        words
    }

    #[test]
    fn a_window_answers_only_for_its_own_hash_bits() {
        let hash = KeyHash(0xbeef_0000_0000_0005);
        let state =
            |depth, prefix| judge_window(&window(Header::home(depth, prefix)), hash, &mut Matches::none());
        assert_eq!(state(0, 0), LineState::Answers { next: 0, is_moving: false });
        assert_eq!(state(3, 5), LineState::Answers { next: 0, is_moving: false });
        assert_eq!(state(3, 1), LineState::StaleDirectory);
        let mut half = window(Header::home(2, 1));
        half[LINE_WORDS] = Header::home(3, 1).0;
        assert_eq!(
            judge_window(&half, hash, &mut Matches::none()),
            LineState::StaleDirectory,
            "the second line counts"
        );
    }

    #[test]
    fn moving_in_either_line_is_seen() {
        let hash = KeyHash(5);
        for at in [0, LINE_WORDS] {
            let mut words = window(Header::home(0, 0));
            words[at] = Header::home(0, 0).with_moving(true).0;
            let state = judge_window(&words, hash, &mut Matches::none());
            assert_eq!(state, LineState::Answers { next: 0, is_moving: true });
        }
    }

    #[test]
    fn every_slot_of_a_window_is_looked_at() {
        let hash = KeyHash(0xbeef_0000_0000_0000);
        for at in (0..WINDOW_WORDS).filter(|at| at % LINE_WORDS != 0) {
            let mut words = window(Header::home(0, 0));
            let slot = Slot::new(0xbeef, Span(3), Place(99));
            words[at] = slot.0;
            let mut matches = Matches::none();
            judge_window(&words, hash, &mut matches);
            assert_eq!(matches.slots(), [slot], "word {at}");
        }
    }

    #[test]
    fn an_overflow_line_of_another_home_is_reused() {
        let hash = KeyHash(0);
        let mut words = vec![0; LINE_WORDS];
        words[0] = Header::home(0, 0).overflow_of(7).with_next(HOME_LINES as u16).0;
        let judge = |words: &[u64], home| judge_overflow(words, home, hash, &mut Matches::none());
        assert_eq!(judge(&words, 7), LineState::Answers { next: HOME_LINES as u16, is_moving: false });
        assert_eq!(judge(&words, 8), LineState::Reused);
        words[0] = Header::home(0, 0).0;
        assert_eq!(judge(&words, 0), LineState::Reused, "free");
    }

    proptest! {
        #[test]
        fn arbitrary_lines_are_judged_without_panic_or_leaving_the_region(
            words in proptest::collection::vec(any::<u64>(), WINDOW_WORDS), hash: u64, home: u16,
        ) {
            let mut view = TableView::from_identity(&identity(REGION_MIN_BYTES), REGION_MIN_BYTES as usize / 8).unwrap();
            view.set_directory(&[2]).unwrap();
            let mut matches = Matches::none();
            let states = [
                judge_window(&words, KeyHash(hash), &mut matches),
                judge_overflow(&words[..LINE_WORDS], home, KeyHash(hash), &mut matches),
            ];
            for state in states {
                if let LineState::Answers { next, .. } = state {
                    prop_assert!(next == 0 || (HOME_LINES..SEGMENT_LINES).contains(&(next as u64)));
                }
            }
            for &word in &words {
                let slot = Slot(word);
                if let Some(len) = view.block_words(slot) {
                    prop_assert!(len > 0 && slot.place().word() + len <= view.region_words);
                }
                if let Some(page) = view.first_page(slot) {
                    prop_assert!(page.place() == slot.place() && page.page_word(1) <= view.region_words);
                }
            }
        }
    }
}
