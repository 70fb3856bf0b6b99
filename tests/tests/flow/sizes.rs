//! Values of all sizes.

use kv_client::{Client, Error};
use kv_common::limits::{INLINE_VALUE_MAX_BYTES, REPLY_CHUNK_BYTES};

use crate::live::server::{Needs, Start};
use crate::live::value_of;

/// Bytes of a block before the key, as the layout has it.
const BLOCK_HEADER_BYTES: usize = 24;
const KEY_BYTES: usize = 8;
/// The largest value here.
const LARGEST_BYTES: usize = 1 << 20;

/// Block sizes: steps of 16 bytes up to 256, then eight steps per doubling.
fn classes() -> Vec<usize> {
    let small = (1..=16).map(|step| step * 16);
    let large = (8..=20).map(|power| 1_usize << power);
    small.chain(large.flat_map(|base| (1..=8).map(move |step| base + base / 8 * step))).collect()
}

/// The value whose block just fills its class, one byte more, and one less, for every class.
fn boundary_sizes() -> Vec<usize> {
    let overhead = BLOCK_HEADER_BYTES + KEY_BYTES;
    let filled = classes().into_iter().filter(|&class| class > overhead).map(|class| class - overhead);
    let mut sizes: Vec<usize> = filled.flat_map(|size| [size - 1, size, size + 1]).collect();
    sizes.retain(|&size| size <= LARGEST_BYTES);
    sizes.extend([0, 1, 7, 8, 9, LARGEST_BYTES - 1, LARGEST_BYTES]);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn key_of(size: usize) -> [u8; KEY_BYTES] {
    (size as u64).to_le_bytes()
}

fn assert_value(client: &mut Client, key: &[u8], value: &[u8]) {
    let found = client.get(key).unwrap().unwrap().bytes;
    assert!(found == value, "{} bytes found, {} put; or they differ", found.len(), value.len());
}

pub(crate) fn values_of_every_class(start: Start) {
    // Each class takes a segment of its own, and the largest as many as there are values.
    let server = start(Needs { memory: "320MiB", ..Needs::default() });
    let (mut writer, mut reader) = (server.connect(), server.connect());
    let sizes = boundary_sizes();
    assert!(sizes.len() > 300 && sizes.contains(&LARGEST_BYTES));
    for (i, &size) in sizes.iter().enumerate() {
        let value = value_of(i as u64, size);
        writer.put(&key_of(size), &value).unwrap();
        // One key that grows through all classes.
        writer.put(b"growing ", &value).unwrap();
        assert_value(&mut reader, b"growing ", &value);
    }
    for &size in sizes.iter().rev() {
        writer.put(b"growing ", &value_of(1, size)).unwrap();
        assert_value(&mut reader, b"growing ", &value_of(1, size));
    }
    for (i, &size) in sizes.iter().enumerate() {
        assert_value(&mut reader, &key_of(size), &value_of(i as u64, size));
    }
    let stats = reader.stats();
    assert_eq!(stats.hits, stats.gets);
}

pub(crate) fn values_at_the_limits_of_messages(start: Start) {
    let server = start(Needs { memory: "64MiB", ..Needs::default() });
    let (mut writer, mut reader) = (server.connect(), server.connect());
    let around = |size: usize| [size - 1, size, size + 1];
    let sizes = [INLINE_VALUE_MAX_BYTES, REPLY_CHUNK_BYTES, 2 * REPLY_CHUNK_BYTES, 64 << 10].map(around);
    for &size in sizes.as_flattened() {
        // The longest key: the largest messages there are.
        for key in [vec![b'k'; 1], vec![b'k'; 1024]] {
            let version = writer.put(&key, &value_of(size as u64, size)).unwrap();
            assert_value(&mut reader, &key, &value_of(size as u64, size));
            writer.compare_and_set(&key, version, &value_of(1, size)).unwrap();
            assert_value(&mut reader, &key, &value_of(1, size));
        }
    }
    // Many of them under way at once, those that need the staging area between those that do not.
    let sizes: Vec<usize> = sizes.as_flattened().iter().copied().cycle().take(200).collect();
    for (i, &size) in sizes.iter().enumerate() {
        writer.submit_put(&[b's', i as u8], &value_of(i as u64, size)).unwrap();
    }
    while writer.wait().unwrap().is_some() {}
    for (i, &size) in sizes.iter().enumerate() {
        assert_value(&mut reader, &[b's', i as u8], &value_of(i as u64, size));
    }
}

pub(crate) fn values_beyond_the_limit_are_refused(start: Start) {
    let server = start(Needs { memory: "32MiB", max_value: "1MiB", ..Needs::default() });
    let mut client = server.connect();
    assert_eq!(client.value_max_bytes(), LARGEST_BYTES);
    let version = client.put(b"key", b"value").unwrap();
    for found_bytes in [LARGEST_BYTES + 1, 3 * LARGEST_BYTES] {
        let value = vec![7; found_bytes];
        let error = Error::ValueTooLarge { found_bytes, limit_bytes: LARGEST_BYTES };
        assert_eq!(client.put(b"key", &value), Err(error.clone()));
        assert_eq!(client.compare_and_set(b"key", version, &value), Err(error.clone()));
        assert_eq!(client.submit_put(b"key", &value), Err(error.clone()));
        assert_eq!(client.submit_compare_and_set(b"key", version, &value), Err(error));
    }
    assert_eq!(client.pending(), 0);
    assert_value(&mut client, b"key", b"value");
    client.put(b"key", &value_of(1, LARGEST_BYTES)).unwrap();
    assert_value(&mut client, b"key", &value_of(1, LARGEST_BYTES));
}
