//! Values whose blocks lie in pages.

use std::time::Duration;

use kv_client::{
    Appended, Client, Completion, Condition, Conditional, Error, Outcome, Refusal, TimeToLive, ValueRef,
};
use kv_common::limits::INLINE_VALUE_MAX_BYTES;

use crate::live::server::{Needs, Start};
use crate::live::{value_of, wait_for};

const KEY: &[u8] = b"a key";
/// Bytes of a block before the key; payload bytes of a page; the largest block in one piece, as the layout has them.
const BLOCK_HEADER_BYTES: usize = 24;
const PAGE_PAYLOAD_BYTES: usize = 65_520;
const SMALL_BLOCK_MAX_BYTES: usize = 320 << 10;
/// What a client lends the server unless told otherwise, and half of it.
const STAGING_BYTES: usize = 1_114_112;

/// Sizes around everything that has an end.
fn sizes() -> Vec<usize> {
    let pages = |pages: usize| pages * PAGE_PAYLOAD_BYTES - 8 - KEY.len();
    let ends = [
        INLINE_VALUE_MAX_BYTES,
        SMALL_BLOCK_MAX_BYTES - BLOCK_HEADER_BYTES - KEY.len(),
        pages(5),
        pages(6),
        // Where a READ of pages ends, and where the second one does.
        pages(9),
        pages(13),
        STAGING_BYTES / 2,
        STAGING_BYTES,
        1 << 20,
        (1 << 20) + (1 << 16),
        // Segments.
        pages(32),
        pages(33),
        5_000_000,
    ];
    ends.into_iter().flat_map(|end| [end - 1, end, end + 1]).collect()
}

fn assert_value(client: &mut Client, key: &[u8], value: &[u8]) {
    let found = client.get(key).unwrap().unwrap().bytes;
    assert!(found == value, "{} bytes found, {} put; or they differ", found.len(), value.len());
}

pub(crate) fn values_around_every_limit(start: Start) {
    let server = start(Needs { memory: "96MiB", workers: 2, ..Needs::default() });
    let (mut writer, mut reader) = (server.connect(), server.connect());
    let mut buffer = reader.register(5_000_001).unwrap();
    for (i, size) in sizes().into_iter().enumerate() {
        let value = value_of(i as u64, size);
        let version = writer.put(KEY, &value).unwrap();
        assert_value(&mut reader, KEY, &value);
        assert_value(&mut writer, KEY, &value);
        let mut vec = vec![1];
        assert_eq!(reader.get_to_vec(KEY, &mut vec), Ok(Some(version)));
        assert!(vec == value);
        let found = reader.get_into(KEY, &mut buffer).unwrap();
        assert!(found == Some(ValueRef { bytes: &value, version }));
        assert_eq!(reader.get_with(KEY, |bytes, _| bytes == value), Ok(Some(true)));
    }
    let stats = reader.stats();
    assert!(stats.large_values > 0 && stats.asked_server == 0, "{stats:?}");
    assert_eq!(stats.hits, stats.gets);
    // Everything comes back: the largest value fits again as often as before.
    writer.delete(KEY).unwrap();
    for round in 0..3 {
        let value = value_of(round, 48 << 20);
        writer.put(KEY, &value).unwrap();
        assert_value(&mut reader, KEY, &value);
        assert_eq!(writer.delete(KEY), Ok(true));
    }
}

pub(crate) fn the_largest_value_of_the_default(start: Start) {
    let server = start(Needs { memory: "160MiB", ..Needs::default() });
    let (mut writer, mut reader) = (server.connect(), server.connect());
    let mut value = value_of(1, 64 << 20);
    for i in 0..2u8 {
        value[1000] = i;
        let version = writer.put(KEY, &value).unwrap();
        let found = reader.get(KEY).unwrap().unwrap();
        assert!(found.bytes == value && found.version == version);
    }
    let (found_bytes, limit_bytes) = (value.len() + 1, value.len());
    value.push(0);
    assert_eq!(writer.put(KEY, &value), Err(Error::ValueTooLarge { found_bytes, limit_bytes }));
}

pub(crate) fn large_values_under_conditions(start: Start) {
    let server = start(Needs { memory: "64MiB", ..Needs::default() });
    let (mut client, mut other) = (server.connect(), server.connect());
    let value = |i| value_of(i, 1_500_000);
    assert_eq!(client.put_with(KEY, &value(1), Condition::Present), Ok(Conditional::NotFound));
    assert_eq!(other.get(KEY), Ok(None));
    let first = client.put_with(KEY, &value(2), Condition::Absent).unwrap().done().unwrap();
    assert_eq!(other.put_with(KEY, &value(3), Condition::Absent), Ok(Conditional::Mismatch(first)));
    assert_value(&mut other, KEY, &value(2));
    let second = other.compare_and_set(KEY, first, &value(4)).unwrap().done().unwrap();
    assert!(second > first);
    assert_eq!(client.compare_and_set(KEY, first, &value(5)), Ok(Conditional::Mismatch(second)));
    assert_value(&mut client, KEY, &value(4));
    assert_eq!(client.add(KEY, 1), Err(Error::Refused(Refusal::NotACounter { found_bytes: 1_500_000 })));
    // From large to small and back.
    client.put(KEY, b"small").unwrap();
    assert_value(&mut other, KEY, b"small");
    client.put(KEY, &value(6)).unwrap();
    assert_value(&mut other, KEY, &value(6));
    let third = other.get(KEY).unwrap().unwrap().version;
    assert!(matches!(client.delete_if(KEY, Condition::Version(third)), Ok(Conditional::Done(_))));
    assert_eq!(other.get(KEY), Ok(None));
}

pub(crate) fn appends_to_large_values(start: Start) {
    let server = start(Needs { memory: "96MiB", max_value: "4MiB", ..Needs::default() });
    let (mut client, mut other) = (server.connect(), server.connect());
    let mut whole = Vec::new();
    for (i, size) in [10, 300_000, 27_655, 1, 100_000, STAGING_BYTES, 0, 9, 600_000].into_iter().enumerate() {
        let part = value_of(i as u64, size);
        whole.extend_from_slice(&part);
        let Appended { value_bytes, version } = client.append(b"log", &part).unwrap();
        assert_eq!(value_bytes, whole.len());
        let found = other.get(b"log").unwrap().unwrap();
        assert!(found.bytes == whole && found.version == version, "{value_bytes} bytes");
    }
    let limit_bytes = 4u64 << 20;
    while whole.len() < limit_bytes as usize - 1_000_000 {
        let part = value_of(whole.len() as u64, 900_000);
        whole.extend_from_slice(&part);
        client.append(b"log", &part).unwrap();
    }
    let found_bytes = whole.len() as u64 + 1_100_000;
    let refusal = Refusal::ValueTooLarge { found_bytes, limit_bytes };
    assert_eq!(client.append(b"log", &value_of(1, 1_100_000)), Err(Error::Refused(refusal)));
    assert_value(&mut other, b"log", &whole);
    let too_much = Error::ValueTooLarge { found_bytes: STAGING_BYTES + 1, limit_bytes: STAGING_BYTES };
    assert_eq!(client.append(b"log", &vec![0; STAGING_BYTES + 1]), Err(too_much));
}

pub(crate) fn many_large_values_at_once(start: Start) {
    let server = start(Needs { memory: "128MiB", workers: 2, ..Needs::default() });
    let (mut writer, mut reader) = (server.connect(), server.connect());
    // Uploads, staged and inline values between each other, and GETs behind them.
    let size = |i: usize| [700_000, 3, 400_000, 20_000, 2_000_000][i % 5] + i;
    let key = |i: usize| [b'k', i as u8];
    for i in 0..40 {
        writer.submit_put(&key(i), &value_of(i as u64, size(i))).unwrap();
        if i % 7 == 0 {
            writer.submit_get(&key(i)).unwrap();
        }
    }
    let mut gets = 0;
    while let Some(Completion { outcome, .. }) = writer.wait().unwrap() {
        match outcome {
            Outcome::Put(Ok(_)) => {}
            Outcome::Get(Ok(Some(value))) => {
                gets += 1;
                assert!((0..40).any(|of| value.bytes == value_of(of, size(of as usize))));
            }
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(gets, 6);
    let names: Vec<[u8; 2]> = (0..40).map(key).collect();
    for _ in 0..2 {
        for (i, found) in reader.multi_get(&names).into_iter().enumerate() {
            assert!(found.unwrap().unwrap().bytes == value_of(i as u64, size(i)), "key {i}");
        }
    }
}

pub(crate) fn readers_of_large_values_under_fire(start: Start) {
    let server = start(Needs { memory: "64MiB", workers: 2, ..Needs::default() });
    const ROUNDS: u64 = 60;
    let size = |i: u64| 400_000 + (i % 5) as usize * 200_000;
    let mut writer = server.connect();
    writer.put(KEY, &numbered(0, size(0))).unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut reader = server.connect();
                scope.spawn(move || {
                    let mut last = 0;
                    while last < ROUNDS {
                        let value = reader.get(KEY).unwrap().unwrap();
                        let i = u64::from_le_bytes(*value.bytes.first_chunk().unwrap());
                        assert!(i >= last, "{i} after {last}");
                        assert!(value.bytes == numbered(i, size(i)), "value {i}");
                        last = i;
                    }
                    reader.stats()
                })
            })
            .collect();
        for i in 0..=ROUNDS {
            writer.put(KEY, &numbered(i, size(i))).unwrap();
        }
        for reader in readers {
            let stats = reader.join().unwrap();
            assert_eq!(stats.hits, stats.gets);
        }
    });
}

/// A value that begins with its number.
fn numbered(i: u64, size: usize) -> Vec<u8> {
    let mut value = value_of(i, size);
    value[..8].copy_from_slice(&i.to_le_bytes());
    value
}

pub(crate) fn large_values_end_and_are_touched(start: Start) {
    const SIZE: usize = 3_000_000;
    let (soon, late) = (Duration::from_millis(300), Duration::from_secs(3600));
    let server = start(Needs { memory: "96MiB", workers: 2, ..Needs::default() });
    let (mut client, mut other) = (server.connect(), server.connect());
    let value = value_of(1, SIZE);
    // By upload, and by a message with a staged value.
    for (key, size) in [(b"one", SIZE), (b"two", 400_000)] {
        let put = client.put_with(key, &value[..size], late);
        assert!(matches!(put, Ok(Conditional::Done(_))), "{put:?}");
        assert_value(&mut other, key, &value[..size]);
        assert!(matches!(client.ttl(key), Ok(TimeToLive::Left(left)) if left <= late));
        assert!(client.get_and_touch(key, None).unwrap().unwrap().bytes == value[..size]);
        assert_eq!(client.ttl(key), Ok(TimeToLive::Forever));
        assert!(matches!(client.touch(key, Some(soon)), Ok(Conditional::Done(_))));
    }
    for key in [b"one", b"two"] {
        wait_for("the end of a value", || other.get(key).unwrap().is_none().then_some(()));
        assert_eq!(client.ttl(key), Ok(TimeToLive::Absent));
        assert_eq!(client.get_and_touch(key, None), Ok(None));
    }
    wait_for("the background", || (client.server_stat().unwrap().counters["keys"] == 0).then_some(()));
}

pub(crate) fn a_region_without_a_long_run_says_so(start: Start) {
    let server = start(Needs { memory: "32MiB", ..Needs::default() });
    let mut client = server.connect();
    // 16 segments: superblock, directory, one of index; 13 of 2 MiB are left.
    let refused = client.put(KEY, &value_of(1, 30 << 20));
    let Err(Error::Refused(Refusal::NoRun { run_bytes, largest_bytes })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!((run_bytes, largest_bytes), (481 * 65_536, 13 << 21));
    assert!(refused.unwrap_err().to_string().contains("region full"));
    for i in 0..13u8 {
        client.put(&[i], &value_of(u64::from(i), 2_000_000)).unwrap();
    }
    for i in (0..13u8).step_by(2) {
        client.delete(&[i]).unwrap();
    }
    // Seven runs of 31 pages are free, and the 13 pages that the others left; that is not enough for 62 in one piece.
    let refused = client.put(KEY, &value_of(1, 4_000_000));
    let Err(Error::Refused(Refusal::NoRun { largest_bytes, .. })) = refused else { panic!("{refused:?}") };
    assert!((31 << 16..=44 << 16).contains(&largest_bytes), "{largest_bytes}");
    for i in (1..13u8).step_by(2) {
        assert_value(&mut client, &[i], &value_of(u64::from(i), 2_000_000));
        client.delete(&[i]).unwrap();
    }
    // One run again.
    let value = value_of(2, 25 << 20);
    client.put(KEY, &value).unwrap();
    assert_value(&mut client, KEY, &value);
}
