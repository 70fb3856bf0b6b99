//! Blocks of all slots; and those slots that looked wrong in a live region, again.

use std::collections::BTreeMap;

use super::blocks::{Sums, Suspect, verify};
use super::findings::{CheckFinding, SlotFault};
use super::index::Entry;
use super::region::{Piece, Region};
use super::tables::read_segments;
use super::{Checker, Findings, LOOKS, Observe};
use crate::layout::{HOME_LINES, Header, LINE_WORDS, Slot, superblock};

/// Looks in a row that a slot has to be wrong in the same way: the last of them are hundreds of ms apart.
const STAYS: u32 = 5;

/// How a slot was wrong last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wrong {
    slot: Slot,
    fault: SlotFault,
    evidence: [u64; 2],
}

/// Slots that were wrong at the last look, and for how many looks, by where they are.
type WrongSlots = BTreeMap<u64, (Wrong, u32)>;

impl<R: Region> Checker<'_, R> {
    /// Verifies the blocks of all slots. What is left in `entries` are those that passed.
    pub(super) fn blocks(&mut self) -> Result<(), R::Error> {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by_key(Entry::place);
        let suspects = self.verify(&entries)?;
        let (mut doubtful, mut wrong) = split_off(&mut entries, &suspects, &WrongSlots::new());
        self.entries = entries;
        for look in 1..=LOOKS {
            if doubtful.is_empty() || !self.region.is_live() {
                break;
            }
            self.region.look_again(look)?;
            doubtful = self.read_slots(&doubtful)?;
            let suspects = self.verify(&doubtful)?;
            let (still, how) = split_off(&mut doubtful, &suspects, &wrong);
            self.entries.append(&mut doubtful);
            (doubtful, wrong) = (still, how);
        }
        for entry in doubtful {
            let (Wrong { slot, fault, .. }, looks) = wrong[&entry.at()];
            if looks < STAYS && self.region.is_live() {
                self.unjudged.slots += 1;
                continue;
            }
            let (line, index) = (entry.line(), entry.index());
            self.findings.note(CheckFinding::Slot { line, index, slot, fault });
        }
        Ok(())
    }

    fn verify(&mut self, entries: &[Entry]) -> Result<Vec<Suspect>, R::Error> {
        let mut sums = Sums { report: &mut self.report, runs: &mut self.runs };
        let observe: &mut Observe = &mut self.observe;
        verify(self.region, &self.tables, entries, &mut sums, observe)
    }

    /// What is in these slots now, by place; without those that are empty, or whose line is in no chain any more. What the
    /// blocks are judged by is read anew, too.
    fn read_slots(&mut self, entries: &[Entry]) -> Result<Vec<Entry>, R::Error> {
        self.tables.segments = read_segments(self.region, &mut Findings::default())?;
        let mut pieces = entries
            .iter()
            .map(|entry| Piece { at_word: entry.line().word(), len_words: LINE_WORDS })
            .chain([Piece { at_word: superblock::VERSION_CEILING, len_words: 1 }]);
        let (mut now, mut asked) = (Vec::new(), entries.iter());
        let ceiling = &mut self.tables.front[superblock::VERSION_CEILING];
        self.region.read(&mut pieces, &mut |_, words| match asked.next() {
            Some(entry) => {
                let (header, slot) = (Header(words[0]), Slot(words[1 + entry.index()]));
                let is_home_line = entry.line().in_segment() < HOME_LINES;
                if !slot.is_empty() && (is_home_line || header.is_overflow()) {
                    let home = if is_home_line {
                        entry.line().in_segment()
                    } else {
                        header.home_of_overflow().into()
                    };
                    now.push(Entry::new(slot, entry.line(), entry.index(), home));
                }
            }
            None => *ceiling = words[0],
        })?;
        now.sort_unstable_by_key(Entry::place);
        Ok(now)
    }
}

/// Takes the suspects out of entries; says how they are wrong, and for how many looks that has stayed so.
fn split_off(
    entries: &mut Vec<Entry>,
    suspects: &[Suspect],
    before: &WrongSlots,
) -> (Vec<Entry>, WrongSlots) {
    let mut wrong = WrongSlots::new();
    let mut doubtful = Vec::new();
    for suspect in suspects {
        let entry = &entries[suspect.number];
        let now = Wrong { slot: entry.slot, fault: suspect.fault, evidence: suspect.evidence };
        let looks =
            before.get(&entry.at()).filter(|(then, _)| *then == now).map_or(0, |(_, looks)| looks + 1);
        wrong.insert(entry.at(), (now, looks));
        doubtful.push(entry.clone());
    }
    let (mut number, mut next) = (0, suspects.iter().peekable());
    entries.retain(|_| {
        let is_suspect = next.next_if(|suspect| suspect.number == number).is_some();
        number += 1;
        !is_suspect
    });
    (doubtful, wrong)
}
