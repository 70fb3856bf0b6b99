//! The check finds what is wrong: each kind of damage, done by hand to a sound table.

mod table_support;

use std::sync::Arc;

use kv_common::block;
use kv_common::check::walk;
use kv_common::layout::{
    COUNTER_NAMES, Counter, HOME_LINES, Header, LINE_SLOTS, LineNumber, NOT_LIVE, SEGMENT_WORDS, Slot, Span,
    superblock,
};
use kv_common::wire::IndexHint;
use kv_server::table::{CheckFinding, SlotFault, Table};
use proptest::prelude::*;
use table_support::{Client, config, keys_of_one_home, table};

/// A table with keys of one home: the window, one full overflow line and one with a single key. Returns where the keys
/// are, in the order of their insertion.
fn sound_table() -> (Arc<Table>, Vec<IndexHint>) {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    let keys = keys_of_one_home(LINE_SLOTS * 3 + 1);
    let hints = keys.iter().map(|key| client.put(key, b"value").hint.unwrap()).collect();
    assert!(client.put(b"goes", b"away").hint.is_some() && client.delete(b"goes").hint.is_some());
    table.check().expect("the table is sound");
    (table, hints)
}

fn word_of(hint: &IndexHint) -> usize {
    hint.line.word() + 1 + hint.slot_index as usize
}

/// Stores `value` at `word`, and expects a finding for which `is_expected` holds; then puts the word back.
#[track_caller]
fn expect(table: &Table, word: usize, value: u64, is_expected: impl Fn(&CheckFinding) -> bool) {
    let sound = table.region().load(word);
    assert_ne!(sound, value, "no damage");
    table.region().store(word, value);
    let findings = table.check().expect_err("the damage is found");
    assert!(findings.iter().any(is_expected), "{findings:#?}");
    table.region().store(word, sound);
    table.check().expect("the table is sound again");
}

fn has_fault(expected: SlotFault) -> impl Fn(&CheckFinding) -> bool {
    move |finding| matches!(finding, CheckFinding::Slot { fault, .. } if *fault == expected)
}

#[test]
fn damaged_slots_are_found() {
    let (table, hints) = sound_table();
    let slot = hints[3].slot;
    let (word, place) = (word_of(&hints[3]), slot.place());
    let other = Slot::new(slot.fingerprint() ^ 0x100, slot.span(), place);
    expect(&table, word, other.0, has_fault(SlotFault::Fingerprint { found: slot.fingerprint() }));
    let wider = Slot::new(slot.fingerprint(), Span(slot.span().0 + 1), place);
    expect(&table, word, wider.0, has_fault(SlotFault::NoBlock));
    let beyond = Slot(slot.0 | 0xff_ffff_ffff);
    expect(&table, word, beyond.0, has_fault(SlotFault::NoBlock));
    expect(&table, word, slot.0 + 1, has_fault(SlotFault::NoBlock));
    expect(&table, word, 0, |finding| matches!(finding, CheckFinding::Sum { what, .. } if what == "keys"));
    let twice = |finding: &CheckFinding| *finding == CheckFinding::BlockTwice { place };
    expect(&table, word_of(&hints[4]), slot.0, twice);
    let elsewhere = LineNumber(hints[3].line.0 ^ 0x1000);
    expect(
        &table,
        elsewhere.word() + 1,
        slot.0,
        |finding| matches!(finding, CheckFinding::Slot { line, fault: SlotFault::Home { .. }, .. } if *line == elsewhere),
    );
}

#[test]
fn a_key_with_two_blocks_is_found() {
    let (table, hints) = sound_table();
    let region = table.region();
    let (first, second) = (hints[3].slot, hints[4].slot.place());
    // The key of the one, in the block of the other: whole, and what a server would write.
    let mut words = [0; 8];
    let words = &mut words[..first.span().words()];
    region.copy_out(first.place().word(), words);
    let key = block::key_of(words).unwrap().to_vec();
    let used = block::encode(words, &key, b"value", 99, second, config(1, None).table_id);
    region.copy_in(second.word(), &words[..used]);
    region.store(word_of(&hints[4]), Slot::new(first.fingerprint(), first.span(), second).0);
    region.store(superblock::VERSION_CEILING, 100.max(region.load(superblock::VERSION_CEILING)));
    let findings = table.check().expect_err("the damage is found");
    assert!(matches!(findings[..], [CheckFinding::KeyTwice { .. }]), "{findings:?}");
}

#[test]
fn damaged_blocks_are_found() {
    let (table, hints) = sound_table();
    for hint in [&hints[0], &hints[LINE_SLOTS * 3]] {
        let word = hint.slot.place().word();
        let load = |word| table.region().load(word);
        expect(&table, word, load(word) | NOT_LIVE, has_fault(SlotFault::NotLive));
        for word in word..word + 5 {
            expect(&table, word, load(word) ^ 1, has_fault(SlotFault::Damaged));
        }
        expect(&table, word + 2, u64::MAX, has_fault(SlotFault::Damaged));
    }
    expect(&table, superblock::VERSION_CEILING, 5, has_fault(SlotFault::Ceiling { version: 7 }));
}

#[test]
fn damaged_headers_and_chains_are_found() {
    let (table, hints) = sound_table();
    let region = table.region();
    let (full, tail) = (hints[LINE_SLOTS * 2].line, hints[LINE_SLOTS * 3].line);
    let header = |line: LineNumber| Header(region.load(line.word()));
    let is_header = |line: LineNumber| move |finding: &CheckFinding| matches!(finding, CheckFinding::Header { line: found, .. } if *found == line);
    let is_link = |line: LineNumber| move |finding: &CheckFinding| matches!(finding, CheckFinding::Link { line: found, .. } if *found == line);
    assert_eq!(header(full).next() as u64, tail.in_segment());
    // The chain ends early: what was behind is no line in use, yet has slots and an overflow line's header.
    expect(&table, full.word(), header(full).with_next(0).0, is_header(tail));
    expect(&table, full.word(), header(full).with_next(0).0, has_fault(SlotFault::UnusedLine));
    // It leads back, to a home line, or to a free line.
    expect(&table, tail.word(), header(tail).with_next(full.in_segment() as u16).0, is_link(tail));
    expect(&table, tail.word(), header(tail).with_next(5).0, is_link(tail));
    let free = tail.sibling(HOME_LINES as u16 + 9);
    expect(&table, tail.word(), header(tail).with_next(free.in_segment() as u16).0, is_header(free));
    // A line that belongs to another home, to other hash bits, or is being moved.
    expect(&table, tail.word(), header(tail).overflow_of(1).0, is_header(tail));
    expect(&table, tail.word(), header(tail).with_moving(true).0, is_header(tail));
    expect(&table, full.sibling(17).word(), Header::home(1, 1).0, is_header(full.sibling(17)));
    let last = full.sibling(HOME_LINES as u16 - 1);
    expect(&table, last.word(), header(last).with_next(HOME_LINES as u16 + 9).0, is_link(last));
    expect(&table, word_of(&hints[LINE_SLOTS * 3]), 0, |finding| {
        *finding == CheckFinding::EmptyTail { line: tail }
    });
}

#[test]
fn wrong_sums_and_segments_are_found() {
    let (table, hints) = sound_table();
    for counter in [Counter::Keys, Counter::BlockBytes, Counter::DataBytes, Counter::OverflowLines] {
        let word = superblock::COUNTERS + counter as usize;
        let name = COUNTER_NAMES[counter as usize];
        let is_sum =
            |finding: &CheckFinding| matches!(finding, CheckFinding::Sum { what, .. } if what == name);
        expect(&table, word, table.region().load(word) + 1, is_sum);
    }
    let entry = |segment: u64| superblock::SEGMENT_TABLE + segment as usize;
    let blocks = hints[0].slot.place().segment();
    expect(&table, entry(blocks), 0, has_fault(SlotFault::NoBlock));
    expect(&table, entry(blocks), 99, |finding| {
        *finding == CheckFinding::SegmentEntry { segment: blocks, found: 99 }
    });
    for segment in 0..3 {
        expect(
            &table,
            entry(segment),
            0,
            |finding| matches!(finding, CheckFinding::Kind { segment: found, .. } if *found == segment),
        );
    }
    expect(&table, superblock::DIRECTORY_DEPTH, 30, |finding| matches!(finding, CheckFinding::Identity(_)));
    expect(&table, SEGMENT_WORDS, 4, |finding| matches!(finding, CheckFinding::Kind { segment: 4, .. }));
}

#[test]
fn a_free_block_that_lives_is_found() {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    let place = client.put(b"key", b"value").hint.unwrap().slot.place();
    client.delete(b"key");
    client.worker.idle();
    let version = table.region().load(place.word()) & !NOT_LIVE;
    expect(&table, place.word(), version, |finding| *finding == CheckFinding::FreeBlockLive { place });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// A client may walk over words that are anything.
    #[test]
    fn arbitrary_damage_is_walked_over_without_panic(
        damage in prop::collection::vec((0usize..40, any::<u64>(), 0u32..64), 1..20),
    ) {
        let (table, hints) = sound_table();
        let region = table.region();
        for (at, bits, shift) in damage {
            let hint = &hints[at % hints.len()];
            let word = match at % 6 {
                0 => word_of(hint),
                1 => hint.line.word(),
                2 => hint.slot.place().word() + at / 8,
                3 => superblock::SEGMENT_TABLE + at % 8,
                4 => superblock::DIRECTORY_DEPTH,
                _ => SEGMENT_WORDS,
            };
            region.store(word, region.load(word) ^ bits >> shift);
        }
        let walk = walk(region);
        prop_assert!(walk.slots().count() as u64 == walk.report.keys);
    }
}
