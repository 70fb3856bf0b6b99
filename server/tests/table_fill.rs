//! The table when it is full: of keys, of values, of keys that share a home.

mod table_support;

use kv_common::layout::{LINE_SLOTS, SEGMENT_LINES, Span};
use kv_common::limits::OVERFLOW_CHAIN_MAX;
use kv_common::wire::{Refusal, Status};
use table_support::{Client, config, keys_of_one_home, table};

/// Three quarters of all slots of an index segment.
const SEGMENT_KEYS: u64 = SEGMENT_LINES * LINE_SLOTS as u64 * 3 / 4;
/// Keys that it takes before inserts see to its split themselves.
const SEGMENT_KEYS_UNSPLIT: u64 = SEGMENT_LINES * LINE_SLOTS as u64 * 60 / 100;
/// Keys that an index segment is planned for.
const SEGMENT_KEYS_PLANNED: u64 = SEGMENT_LINES * LINE_SLOTS as u64 * 58 / 100;

fn key(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

#[test]
fn three_fifths_of_all_slots_fill_without_a_split_and_come_back() {
    for index_segments in [1, 4] {
        let keys = SEGMENT_KEYS_UNSPLIT * index_segments;
        let planned = SEGMENT_KEYS_PLANNED * index_segments;
        let table = table(4 + 4 * index_segments as usize, 1, Some(planned));
        assert_eq!(table.index_segments(), index_segments);
        let mut client = Client::new(&table, 0);
        let mut free_segments = None;
        for round in 0..2 {
            for i in 0..keys {
                assert_eq!(client.put(&key(i), b"").status, Status::Done, "key {i} of {keys}");
            }
            let report = table.check().expect("the table is sound");
            println!(
                "{keys} keys, {index_segments} index segments: {:.2} bytes of index per key, {:.4} index READs per lookup, \
                 {:.2} % of the keys in {} overflow lines",
                report.index_bytes_per_key(),
                report.index_reads_per_lookup(),
                report.overflow_keys as f64 / report.keys as f64 * 100.0,
                report.overflow_lines,
            );
            assert_eq!((report.keys, report.index_segments), (keys, index_segments), "nobody splits");
            assert!(report.index_bytes_per_key() <= 15.3);
            assert!(report.index_reads_per_lookup() <= 1.02);
            assert_eq!(
                *free_segments.get_or_insert(report.free_segments),
                report.free_segments,
                "round {round}"
            );
            for i in 0..keys {
                assert_eq!(client.delete(&key(i)).status, Status::Done);
            }
            client.worker.idle();
            let report = table.check().expect("the table is sound");
            let left = (report.keys, report.overflow_lines, report.block_bytes, report.waiting_blocks);
            assert_eq!(left, (0, 0, 0, 0));
        }
    }
}

#[test]
fn a_full_index_segment_refuses_new_keys_and_keeps_the_others() {
    let table = table(8, 1, Some(1));
    let mut client = Client::new(&table, 0);
    // Values and index share the free segments; when the index wants one, there is none left.
    for name in [b"one", b"two"] {
        assert_eq!(client.put(name, &vec![0; 1 << 20]).status, Status::Done);
    }
    let mut inserted = 0;
    let refusal = loop {
        match client.put(&key(inserted), b"").refusal() {
            None => inserted += 1,
            Some(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, Refusal::IndexFull { index_segments: 1 });
    assert!(inserted > SEGMENT_KEYS, "{inserted} keys are less than three quarters");
    assert_eq!(client.get(&key(inserted)).status, Status::NotFound);
    let report = table.check().expect("the table is sound");
    assert_eq!((report.keys, report.free_segments), (inserted + 2, 0));
    for i in 0..inserted {
        assert_eq!(client.get(&key(i)).status, Status::Done, "key {i} of {inserted}");
    }
    assert_eq!(client.put(&key(0), b"").status, Status::Done, "updates need no new slot");
    assert_eq!(client.delete(&key(1)).status, Status::Done);
    assert_eq!(client.put(&key(1), b"").status, Status::Done, "the slot it had is free");
}

#[test]
fn chosen_keys_fill_their_home_and_nothing_else() {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    let capacity = LINE_SLOTS * (2 + OVERFLOW_CHAIN_MAX);
    let keys = keys_of_one_home(capacity + 1);
    let (one_too_many, keys) = keys.split_last().unwrap();
    for key in keys {
        assert_eq!(client.put(key, key).status, Status::Done);
    }
    let full = Refusal::HomeFull { chain_lines: OVERFLOW_CHAIN_MAX as u64 };
    assert_eq!(client.put(one_too_many, b"").refusal(), Some(full));
    let report = table.check().expect("the table is sound");
    assert_eq!((report.keys, report.overflow_lines), (capacity as u64, OVERFLOW_CHAIN_MAX as u64));

    // Every third goes: lines in the middle of the chain stay, whether empty or not, and their slots are used again.
    for chunk in keys.chunks(3) {
        assert_eq!(client.delete(&chunk[0]).status, Status::Done);
        table.check().expect("the table is sound");
    }
    for key in keys.chunks(3).map(|chunk| &chunk[0]) {
        assert_eq!(client.put(key, b"again").status, Status::Done);
    }
    assert_eq!(client.put(one_too_many, b"").refusal(), Some(full));
    for chunk in keys.chunks(3) {
        assert_eq!(client.get(&chunk[0]).value, b"again");
        assert!(chunk[1..].iter().all(|key| client.get(key).value == key));
    }
    for key in keys {
        assert_eq!(client.delete(key).status, Status::Done);
    }
    client.worker.idle();
    let report = table.check().expect("the table is sound");
    assert_eq!((report.keys, report.overflow_lines, report.waiting_blocks), (0, 0, 0));
}

#[test]
fn keys_stay_in_their_slots_while_their_neighbours_come_and_go() {
    let table = table(64, 1, Some(1));
    let mut client = Client::new(&table, 0);
    let keys = keys_of_one_home(LINE_SLOTS * 6);
    let mut hints = Vec::new();
    for key in &keys {
        hints.push(client.put(key, b"one").hint.expect("writes say where the key is"));
    }
    for (gone, _) in keys.iter().enumerate().filter(|(i, _)| i % 2 == 0) {
        let hint = client.delete(&keys[gone]).hint.expect("deletes say where the key was");
        assert_eq!((hint.line, hint.slot_index), (hints[gone].line, hints[gone].slot_index));
        assert!(hint.slot.is_empty());
        for (key, hint) in keys.iter().zip(&hints).skip(1).step_by(2) {
            let word = hint.line.word() + 1 + hint.slot_index as usize;
            let update = client.put(key, &vec![b'x'; gone * 40]).hint.expect("writes say where the key is");
            assert_eq!((update.line, update.slot_index), (hint.line, hint.slot_index), "a present key moved");
            assert_eq!(table.region().load(word), update.slot.0);
        }
    }
    table.check().expect("the table is sound");
}

#[test]
fn a_full_region_leaves_everything_readable() {
    let table = table(8, 1, None);
    let mut client = Client::new(&table, 0);
    // Six fit into a segment.
    let value = |i: u64| vec![i as u8; 300_000];
    let mut inserted = 0;
    let refusal = loop {
        match client.put(&key(inserted), &value(inserted)).refusal() {
            None => inserted += 1,
            Some(refusal) => break refusal,
        }
    };
    let block_bytes = Span::of_bytes(24 + 8 + 300_000).bytes();
    assert_eq!(refusal, Refusal::RegionFull { block_bytes, free_segments: 0 });
    assert_eq!(inserted, 5 * 6, "six blocks of 320 KiB take one of the five segments");
    // A large update needs a second block, which is not there; the old value stays.
    assert_eq!(client.put(&key(0), &value(99)).refusal(), Some(refusal));
    assert_eq!(client.compare_and_set(&key(0), 1, &value(99)).refusal(), Some(refusal));
    assert!(matches!(client.put(b"small", b"").refusal(), Some(Refusal::RegionFull { .. })));
    for i in 0..inserted {
        assert!(client.get(&key(i)).value == value(i), "key {i}");
    }
    table.check().expect("the table is sound");
    // The block of a deleted key is found by the next write without anybody having been idle.
    assert_eq!(client.delete(&key(3)).status, Status::Done);
    assert_eq!(client.put(&key(0), &value(99)).status, Status::Done);
    assert!(client.get(&key(0)).value == value(99));
    table.check().expect("the table is sound");
}

#[test]
fn an_index_that_leaves_no_room_for_values_is_refused() {
    use kv_common::{layout::SEGMENT_WORDS, region::Words};
    use kv_server::table::{Table, TableError};
    let create = |segments: usize, keys| {
        let config = config(1, Some(keys));
        Table::create(Words::zeroed(segments * SEGMENT_WORDS), &config).map(|table| table.index_segments())
    };
    assert_eq!(create(8, 4 * SEGMENT_KEYS_PLANNED), Ok(4));
    let expected_keys = 4 * SEGMENT_KEYS_PLANNED + 4;
    let too_large = TableError::IndexTooLarge { expected_keys, index_segments: 8, segments: 8 };
    assert_eq!(create(8, expected_keys), Err(too_large));
    assert!(matches!(create(8, u64::MAX), Err(TableError::IndexTooLarge { .. })));
    assert!(matches!(create(7, 1), Err(TableError::RegionSize { .. })));
    let region = Words::zeroed(8 * SEGMENT_WORDS);
    Table::create(region.clone(), &config(1, None)).expect("a new region");
    assert!(matches!(Table::create(region, &config(1, None)), Err(TableError::NotZeroed { .. })));
    for workers in [0, kv_common::limits::WORKERS_MAX + 1] {
        let refused = Table::create(Words::zeroed(8 * SEGMENT_WORDS), &config(workers, None));
        assert_eq!(refused.err(), Some(TableError::Workers { found: workers }));
    }
}
