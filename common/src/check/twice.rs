//! What only all slots together show: that nothing is there twice.

use std::collections::BTreeMap;

use super::blocks::subtract_copy;
use super::findings::{CheckFinding, SlotFault};
use super::index::{Entry, State};
use super::region::{Region, read_each, read_into};
use super::{Checker, FINDINGS_MAX, LOOKS};
use crate::hash::KeyHash;
use crate::layout::{
    BLOCK_HEADER_WORDS, DIRECTORY_DEPTH_MAX, HOME_LINES, Header, Lengths, LineNumber, Place,
};
use crate::limits::KEY_MAX_BYTES;

/// Slots that cannot all be right.
type Group = Vec<Entry>;

/// Headers of home lines, their links apart: as they were copied, or as they are now.
type Headers<'a> = dyn Fn(LineNumber) -> Header + 'a;

/// Headers that were read for it.
type HeadersNow = BTreeMap<LineNumber, Header>;

/// What slots that name one block turn out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OfOneBlock {
    /// The one slot of it.
    Single,
    /// Two, of which one is the copy that a split has left.
    Copied,
    /// Of more keys or segments than one; and a slot in a segment that has given the key away.
    Wrong { is_twice: bool, given_away: Option<Entry> },
}

impl<R: Region> Checker<'_, R> {
    pub(super) fn nothing_twice(&mut self) -> Result<(), R::Error> {
        self.no_key_twice()?;
        self.no_block_twice()?;
        self.no_page_twice()
    }

    /// Two slots of a key have the same hash. Those of one block are judged by themselves.
    fn no_key_twice(&mut self) -> Result<(), R::Error> {
        self.entries.sort_unstable_by_key(|entry| (entry.hash.get(), entry.place(), entry.at()));
        let is_one_block = |pair: &[Entry]| pair[0].place() == pair[1].place();
        let same_hash = self.entries.chunk_by(|a, b| a.hash == b.hash);
        let groups = same_hash.filter(|group| !group.windows(2).all(is_one_block));
        let groups = groups.map(<[Entry]>::to_vec).collect();
        let is_wrong = |group: &[Entry], _: &Headers| !group.windows(2).all(is_one_block);
        let (groups, _) = self.that_stay(groups, &is_wrong)?;
        for group in groups.into_iter().take(FINDINGS_MAX) {
            let mut seen: BTreeMap<Vec<u64>, Place> = BTreeMap::new();
            for entry in &group {
                let key = self.key_at(entry.place())?;
                if let Some(first) = seen.insert(key, entry.place()).filter(|first| *first != entry.place()) {
                    let second = entry.place();
                    self.findings.note(CheckFinding::KeyTwice { first, second });
                }
            }
        }
        Ok(())
    }

    /// No two slots name the same block, unless one is the copy that a split has left.
    fn no_block_twice(&mut self) -> Result<(), R::Error> {
        self.entries.sort_unstable_by_key(|entry| (entry.place(), entry.at()));
        let states = &self.states;
        let headers = |line: LineNumber| header_in(states, line);
        let (mut wrong, mut copies) = (Vec::new(), Vec::new());
        for group in self.entries.chunk_by(|a, b| a.place() == b.place()) {
            match of_one_block(group, &headers) {
                OfOneBlock::Single => {}
                OfOneBlock::Copied => copies.push(group[1].at()),
                OfOneBlock::Wrong { .. } => wrong.push(group.to_vec()),
            }
        }
        let is_wrong = |group: &[Entry], headers: &Headers| {
            matches!(of_one_block(group, headers), OfOneBlock::Wrong { .. })
        };
        let (wrong, now) = self.that_stay(wrong, &is_wrong)?;
        for group in wrong {
            let headers = |line| now.get(&line).copied().unwrap_or_else(|| header_in(&self.states, line));
            if let OfOneBlock::Wrong { is_twice, given_away } = of_one_block(&group, &headers) {
                if is_twice {
                    self.findings.note(CheckFinding::BlockTwice { place: group[0].place() });
                }
                if let Some(entry) = given_away {
                    let (line, index, slot, fault) =
                        (entry.line(), entry.index(), entry.slot, SlotFault::GivenAway);
                    self.findings.note(CheckFinding::Slot { line, index, slot, fault });
                }
            }
        }
        self.drop_copies(copies)
    }

    /// Counts the keys of copied slots once.
    fn drop_copies(&mut self, mut copies: Vec<u64>) -> Result<(), R::Error> {
        copies.sort_unstable();
        let is_copy = |entry: &Entry| copies.binary_search(&entry.at()).is_ok();
        let words = self.entries.iter().filter(|entry| is_copy(entry)).map(|entry| entry.place().word() + 2);
        let lengths = read_each(self.region, words)?;
        for lengths in lengths.into_iter().map(Lengths::decode) {
            subtract_copy(&mut self.report, lengths);
        }
        self.entries.retain(|entry| !is_copy(entry));
        Ok(())
    }

    /// No two runs share a page. Entries are sorted by place.
    fn no_page_twice(&mut self) -> Result<(), R::Error> {
        self.runs.sort_unstable();
        // A split leaves copies of slots; where they may be was judged with those of all blocks.
        self.runs.dedup();
        let shared = self.runs.windows(2).filter(|pair| pair[0].end_page() > pair[1].first_page);
        let group = |place: [Place; 2]| -> Option<Group> {
            let of = |place| self.entries.binary_search_by_key(&place, Entry::place).ok();
            Some(vec![self.entries[of(place[0])?].clone(), self.entries[of(place[1])?].clone()])
        };
        let groups = shared.filter_map(|pair| group([pair[0].place(), pair[1].place()])).collect();
        let (groups, _) = self.that_stay(groups, &|group: &[Entry], _: &Headers| group.len() > 1)?;
        for group in groups {
            let page = group[1].place().word() / crate::layout::PAGE_WORDS;
            self.findings.note(CheckFinding::Page { page: page as u64 });
        }
        Ok(())
    }

    /// The groups that are wrong still when they were looked at again and again, of those slots that did not change, and the
    /// headers by which they are. All groups and no headers, if nobody can have written meanwhile.
    fn that_stay(
        &mut self,
        mut groups: Vec<Group>,
        is_wrong: &dyn Fn(&[Entry], &Headers) -> bool,
    ) -> Result<(Vec<Group>, HeadersNow), R::Error> {
        let mut headers = HeadersNow::new();
        if !self.region.is_live() {
            return Ok((groups, headers));
        }
        for look in 1..=LOOKS {
            if groups.is_empty() {
                break;
            }
            self.region.look_again(look)?;
            let slots = read_each(self.region, groups.iter().flatten().map(Entry::word))?;
            let mut slots = slots.into_iter();
            for group in &mut groups {
                group.retain(|entry| slots.next() == Some(entry.slot.0));
            }
            headers = self.read_headers(&groups)?;
            groups.retain(|group| !group.is_empty() && is_wrong(group, &|line| headers[&line]));
        }
        Ok((groups, headers))
    }

    /// The headers that decide about these slots, as they are now.
    fn read_headers(&mut self, groups: &[Group]) -> Result<HeadersNow, R::Error> {
        let lines = groups.iter().flatten().flat_map(|entry| [home_line(entry), last_line(entry)]);
        let lines: Vec<LineNumber> = lines.collect();
        let words = read_each(self.region, lines.iter().map(|line| line.word()))?;
        Ok(lines.into_iter().zip(words.into_iter().map(|word| Header(word).with_next(0))).collect())
    }

    /// The key of a block that was verified, as words and a length.
    fn key_at(&mut self, place: Place) -> Result<Vec<u64>, R::Error> {
        let lengths = Lengths::decode(read_each(self.region, [place.word() + 2])?[0]);
        let key_bytes = (lengths.key_bytes as usize).min(KEY_MAX_BYTES);
        let start = place.word() + BLOCK_HEADER_WORDS;
        let room = self.region.len_words() - start;
        let mut words = vec![0; key_bytes.div_ceil(8).min(room)];
        read_into(self.region, start, &mut words)?;
        // The bytes of the value that share the last word are no part of the key.
        if let (Some(last), used @ 1..) = (words.last_mut(), key_bytes % 8) {
            *last &= (1 << (used * 8)) - 1;
        }
        words.push(key_bytes as u64);
        Ok(words)
    }
}

fn home_line(entry: &Entry) -> LineNumber {
    LineNumber::new(entry.line().segment(), KeyHash(entry.hash.get()).home())
}

fn last_line(entry: &Entry) -> LineNumber {
    LineNumber::new(entry.line().segment(), HOME_LINES - 1)
}

fn header_in(states: &BTreeMap<u64, State>, line: LineNumber) -> Header {
    states[&line.segment()].header(line.in_segment())
}

fn of_one_block(group: &[Entry], headers: &Headers) -> OfOneBlock {
    let is_given_away = |entry: &&Entry| !headers(home_line(entry)).answers_for(KeyHash(entry.hash.get()));
    let given_away = group.iter().find(is_given_away).cloned();
    match group {
        [_] if given_away.is_none() => OfOneBlock::Single,
        [a, b] if a.slot == b.slot && (is_split(a, b, headers) || is_split(b, a, headers)) => {
            OfOneBlock::Copied
        }
        _ => OfOneBlock::Wrong { is_twice: group.len() > 1, given_away },
    }
}

/// True if the segment of `target` is being filled from the one of `source`.
fn is_split(source: &Entry, target: &Entry, headers: &Headers) -> bool {
    let (from, to) = (headers(last_line(source)), headers(last_line(target)));
    let is_half = (1..=DIRECTORY_DEPTH_MAX).contains(&to.depth())
        && to.prefix() == from.prefix() | 1 << (to.depth() - 1)
        && to.prefix() != from.prefix();
    is_half
        && (from.depth() == to.depth() || from.depth() + 1 == to.depth())
        && headers(home_line(target)).answers_for(KeyHash(target.hash.get()))
}
