//! What the server has counted, compared with what is there.

use super::findings::{CheckFinding, SlotFault};
use super::region::{Region, read_each, read_into};
use super::tables::FRONT_WORDS;
use super::{Checker, LOOKS};
use crate::layout::{COUNTER_NAMES, Counter, HOME_LINES, superblock};
use crate::limits::WORKERS_MAX;

/// Counters that change with every write, split, move and removal.
const OF_WRITES: [Counter; 19] = [
    Counter::Keys,
    Counter::BlockBytes,
    Counter::DataBytes,
    Counter::ExpiringKeys,
    Counter::OverflowLines,
    Counter::Inserts,
    Counter::UpdatesInPlace,
    Counter::UpdatesMoved,
    Counter::Deletes,
    Counter::Adds,
    Counter::Appends,
    Counter::Touches,
    Counter::Splits,
    Counter::SplitsUnderWay,
    Counter::KeysMoved,
    Counter::BlocksMoved,
    Counter::SegmentsReused,
    Counter::Expired,
    Counter::Evictions,
];

/// Threads that write besides the workers: one splits, one makes space.
const OTHER_WRITERS: u64 = 2;
/// Signs of one write that is half done, at most: an overflow line that is not linked yet has two, and a counter or two.
const SIGNS_PER_WRITE: usize = 4;

impl<R: Region> Checker<'_, R> {
    /// Of slots with a fault nothing is in the sums: they are compared only if nothing else is wrong.
    pub(super) fn sums(&mut self) -> Result<(), R::Error> {
        if !self.findings.list.is_empty() {
            return Ok(());
        }
        let before = self.tables.front.clone();
        let mut after = self.read_front()?;
        let mut wrong = self.wrong_sums(&after);
        if self.region.is_live() {
            for look in 1..=LOOKS {
                if wrong.is_empty() || has_written(&before, &after) {
                    break;
                }
                self.region.look_again(look)?;
                after = self.read_front()?;
                wrong = self.wrong_sums(&after);
            }
            self.unjudged.sums = has_written(&before, &after);
        }
        if !self.unjudged.sums {
            wrong.into_iter().for_each(|finding| self.findings.note(finding));
        }
        Ok(())
    }

    fn read_front(&mut self) -> Result<Vec<u64>, R::Error> {
        let mut front = vec![0; FRONT_WORDS];
        read_into(self.region, 0, &mut front)?;
        Ok(front)
    }

    fn wrong_sums(&self, front: &[u64]) -> Vec<CheckFinding> {
        let report = &self.report;
        let sums = [
            (Counter::Keys, report.keys),
            (Counter::BlockBytes, report.block_bytes),
            (Counter::DataBytes, report.data_bytes),
            (Counter::ExpiringKeys, report.expiring_keys),
            (Counter::OverflowLines, report.overflow_lines),
        ];
        let sums = sums.into_iter().map(|(counter, expected)| (counter, expected, sum(front, counter)));
        let wrong = sums.filter(|(_, expected, found)| expected != found);
        let finding = |(counter, expected, found)| {
            let what = COUNTER_NAMES[counter as usize].to_owned();
            CheckFinding::Sum { what, expected, found }
        };
        wrong.map(finding).collect()
    }

    /// Takes what a server that stands may have left half done out of the findings: one that was stopped in the middle of
    /// writes shows what is not in order between two stores of a write, and not more of it than its threads can have begun.
    pub(super) fn set_aside_half_done(&mut self) -> Result<(), R::Error> {
        if !self.region.is_live() || self.findings.list.is_empty() {
            return Ok(());
        }
        let clock_ns = read_each(self.region, [superblock::CLOCK_NS])?[0];
        if clock_ns != self.tables.front[superblock::CLOCK_NS] {
            return Ok(());
        }
        let writers = self.tables.front[superblock::WORKERS] + OTHER_WRITERS;
        let signs_max = writers as usize * SIGNS_PER_WRITE;
        if self.findings.list.iter().filter(|finding| is_half_done(finding)).count() <= signs_max {
            let all = std::mem::take(&mut self.findings.list);
            (self.unjudged.half_done, self.findings.list) = all.into_iter().partition(is_half_done);
        }
        Ok(())
    }
}

/// A counter of all pages.
pub(super) fn sum(front: &[u64], counter: Counter) -> u64 {
    superblock::counter_pages(WORKERS_MAX)
        .map(|page| front[page + counter as usize])
        .fold(0, u64::wrapping_add)
}

fn has_written(before: &[u64], after: &[u64]) -> bool {
    OF_WRITES.iter().any(|&counter| sum(before, counter) != sum(after, counter))
}

/// True of what may be so between two stores of a write.
fn is_half_done(finding: &CheckFinding) -> bool {
    match finding {
        CheckFinding::Slot { fault: SlotFault::NotLive | SlotFault::UnusedLine, .. }
        | CheckFinding::EmptyTail { .. }
        // A split that takes a segment, before the directory names it.
        | CheckFinding::Unreachable { .. } => true,
        CheckFinding::Header { line, .. } => line.in_segment() >= HOME_LINES,
        CheckFinding::Sum { what, .. } => COUNTER_NAMES.contains(&what.as_str()),
        _ => false,
    }
}
