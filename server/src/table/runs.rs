//! The check of large blocks: what their pages say, and that every page of a large segment is accounted for once.

use std::collections::BTreeMap;

use kv_common::block;
use kv_common::block::Verdict;
use kv_common::large::{Assembly, NotAssembled};
use kv_common::layout::{
    Lengths, NOT_LIVE, PAGE_HEAD_WORDS, PAGE_WORDS, Run, SEGMENT_PAGES, SegmentKind, Slot, pages_of,
};

use super::Table;
use super::findings::{CheckFinding, SlotFault};
use super::walk::{Verified, Walk, Walker};

impl Walker<'_> {
    /// Verifies a large block, its pages' markers and their segments.
    pub(super) fn large_block(&mut self, slot: Slot) -> Result<Verified, SlotFault> {
        let first = self.view.first_page(slot).ok_or(SlotFault::NoBlock)?;
        self.block.resize(PAGE_WORDS, 0);
        self.region.copy_out(first.page_word(0), &mut self.block);
        let key =
            block::key_of(&self.block).filter(|key| !key.is_empty()).ok_or(SlotFault::Damaged)?.to_vec();
        let block_bytes = Lengths::decode(self.block[2]).block_bytes();
        let begun = Assembly::begin(&self.block, &key, slot, self.view);
        let mut assembly = begun.map_err(|not| match not {
            NotAssembled::Judged(Verdict::NotLive) => SlotFault::NotLive,
            NotAssembled::Judged(_) | NotAssembled::NoMemory(_) => SlotFault::Span { block_bytes },
        })?;
        let run = Run { pages: pages_of(block_bytes), ..first };
        if !run.segments().all(|segment| self.walk.segments[segment as usize].kind == SegmentKind::Large) {
            return Err(SlotFault::NoBlock);
        }
        while let Some(piece) = assembly.piece(assembly.pages_fed()) {
            self.block.resize(piece.len_words, 0);
            self.region.copy_out(piece.at_word, &mut self.block);
            for (page, words) in (piece.first_page..).zip(self.block.chunks(PAGE_WORDS)) {
                if words[..PAGE_HEAD_WORDS].iter().any(|word| word & NOT_LIVE == 0) {
                    return Err(SlotFault::Marker { page });
                }
            }
            assembly.feed(&self.block);
        }
        let version = assembly.finish(self.view.table_id).ok_or(SlotFault::Damaged)?.version;
        self.walk.runs.push(run);
        Ok(Verified { hash: self.view.hash(&key), version })
    }

    /// No two runs share a page.
    pub(super) fn no_page_twice(&mut self) {
        self.walk.runs.sort_unstable();
        // A split leaves copies of slots; where they may be is judged with those of all blocks.
        self.walk.runs.dedup();
        let shared: Vec<u64> = self
            .walk
            .runs
            .windows(2)
            .filter(|pair| pair[0].end_page() > pair[1].first_page)
            .map(|pair| pair[1].first_page)
            .collect();
        for page in shared {
            self.note(CheckFinding::Page { page });
        }
    }
}

impl Table {
    /// Runs in use, coming, on their way back and free make up the large segments, to the page.
    pub(super) fn check_pages(&self, walk: &mut Walk) {
        let report = self.slab.report_pages();
        let mut taken: BTreeMap<u64, u64> =
            report.taken.iter().map(|run| (run.first_page, run.pages)).collect();
        for run in &walk.runs {
            let kept = taken.remove(&run.first_page);
            if kept != Some(run.pages) {
                let (place, found) = (run.place(), Some(run.pages));
                walk.findings.push(CheckFinding::Run { place, found, kept });
            }
        }
        // What is left of them is no key's: it comes, or is on its way back.
        walk.report.waiting_blocks += (taken.len() as u64).saturating_sub(self.slab.drafts());
        let mut all: Vec<Run> = report.taken.iter().chain(&report.free).copied().collect();
        all.sort_unstable();
        let mut runs = all.into_iter().flat_map(|run| run.first_page..run.end_page());
        let large = (0u64..).zip(&walk.segments).filter(|(_, entry)| entry.kind == SegmentKind::Large);
        let mut pages = large.flat_map(|(segment, _)| segment * SEGMENT_PAGES..(segment + 1) * SEGMENT_PAGES);
        loop {
            match (pages.next(), runs.next()) {
                (None, None) => break,
                (page, found) if page == found => {}
                (page, found) => {
                    let page = page.into_iter().chain(found).min().expect("one of them is there");
                    walk.findings.push(CheckFinding::Page { page });
                    break;
                }
            }
        }
        let is_touching = |pair: &[Run]| pair[0].end_page() == pair[1].first_page;
        let split = report.free.windows(2).find(|pair| is_touching(pair));
        walk.findings.extend(split.map(|pair| CheckFinding::Page { page: pair[1].first_page }));
        walk.report.free_pages = report.free.iter().map(|run| run.pages).sum();
        if walk.report.free_pages != report.free_pages {
            let (expected, found) = (walk.report.free_pages, report.free_pages);
            walk.findings.push(CheckFinding::Sum { what: "free pages".to_owned(), expected, found });
        }
    }
}
