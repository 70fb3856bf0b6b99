//! The index cache: a local copy of index lines, at their positions.
//!
//! A direct-mapped array of lines. As large as the index it is a mirror, and a GET needs one READ; smaller, it holds
//! the lines used last. It is never believed: a place from here is judged by the block that lies there, and what is
//! not here may well exist.
//!
//! ```text
//! entry, 64 bytes   | tag | slot 0 | ... | slot 6 |
//! tag               | line number:40 | generation:8 | next overflow line:16 |       generation 0: empty
//! ```

use kv_common::hash::KeyHash;
use kv_common::layout::{Header, LINE_BYTES, LINE_WORDS, LineNumber, Slot};
use kv_common::limits::OVERFLOW_CHAIN_MAX;
use kv_common::probe::{Matches, first_match};
use kv_common::region::prefetch_line;
use kv_common::wire::IndexHint;
use memmap2::{Advice, MmapMut, MmapOptions};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
struct Entry {
    /// The tag, then the slots: where a line has its header, an entry has its tag.
    words: [u64; LINE_WORDS],
}

impl Entry {
    #[inline]
    fn tag(&self) -> u64 {
        self.words[0]
    }

    fn slots_mut(&mut self) -> &mut [u64] {
        &mut self.words[1..]
    }
}

const LINE_BITS: u32 = 40;
const GENERATION_MASK: u64 = 0xff;
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Entries of smaller memory that are looked at whenever a line is kept.
const MOVES: usize = 64;

/// The cache and the place epoch under which all its places were learned.
pub(crate) struct IndexCache {
    /// Bytes that it may grow to.
    budget_bytes: usize,
    memory: MmapMut,
    /// Entries less one, a power of two less one.
    mask: u64,
    generation: u64,
    place_epoch: u64,
    pages: &'static str,
    /// The memory before it grew, and how many of its entries were looked at. All at once would be a pause of a tenth of a
    /// second: they follow little by little. Until then it is as if they were not there.
    before: Option<(MmapMut, usize)>,
}

impl IndexCache {
    /// A cache of at most `budget_bytes` for an index of `index_lines`, rounded to a power of two.
    pub(crate) fn new(budget_bytes: usize, index_lines: u64) -> std::io::Result<IndexCache> {
        let lines = lines_of(budget_bytes, index_lines);
        let (memory, pages) = allocate((lines * LINE_BYTES) as usize)?;
        Ok(IndexCache {
            budget_bytes,
            memory,
            mask: lines - 1,
            generation: 1,
            place_epoch: 0,
            pages,
            before: None,
        })
    }

    /// Grows with an index that has grown to `index_lines`, as far as the budget goes. What it holds follows as lines are
    /// kept. The cache stays as it is if there is no memory.
    pub(crate) fn fit(&mut self, index_lines: u64) {
        let lines = lines_of(self.budget_bytes, index_lines);
        if lines <= self.mask + 1 {
            return;
        }
        let Ok((memory, pages)) = allocate((lines * LINE_BYTES) as usize) else { return };
        let old = std::mem::replace(&mut self.memory, memory);
        (self.mask, self.pages) = (lines - 1, pages);
        self.before = Some((old, 0));
    }

    /// Takes the next entries over, but those that were learned anew meanwhile.
    #[cold]
    fn move_some(&mut self) {
        let Some((old, moved)) = self.before.take() else { return };
        let entries = <[Entry]>::ref_from_bytes(&old).expect("a mapping is aligned to pages");
        let end = entries.len().min(moved + MOVES);
        let generation = self.generation;
        let is_current = |entry: &Entry| entry.tag() >> LINE_BITS & GENERATION_MASK == generation;
        for entry in entries[moved..end].iter().filter(|entry| is_current(entry)) {
            let position = self.position(LineNumber(entry.tag() & ((1 << LINE_BITS) - 1)));
            let new = &mut self.entries_mut()[position];
            if !is_current(new) {
                new.words = entry.words;
            }
        }
        if end < entries.len() {
            self.before = Some((old, end));
        }
    }

    /// Bytes of the entries.
    pub(crate) fn bytes(&self) -> u64 {
        (self.mask + 1) * LINE_BYTES
    }

    /// Which pages hold it, for people.
    pub(crate) fn pages(&self) -> &'static str {
        self.pages
    }

    /// The place epoch under which every place here was learned.
    #[inline]
    pub(crate) fn place_epoch(&self) -> u64 {
        self.place_epoch
    }

    /// Drops everything and starts again under another place epoch.
    pub(crate) fn restart(&mut self, place_epoch: u64) {
        self.place_epoch = place_epoch;
        self.before = None;
        self.generation = (self.generation + 1) & GENERATION_MASK;
        if self.generation == 0 {
            // The tags of 255 restarts ago would count again.
            self.memory.fill(0);
            self.generation = 1;
        }
    }

    /// The first slot that matches in the cached lines of a home's window: nearly always the one.
    #[inline]
    pub(crate) fn first_in_window(&self, home: LineNumber, hash: KeyHash) -> Option<Slot> {
        let (lines, is_present) = self.window(home);
        first_match(lines.map(|entry| &entry.words), is_present, hash.fingerprint())
    }

    /// All slots that match, in the cached lines of a home: the window and its overflow lines.
    pub(crate) fn find(&self, home: LineNumber, hash: KeyHash) -> Matches {
        let ([first, second], is_present) = self.window(home);
        let fingerprint = hash.fingerprint();
        let mut matches = Matches::none();
        for (line, is_present) in [first, second].into_iter().zip(is_present) {
            if is_present {
                matches.add_line(&line.words, fingerprint);
            }
        }
        if is_present[0] && matches.is_empty() && first.tag() >> 48 != 0 {
            self.find_overflow(home, (first.tag() >> 48) as u16, fingerprint, &mut matches);
        }
        matches
    }

    /// The entries of a window, and which of them hold its lines.
    #[inline]
    fn window(&self, home: LineNumber) -> ([&Entry; 2], [bool; 2]) {
        let entries = self.entries();
        let lines = [&entries[self.position(home)], &entries[self.position(home.next())]];
        prefetch_line(lines[1]);
        let is_present = |entry: &Entry, line| entry.tag() & self.tag_mask() == self.tag(line);
        (lines, [is_present(lines[0], home), is_present(lines[1], home.next())])
    }

    #[cold]
    fn find_overflow(&self, home: LineNumber, mut next: u16, fingerprint: u16, matches: &mut Matches) {
        for _ in 0..OVERFLOW_CHAIN_MAX {
            if next == 0 {
                return;
            }
            let line = home.sibling(next);
            let entry = &self.entries()[self.position(line)];
            if entry.tag() & self.tag_mask() != self.tag(line) {
                return;
            }
            matches.add_line(&entry.words, fingerprint);
            next = (entry.tag() >> 48) as u16;
        }
    }

    /// Fetches the lines of a home into the processor's cache.
    #[inline]
    pub(crate) fn prefetch(&self, home: LineNumber) {
        prefetch_line(&self.entries()[self.position(home)]);
        prefetch_line(&self.entries()[self.position(home.next())]);
    }

    /// Keeps a line of 8 words that was read under the cache's place epoch.
    #[inline]
    pub(crate) fn keep(&mut self, line: LineNumber, words: &[u64]) {
        let tag = self.tag(line) | (Header(words[0]).next() as u64) << 48;
        let position = self.position(line);
        let entry = &mut self.entries_mut()[position];
        entry.words = *kv_common::probe::line(words);
        entry.words[0] = tag;
        if self.before.is_some() {
            self.move_some();
        }
    }

    /// Follows a write of this client, if the line is here and the hint is no older than the cache.
    pub(crate) fn follow(&mut self, hint: &IndexHint) {
        if hint.place_epoch != self.place_epoch {
            return;
        }
        let (tag, mask) = (self.tag(hint.line), self.tag_mask());
        let position = self.position(hint.line);
        let entry = &mut self.entries_mut()[position];
        if entry.tag() & mask == tag {
            entry.slots_mut()[hint.slot_index as usize] = hint.slot.0;
        }
    }

    /// Forgets one slot wherever it is cached among the lines of a home: what lies there is another key's by now.
    pub(crate) fn forget(&mut self, home: LineNumber, slot: Slot) {
        for line in [home, home.next()] {
            let (tag, mask) = (self.tag(line), self.tag_mask());
            let position = self.position(line);
            let entry = &mut self.entries_mut()[position];
            if entry.tag() & mask == tag {
                entry
                    .slots_mut()
                    .iter_mut()
                    .filter(|cached| **cached == slot.0)
                    .for_each(|cached| *cached = 0);
            }
        }
    }

    #[inline]
    fn position(&self, line: LineNumber) -> usize {
        (line.0 & self.mask) as usize
    }

    #[inline]
    fn tag(&self, line: LineNumber) -> u64 {
        line.0 | self.generation << LINE_BITS
    }

    #[inline]
    fn tag_mask(&self) -> u64 {
        (1 << 48) - 1
    }

    #[inline]
    fn entries(&self) -> &[Entry] {
        let entries = <[Entry]>::ref_from_bytes(&self.memory).expect("a mapping is aligned to pages");
        &entries[..=self.mask as usize]
    }

    #[inline]
    fn entries_mut(&mut self) -> &mut [Entry] {
        <[Entry]>::mut_from_bytes(&mut self.memory).expect("a mapping is aligned to pages")
    }
}

/// Lines of a cache for an index of `index_lines`, a power of two. The server takes index segments from one end of the
/// region: numbers of lines are dense, so a cache as large as the index holds every line.
fn lines_of(budget_bytes: usize, index_lines: u64) -> u64 {
    let affordable = (budget_bytes as u64 / LINE_BYTES).max(1);
    index_lines.max(1).next_power_of_two().min(1 << affordable.ilog2())
}

/// Zeroed memory on the largest pages that are to be had: a lookup touches one line of it at random.
fn allocate(bytes: usize) -> std::io::Result<(MmapMut, &'static str)> {
    if bytes >= HUGE_PAGE_BYTES {
        if let Ok(memory) = MmapOptions::new().len(bytes).huge(Some(21)).map_anon() {
            return Ok((memory, "2 MiB (hugetlb)"));
        }
        let memory = MmapMut::map_anon(bytes)?;
        let is_advised = memory.advise(Advice::HugePage).is_ok();
        return Ok((
            memory,
            if is_advised { "2 MiB where the system grants them (madvise)" } else { "4 KiB" },
        ));
    }
    Ok((MmapMut::map_anon(bytes)?, "4 KiB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kv_common::layout::{HOME_LINES, Place, Span};

    fn line(next: u16, slots: &[(usize, Slot)]) -> Vec<u64> {
        let mut words = vec![0; LINE_WORDS];
        words[0] = Header::home(0, 0).with_next(next).0;
        for &(at, slot) in slots {
            words[1 + at] = slot.0;
        }
        words
    }

    const HASH: KeyHash = KeyHash(0xbeef_0000_0000_0000);

    fn slot(place: u64) -> Slot {
        Slot::new(0xbeef, Span(4), Place(place))
    }

    #[test]
    fn finds_slots_of_both_lines_and_of_the_chain() {
        let mut cache = IndexCache::new(1 << 20, 1 << 16).unwrap();
        let home = LineNumber::new(2, 5);
        assert!(cache.find(home, HASH).is_empty());
        cache.keep(home, &line(0, &[(6, slot(1))]));
        cache.keep(home.next(), &line(0, &[(0, slot(2))]));
        assert_eq!(cache.find(home, HASH).slots(), [slot(1), slot(2)]);
        let other = LineNumber::new(2, 9);
        let overflow = HOME_LINES as u16 + 3;
        cache.keep(other, &line(overflow, &[]));
        assert!(cache.find(other, HASH).is_empty(), "the overflow line is not cached yet");
        cache.keep(other.sibling(overflow), &line(0, &[(3, slot(3))]));
        assert_eq!(cache.find(other, HASH).slots(), [slot(3)]);
    }

    #[test]
    fn a_chain_that_ends_in_itself_ends() {
        let mut cache = IndexCache::new(16 << 20, 1 << 17).unwrap();
        let home = LineNumber::new(2, 5);
        let overflow = HOME_LINES as u16;
        cache.keep(home, &line(overflow, &[]));
        cache.keep(home.sibling(overflow), &line(overflow, &[]));
        assert!(cache.find(home, HASH).is_empty());
    }

    #[test]
    fn lines_that_share_a_position_replace_each_other() {
        let mut cache = IndexCache::new(LINE_BYTES as usize * 8, 1 << 20).unwrap();
        assert_eq!(cache.bytes(), 8 * LINE_BYTES);
        let (a, b) = (LineNumber(64), LineNumber(72));
        cache.keep(a, &line(0, &[(0, slot(1))]));
        cache.keep(b, &line(0, &[(0, slot(2))]));
        assert!(cache.find(a, HASH).is_empty());
        assert_eq!(cache.find(b, HASH).slots(), [slot(2)]);
    }

    #[test]
    fn a_cache_that_grows_keeps_its_lines() {
        let mut cache = IndexCache::new(LINE_BYTES as usize * 1000, 8).unwrap();
        cache.restart(7);
        let homes: Vec<LineNumber> = (0..8).map(|i| LineNumber(64 + 3 * i)).collect();
        for (i, &home) in homes.iter().enumerate() {
            cache.keep(home, &line(0, &[(i % 7, slot(1 + i as u64))]));
        }
        let kept = |cache: &IndexCache| -> Vec<bool> {
            let is_kept =
                |(i, &home): (usize, &LineNumber)| cache.find(home, HASH).slots() == [slot(1 + i as u64)];
            homes.iter().enumerate().map(is_kept).collect()
        };
        assert_eq!(kept(&cache), [true; 8], "3 and 8 have no common divisor");
        cache.fit(100);
        assert_eq!((cache.bytes() / LINE_BYTES, cache.place_epoch()), (128, 7));
        let other = line(0, &[(0, slot(99))]);
        cache.keep(LineNumber(5), &other);
        assert_eq!(kept(&cache), [true; 8]);
        cache.fit(1 << 20);
        assert_eq!(cache.bytes() / LINE_BYTES, 512, "no more than the budget");
        cache.keep(LineNumber(5), &other);
        cache.keep(LineNumber(5), &other);
        assert_eq!(kept(&cache), [true; 8]);
        cache.fit(1);
        assert_eq!(cache.bytes() / LINE_BYTES, 512, "it never shrinks");
    }

    #[test]
    fn what_a_cache_held_follows_it_little_by_little() {
        const LINES: u64 = 1 << 12;
        let mut cache = IndexCache::new(1 << 20, LINES).unwrap();
        let keep = |cache: &mut IndexCache, number, place| {
            cache.keep(LineNumber(number), &line(0, &[(0, slot(place))]));
        };
        (0..LINES).for_each(|number| keep(&mut cache, LINES + number, number + 1));
        cache.fit(2 * LINES);
        let found =
            |cache: &IndexCache, number| cache.find(LineNumber(LINES + number), HASH).slots().to_vec();
        let count =
            |cache: &IndexCache| (0..LINES).filter(|&i| found(cache, i).contains(&slot(i + 1))).count();
        assert_eq!(count(&cache), 0);
        // A line that was read again meanwhile is the newer one.
        keep(&mut cache, LINES + 9, 77);
        assert_eq!((count(&cache), found(&cache, 9)[0]), (MOVES - 1, slot(77)));
        for _ in 1..LINES as usize / MOVES {
            keep(&mut cache, 3, 1);
        }
        assert_eq!(count(&cache), LINES as usize - 1);
        assert!(cache.before.is_none(), "the old memory is given back");
        cache.fit(4 * LINES);
        cache.restart(8);
        keep(&mut cache, 3, 1);
        assert_eq!(count(&cache), 0, "what was learned under another epoch does not follow");
    }

    #[test]
    fn a_restart_forgets_everything_even_after_256_of_them() {
        let mut cache = IndexCache::new(4096, 64).unwrap();
        cache.keep(LineNumber(3), &line(0, &[(0, slot(1))]));
        for epoch in 1..=600 {
            cache.restart(epoch);
            assert!(cache.find(LineNumber(3), HASH).is_empty(), "epoch {epoch}");
        }
    }

    #[test]
    fn hints_of_the_same_epoch_are_followed_and_others_are_not() {
        let mut cache = IndexCache::new(4096, 64).unwrap();
        let home = LineNumber(3);
        let hint =
            |place_epoch, place| IndexHint { place_epoch, line: home, slot_index: 2, slot: slot(place) };
        cache.follow(&hint(0, 1));
        assert!(cache.find(home, HASH).is_empty(), "a line that is not here is not made up");
        cache.keep(home, &line(0, &[]));
        cache.follow(&hint(0, 2));
        assert_eq!(cache.find(home, HASH).slots(), [slot(2)]);
        cache.follow(&hint(1, 3));
        assert_eq!(cache.find(home, HASH).slots(), [slot(2)]);
        cache.forget(home, slot(2));
        assert!(cache.find(home, HASH).is_empty());
    }
}
