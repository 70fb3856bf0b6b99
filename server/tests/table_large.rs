//! Large blocks: uploads by whoever sends them, and that all pages come back.

mod table_support;

use std::sync::Arc;

use kv_common::layout::{MARKER, PAGE_BYTES, PAGE_WORDS, Slot, pages_of};
use kv_common::limits::ANSWER_MAX_BYTES;
use kv_common::wire::{Condition, Malformed, Op, Refusal, Status, Value};
use kv_server::table::{CheckFinding, SlotFault, Table};
use table_support::{Client, Look, SESSION, VALUE_MAX_BYTES, config, look, pass, sweep, table};

const LARGE_BYTES: usize = 1_000_001;

fn value(fill: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| fill.wrapping_add((i % 249) as u8)).collect()
}

/// Nothing is in use: all large segments are free pages, in as few runs as there are stretches of them.
#[track_caller]
fn assert_all_free(table: &Table, client: &mut Client) {
    client.worker.idle();
    let report = table.check().expect("the table is sound");
    assert_eq!((report.keys, report.waiting_blocks, report.block_bytes), (0, 0, 0));
    assert_eq!(report.free_pages, report.large_segments * 32, "to the page");
}

fn counter(table: &Table, name: &str) -> u64 {
    use kv_common::layout::{COUNTER_NAMES, superblock};
    let index = COUNTER_NAMES.iter().position(|&other| other == name).unwrap();
    table.region().load(superblock::COUNTERS + index)
}

#[test]
fn values_of_any_size_are_stored_read_and_given_back() {
    let table = table(24, 1, None);
    let view = kv_common::check::view_of(table.region()).unwrap();
    let mut client = Client::new(&table, 0);
    for bytes in [327_653, 327_654, 400_000, LARGE_BYTES, (2 << 20) + 7, VALUE_MAX_BYTES] {
        for condition in [Condition::Always, Condition::Present] {
            let value = value(bytes as u8, bytes);
            let put = client.upload(condition, b"key", &value);
            if bytes <= 327_680 - 24 - 3 {
                assert_eq!(put.refusal(), Some(Refusal::Malformed { reason: Malformed::Length }));
                continue;
            }
            assert_eq!(put.status, Status::Done);
            let answer = client.get(b"key");
            assert!(answer.value == value && answer.version == put.version, "{bytes} bytes");
            let Look::Found { version, value: found } = look(table.region(), &view, b"key") else {
                panic!("{bytes} bytes are not found by reading")
            };
            assert!(version == put.version && found == value);
            table.check().expect("the table is sound");
        }
    }
    client.delete(b"key");
    assert_all_free(&table, &mut client);
}

#[test]
fn a_value_takes_its_pages_and_nothing_else() {
    let table = table(24, 1, None);
    let mut client = Client::new(&table, 0);
    for i in 0..9u8 {
        client.put(&[i], &value(i, LARGE_BYTES));
    }
    let report = table.check().expect("the table is sound");
    let pages = pages_of(24 + 1 + LARGE_BYTES);
    assert_eq!((pages, report.block_bytes), (16, 9 * 16 * PAGE_BYTES));
    assert_eq!((report.large_segments, report.free_pages), (5, 5 * 32 - 9 * 16));
}

#[test]
fn parts_that_nobody_awaits_or_that_do_not_fit_are_refused_and_leave_nothing() {
    let table = table(24, 1, None);
    let mut client = Client::new(&table, 0);
    let end =
        |client: &mut Client, key: &[u8]| client.write(Op::PutEnd, Condition::Always, key, &[]).refusal();
    assert_eq!(client.part(b"part").refusal(), Some(Refusal::NoUpload));
    assert_eq!(end(&mut client, b"key"), Some(Refusal::NoUpload));
    for huge in [VALUE_MAX_BYTES as u64 + 1, u64::MAX, 1 << 40] {
        let limit_bytes = VALUE_MAX_BYTES as u64;
        let refusal = Refusal::ValueTooLarge { found_bytes: huge, limit_bytes };
        assert_eq!(client.begin(b"key", huge).refusal(), Some(refusal));
        assert_eq!(client.part(b"part").refusal(), Some(Refusal::NoUpload));
    }
    // Too many bytes: the upload is over.
    assert_eq!(client.begin(b"key", LARGE_BYTES as u64).status, Status::Done);
    assert_eq!(client.part(&value(1, LARGE_BYTES - 5)).status, Status::Done);
    let announced_bytes = LARGE_BYTES as u64;
    let too_many = Refusal::UploadLength { announced_bytes, found_bytes: announced_bytes + 1 };
    assert_eq!(client.part(b"sixsix").refusal(), Some(too_many));
    assert_eq!(client.part(b"five!").refusal(), Some(Refusal::NoUpload));
    // Too few.
    client.begin(b"key", announced_bytes);
    client.part(&value(1, LARGE_BYTES - 5));
    let too_few = Refusal::UploadLength { announced_bytes, found_bytes: announced_bytes - 5 };
    assert_eq!(end(&mut client, b"key"), Some(too_few));
    assert_eq!(end(&mut client, b"key"), Some(Refusal::NoUpload));
    // Another key.
    client.begin(b"key", announced_bytes);
    client.part(&value(1, LARGE_BYTES));
    assert_eq!(end(&mut client, b"kez"), Some(Refusal::UploadKey));
    assert_eq!(end(&mut client, b"key"), Some(Refusal::NoUpload));
    // A part that is not what it says.
    client.begin(b"key", announced_bytes);
    let staging = kv_common::region::Words::zeroed(8);
    let staged = Value::Staged { offset_bytes: 0, len_bytes: 64, hash: 1 };
    let refused = client.request(Op::PutPart, Condition::Always, &[], staged, Some(&staging));
    assert!(matches!(refused.refusal(), Some(Refusal::StagedChanged { .. })));
    assert_eq!(client.part(b"part").refusal(), Some(Refusal::NoUpload));
    assert_eq!(client.get(b"key").status, Status::NotFound);
    assert_eq!(counter(&table, "uploads_abandoned"), counter(&table, "uploads"));
    assert_all_free(&table, &mut client);
    // After all that, one as it should be.
    assert_eq!(client.upload(Condition::Absent, b"key", &value(2, LARGE_BYTES)).status, Status::Done);
    assert!(client.get(b"key").value == value(2, LARGE_BYTES));
}

#[test]
fn an_upload_ends_with_its_session_or_the_next_one() {
    let table = table(24, 1, None);
    let mut client = Client::new(&table, 0);
    client.begin(b"one", LARGE_BYTES as u64);
    client.part(&value(1, 300_000));
    client.begin(b"two", LARGE_BYTES as u64);
    assert_eq!(counter(&table, "uploads_abandoned"), 1);
    client.part(&value(2, 700_000));
    let report = table.check().expect("what is coming is accounted for");
    assert_eq!((report.waiting_blocks, report.free_pages), (0, 32 - 16));
    client.worker.abandon(SESSION + 1);
    assert_eq!(client.part(&value(3, 1)).status, Status::Done, "another session's end");
    client.worker.abandon(SESSION);
    assert_eq!(counter(&table, "uploads_abandoned"), 2);
    assert_eq!(client.part(&value(3, 1)).refusal(), Some(Refusal::NoUpload));
    assert_all_free(&table, &mut client);
    client.begin(b"three", LARGE_BYTES as u64);
    drop(client);
    let mut client = Client::new(&table, 0);
    assert_all_free(&table, &mut client);
}

#[test]
fn an_unmet_condition_gives_the_pages_back() {
    let table = table(24, 1, None);
    let mut client = Client::new(&table, 0);
    client.put(b"key", b"small");
    let unmet = client.upload(Condition::Absent, b"key", &value(1, LARGE_BYTES));
    assert_eq!(unmet.status, Status::Unmet);
    assert_eq!(client.get(b"key").value, b"small");
    let report = table.check().expect("the table is sound");
    assert_eq!(report.free_pages, report.large_segments * 32);
    assert_eq!(counter(&table, "uploads_abandoned"), 0, "it was not given up");
}

#[test]
fn a_run_in_use_is_not_taken_again_before_it_was_deleted() {
    let table = table(10, 1, None);
    let mut client = Client::new(&table, 0);
    let mut stored = 0;
    let refusal = loop {
        match client.put(&[stored], &value(stored, LARGE_BYTES)).refusal() {
            None => stored += 1,
            Some(refusal) => break refusal,
        }
    };
    // Ten segments, three of them not for values: 7 x 32 pages.
    assert_eq!(stored, 14);
    assert_eq!(refusal, Refusal::NoRun { run_bytes: 16 * PAGE_BYTES, largest_bytes: 0 });
    // An update needs a run beside that of the old value.
    assert_eq!(client.put(&[0], &value(99, LARGE_BYTES)).refusal(), Some(refusal));
    assert!(matches!(client.put(b"small", b"").refusal(), Some(Refusal::RegionFull { .. })));
    client.delete(&[5]);
    assert_eq!(client.put(&[0], &value(99, LARGE_BYTES)).status, Status::Done);
    for i in (0..stored).filter(|&i| i != 5) {
        let fill = if i == 0 { 99 } else { i };
        assert!(client.get(&[i]).value == value(fill, LARGE_BYTES), "key {i}");
    }
    for i in 0..stored {
        client.delete(&[i]);
    }
    assert_all_free(&table, &mut client);
}

/// A place that was a block's start and is now inside another block's run leads to the server's words.
#[test]
fn every_page_start_is_the_servers() {
    let table = table(10, 1, None);
    let mut client = Client::new(&table, 0);
    let old: Vec<Slot> =
        (0..14u8).map(|i| client.put(&[i], &value(i, LARGE_BYTES)).hint.unwrap().slot).collect();
    for i in 0..14u8 {
        client.delete(&[i]);
    }
    client.worker.idle();
    // Runs of other lengths, whose values are as a forger would have them: a live word 0 at every aligned word.
    let forged = vec![1u8; VALUE_MAX_BYTES];
    for i in 0..4u8 {
        assert_eq!(client.put(&[i], &forged).status, Status::Done);
    }
    let starts: Vec<u64> =
        (0..4u8).map(|i| client.put(&[i], &forged).hint.map_or(0, |hint| hint.slot.place().0)).collect();
    for slot in old.iter().filter(|slot| !starts.contains(&slot.place().0)) {
        let word0 = table.region().load(slot.place().word());
        assert!(word0 >= MARKER, "{word0:#x} at {:?}", slot.place());
    }
    table.check().expect("the table is sound");
}

const SECOND_NS: u64 = 1_000_000_000;

/// How long the key lives, in ns; none if it has no end.
fn ttl_of(client: &mut Client, key: &[u8]) -> Option<u64> {
    let answer = client.write(Op::Ttl, Condition::Always, key, &[]);
    assert_eq!(answer.status, Status::Done);
    answer.value.try_into().ok().map(u64::from_le_bytes)
}

#[test]
fn large_values_end_wherever_the_end_lies_in_their_pages() {
    let table = table(24, 1, None);
    let view = kv_common::check::view_of(table.region()).unwrap();
    let mut client = Client::new(&table, 0);
    // The end begins up to 8 bytes before the end of a page's payload, at any byte of a word; and that of a block that its end
    // makes a large one.
    let page_end = 7 * 65_520 - 8 - 3;
    let limit = 327_680 - 24 - 3;
    for bytes in (page_end - 17..page_end + 2).chain(limit - 9..limit + 2) {
        let value = value(3, bytes);
        client.ttl_ns = Some(SECOND_NS);
        assert_eq!(client.put(b"key", &value).status, Status::Done);
        assert_eq!(ttl_of(&mut client, b"key"), Some(SECOND_NS), "{bytes} bytes");
        assert!(client.get(b"key").value == value);
        let found = look(table.region(), &view, b"key");
        assert!(matches!(found, Look::Found { value: found, .. } if found == value), "{bytes} bytes");
        table.check().expect("the table is sound");
        pass(SECOND_NS);
        assert_eq!(client.get(b"key").status, Status::NotFound);
        assert!(!matches!(look(table.region(), &view, b"key"), Look::Found { .. }));
        assert_eq!(client.delete(b"key").status, Status::NotFound);
    }
    sweep(&mut client.worker, &table);
    assert!(!table.has_expiring_keys());
    assert_all_free(&table, &mut client);
}

#[test]
fn large_values_are_touched_and_appended_to_with_their_end() {
    let table = table(24, 1, None);
    let mut client = Client::new(&table, 0);
    let mut expected = value(5, LARGE_BYTES);
    client.ttl_ns = Some(SECOND_NS);
    let put = client.put(b"key", &expected);
    // Another end, with the beginning of the value.
    client.ttl_ns = Some(9 * SECOND_NS);
    let touched = client.write(Op::GetAndTouch, Condition::Always, b"key", &[]);
    assert!(touched.version > put.version);
    assert_eq!((touched.value.len(), touched.total_bytes), (ANSWER_MAX_BYTES, LARGE_BYTES));
    assert!(touched.value == expected[..ANSWER_MAX_BYTES]);
    pass(2 * SECOND_NS);
    assert_eq!(ttl_of(&mut client, b"key"), Some(7 * SECOND_NS));
    // An append leaves it.
    expected.extend_from_slice(b"more");
    let appended = client.write(Op::Append, Condition::Version(touched.version), b"key", b"more");
    assert_eq!((appended.status, appended.total_bytes), (Status::Done, expected.len()));
    assert_eq!(ttl_of(&mut client, b"key"), Some(7 * SECOND_NS));
    // A condition that does not hold changes nothing.
    let unmet = client.write(Op::Touch, Condition::Version(put.version), b"key", &[]);
    assert_eq!((unmet.status, unmet.version), (Status::Unmet, appended.version));
    // No end.
    assert_eq!(client.write(Op::Touch, Condition::Present, b"key", &[]).status, Status::Done);
    assert_eq!(ttl_of(&mut client, b"key"), None);
    pass(20 * SECOND_NS);
    assert!(client.get(b"key").value == expected);
    // Over, so an append begins anew, and there is nothing to touch.
    client.ttl_ns = Some(1);
    client.write(Op::Touch, Condition::Always, b"key", &[]);
    pass(1);
    assert_eq!(client.write(Op::Touch, Condition::Always, b"key", &[]).status, Status::NotFound);
    let anew = client.write(Op::Append, Condition::Always, b"key", &value(1, 400_000));
    assert_eq!((anew.status, anew.total_bytes), (Status::Done, 400_000));
    assert_eq!(ttl_of(&mut client, b"key"), None);
    client.delete(b"key");
    assert_all_free(&table, &mut client);
}

#[test]
fn a_touch_moves_a_block_into_pages_and_out_of_them() {
    let table = table(24, 1, None);
    let mut client = Client::new(&table, 0);
    // With an end it is 3 bytes above the largest class.
    let value = value(7, 327_680 - 24 - 3 - 5);
    client.put(b"key", &value);
    assert_eq!(table.check().unwrap().large_segments, 0);
    client.ttl_ns = Some(SECOND_NS);
    let touched = client.write(Op::GetAndTouch, Condition::Always, b"key", &[]);
    assert!(touched.value == value);
    assert_eq!(table.check().unwrap().block_bytes, 6 * PAGE_BYTES);
    assert_eq!(ttl_of(&mut client, b"key"), Some(SECOND_NS));
    let touched = client.write(Op::GetAndTouch, Condition::Always, b"key", &[]);
    assert!(touched.value == value);
    assert_eq!(table.check().unwrap().block_bytes, 327_680);
    assert!(client.get(b"key").value == value);
}

#[test]
fn the_limit_that_the_server_was_given_holds_for_every_write() {
    let region = kv_common::region::Words::zeroed(10 * kv_common::layout::SEGMENT_WORDS);
    let limit = kv_server::table::TableConfig { value_max_bytes: 1000, ..config(1, None) };
    let table = Table::create(region, &limit).unwrap();
    let mut client = Client::new(&table, 0);
    let too_large = |found_bytes| Some(Refusal::ValueTooLarge { found_bytes, limit_bytes: 1000 });
    let append = |client: &mut Client, key: &[u8], bytes| {
        client.write(Op::Append, Condition::Always, key, &value(1, bytes)).refusal()
    };
    assert_eq!(client.put(b"key", &value(1, 1001)).refusal(), too_large(1001));
    assert_eq!(client.begin(b"key", 400_000).refusal(), too_large(400_000));
    assert_eq!(append(&mut client, b"key", 1001), too_large(1001));
    assert_eq!(append(&mut client, b"key", 600), None);
    assert_eq!(append(&mut client, b"key", 401), too_large(1001));
    assert_eq!(append(&mut client, b"key", 400), None);
    assert_eq!(client.put(b"key", &value(1, 1000)).refusal(), None);
    for found_bytes in [0, (1 << 30) + 1] {
        let region = kv_common::region::Words::zeroed(10 * kv_common::layout::SEGMENT_WORDS);
        let config = kv_server::table::TableConfig { value_max_bytes: found_bytes, ..config(1, None) };
        let refused = Table::create(region, &config).err();
        assert_eq!(refused, Some(kv_server::table::TableError::ValueMax { found_bytes }));
    }
}

fn large_table() -> (Arc<Table>, Slot) {
    let table = table(10, 1, None);
    let mut client = Client::new(&table, 0);
    let slot = client.put(b"key", &value(1, LARGE_BYTES)).hint.unwrap().slot;
    table.check().expect("the table is sound");
    (table, slot)
}

#[test]
fn damaged_pages_are_found() {
    let (table, slot) = large_table();
    let first = slot.place().word();
    let expect = |word: usize, damaged: u64, fault: SlotFault| {
        let sound = table.region().load(word);
        table.region().store(word, damaged);
        let findings = table.check().expect_err("the damage is found");
        let is_it = |finding: &CheckFinding| matches!(finding, CheckFinding::Slot { fault: found, .. } if *found == fault);
        assert!(findings.iter().any(is_it), "{findings:#?}");
        table.region().store(word, sound);
        table.check().expect("the table is sound again");
    };
    let load = |word| table.region().load(word);
    expect(first, load(first) | MARKER, SlotFault::NotLive);
    expect(first + 1, load(first + 1) ^ 1, SlotFault::Damaged);
    expect(first + 100, load(first + 100) ^ 1, SlotFault::Damaged);
    expect(first + 5 * PAGE_WORDS + 7, 0, SlotFault::Damaged);
    expect(first + 5 * PAGE_WORDS, 0, SlotFault::Marker { page: 5 });
    expect(first + 15 * PAGE_WORDS + 1, 17, SlotFault::Marker { page: 15 });
}
