//! A check of words that anything happened to: it ends without panic, and a bit that changed anywhere where it means something
//! is found.

mod table_support;

use std::sync::Arc;

use kv_common::check::{CheckFinding, walk};
use kv_common::layout::{
    Counter, Lengths, PAGE_HEAD_WORDS, PAGE_WORDS, SEGMENT_WORDS, SegmentEntry, SegmentKind, Slot, pages_of,
    superblock,
};
use kv_common::region::ReadWords;
use kv_common::wire::{Condition, Status};
use kv_server::table::Table;
use proptest::prelude::*;
use table_support::{Client, keys_of_one_home, table};

const SEGMENTS: usize = 10;
/// Bytes of a value in seven pages.
const LARGE_BYTES: usize = 400_000;

/// A table with overflow lines, blocks of several classes, and one in pages.
fn sound_table() -> Arc<Table> {
    let table = table(SEGMENTS, 1, None);
    let mut client = Client::new(&table, 0);
    for key in keys_of_one_home(30) {
        assert_eq!(client.put(&key, b"value").status, Status::Done);
    }
    for i in 0..200u64 {
        let value = vec![i as u8; if i % 3 == 0 { 1000 } else { 20 }];
        assert_eq!(client.put(&(1 << 40 | i).to_le_bytes(), &value).status, Status::Done);
    }
    let large = vec![7; LARGE_BYTES];
    assert_eq!(client.upload(Condition::Always, b"large", &large).status, Status::Done);
    table.check().expect("the table is sound");
    table
}

fn entry(region: &ReadWords, segment: usize) -> SegmentEntry {
    SegmentEntry::decode(region.load(superblock::SEGMENT_TABLE + segment)).expect("the table is sound")
}

/// Words of which every bit counts, by what they are.
fn meaningful(region: &ReadWords) -> Vec<(&'static str, Vec<usize>)> {
    let front: Vec<usize> = [
        superblock::MAGIC,
        superblock::LAYOUT_VERSION,
        superblock::REGION_BYTES,
        superblock::TABLE_ID,
        superblock::HASH_SEED,
        superblock::DIRECTORY_SEGMENT,
        superblock::DIRECTORY_DEPTH,
        superblock::KEY_MAX_BYTES,
        superblock::PAGE_BYTES,
    ]
    .into();
    let reserved = (12..16).chain(17..24).chain(39..superblock::COUNTERS_FIRST).collect();
    let sums = [
        Counter::Keys,
        Counter::BlockBytes,
        Counter::DataBytes,
        Counter::ExpiringKeys,
        Counter::OverflowLines,
    ];
    let counters = sums.map(|counter| superblock::COUNTERS + counter as usize).into();
    let slots: Vec<Slot> = walk(region).slots().collect();
    let is_in_use = |segment: &usize| {
        entry(region, *segment).kind != SegmentKind::Blocks
            || slots.iter().any(|slot| slot.place().segment() == *segment as u64)
    };
    let segment_table =
        (0..SEGMENTS).filter(is_in_use).map(|segment| superblock::SEGMENT_TABLE + segment).collect();
    let depth = region.load(superblock::DIRECTORY_DEPTH);
    let directory =
        (0..1 << depth).map(|i| region.load(superblock::DIRECTORY_SEGMENT) as usize * SEGMENT_WORDS + i);
    let of_index = |segment: &usize| entry(region, *segment).kind == SegmentKind::Index;
    let index: Vec<usize> = (0..SEGMENTS)
        .filter(of_index)
        .flat_map(|segment| segment * SEGMENT_WORDS..(segment + 1) * SEGMENT_WORDS)
        .collect();
    let slots_in_use =
        index.iter().copied().filter(|&word| word % 8 != 0 && region.load(word) != 0).collect();
    let blocks = slots.iter().flat_map(|slot| words_of_block(region, *slot)).collect();
    vec![
        ("superblock", front),
        ("words that are not used", reserved),
        ("sums", counters),
        ("segment table", segment_table),
        ("directory", directory.collect()),
        ("index lines", index),
        ("slots in use", slots_in_use),
        ("blocks", blocks),
    ]
}

/// The words of a block that are wholly under its check, and the heads of its pages.
fn words_of_block(region: &ReadWords, slot: Slot) -> Vec<usize> {
    let start = slot.place().word();
    let block_bytes = Lengths::decode(region.load(start + 2)).block_bytes();
    if !slot.span().is_large() {
        return (start..start + block_bytes / 8).collect();
    }
    let heads = (1..pages_of(block_bytes) as usize).flat_map(|page| {
        let head = start + page * PAGE_WORDS;
        head..head + PAGE_HEAD_WORDS
    });
    (start..start + PAGE_WORDS).chain(heads).collect()
}

/// Of what is not in `meaningful`, these can change unseen: words of the superblock for people, clocks, GRACE, LEASE, epoch,
/// owner and limits within their ranges, a higher ceiling, counters that nothing can be compared with, the directory behind
/// its depth, blocks that no slot names, and what is behind the end of a block.
#[test]
fn a_bit_that_changes_where_it_counts_is_found() {
    let table = sound_table();
    let region = table.region();
    let mut random =
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    for (what, words) in meaningful(region) {
        for _ in 0..40 {
            let word = words[random.random_range(0..words.len())];
            let bit = random.random_range(0..64u32);
            let sound = region.load(word);
            region.store(word, sound ^ 1 << bit);
            let findings = walk(region).findings;
            region.store(word, sound);
            assert!(!findings.is_empty(), "{what}: bit {bit} of word {word:#x}, which is {sound:#x}");
        }
    }
    table.check().expect("the table is sound again");
}

/// What a check finds if the region is again as it was before `change`: sound in itself, and not what the server keeps beside it.
fn findings_after(change: impl FnOnce(&mut Client)) -> Vec<CheckFinding> {
    let table = sound_table();
    let mut before = vec![0; table.region().len_words()];
    table.region().copy_out(0, &mut before);
    let mut client = Client::new(&table, 0);
    change(&mut client);
    client.worker.idle();
    table.region().copy_in(0, &before);
    assert_eq!(walk(table.region()).findings, []);
    table.check().expect_err("it is not what the server keeps")
}

#[test]
fn what_the_server_keeps_beside_the_region_is_compared_with_it() {
    let is_found = |findings: &[CheckFinding], is_it: fn(&CheckFinding) -> bool| {
        assert!(findings.iter().any(is_it), "{findings:?}");
    };
    let findings = findings_after(|client| {
        for key in keys_of_one_home(30) {
            assert_eq!(client.delete(&key).status, Status::Done);
        }
        assert_eq!(client.delete(b"large").status, Status::Done);
    });
    is_found(&findings, |it| matches!(it, CheckFinding::OverflowLine { listed: 1, in_use: true, .. }));
    is_found(&findings, |it| matches!(it, CheckFinding::BlockTwice { .. }));
    is_found(&findings, |it| matches!(it, CheckFinding::FreeBlockLive { .. }));
    is_found(&findings, |it| matches!(it, CheckFinding::Run { found: Some(7), kept: None, .. }));
    // More pages than a large segment has.
    let findings = findings_after(|client| {
        assert_eq!(client.upload(Condition::Always, b"larger", &[8; 2_500_001]).status, Status::Done);
    });
    is_found(&findings, |it| matches!(it, CheckFinding::Page { .. }));
}

/// Fills a segment with words that look like something.
fn fill(table: &Table, segment: usize, seed: u64, mask: u64) {
    let mut state = seed | 1;
    for word in segment * SEGMENT_WORDS..(segment + 1) * SEGMENT_WORDS {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        table.region().store(word, (state ^ state >> 29) & mask);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..Default::default() })]

    /// The walk ends, without panic and with a bounded list.
    #[test]
    fn segments_of_any_words_are_walked_over(
        segments in prop::collection::vec((1..SEGMENTS, any::<u64>(), 0u32..64), 1..4),
        entries in prop::collection::vec((0..SEGMENTS, 0u64..6, 0u64..256), 0..6),
        front in prop::collection::vec((0..superblock::IDENTITY_WORDS, any::<u64>(), 0u32..64), 0..2),
    ) {
        let table = sound_table();
        for (segment, seed, shift) in segments {
            fill(&table, segment, seed, u64::MAX >> shift);
        }
        for (segment, kind, class) in entries {
            let class = if kind == 4 { class } else { 0 };
            table.region().store(superblock::SEGMENT_TABLE + segment, kind | class << 8);
        }
        for (word, bits, shift) in front {
            table.region().store(word, table.region().load(word) ^ bits >> shift);
        }
        let walk = walk(table.region());
        prop_assert!(walk.findings.len() <= 100);
        prop_assert!(walk.slots().count() as u64 == walk.report.keys);
    }
}
