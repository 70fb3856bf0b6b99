//! Every page of a large segment is accounted for once.

use std::collections::BTreeMap;

use kv_common::check::{CheckFinding, Walk};
use kv_common::layout::{Run, SEGMENT_PAGES, SegmentKind};

use super::Table;

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
