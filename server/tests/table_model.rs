//! The table against a `HashMap`.

mod table_support;

use std::collections::HashMap;

use kv_common::limits::{KEY_MAX_BYTES, VALUE_MAX_BYTES};
use kv_common::wire::{Refusal, Status};
use proptest::prelude::*;
use table_support::{Client, table};

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        value_bytes: usize,
        fill: u8,
    },
    /// `is_stale`: with a version that the key does not have.
    CompareAndSet {
        key: u8,
        value_bytes: usize,
        fill: u8,
        is_stale: bool,
    },
    Delete {
        key: u8,
    },
    Get {
        key: u8,
    },
    Idle,
}

/// Mostly small values, and every size class from time to time.
fn value_bytes() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0usize..300,
        3 => 300usize..9000,
        2 => (13u32..20).prop_flat_map(|bits| 1usize << bits..2 << bits),
        1 => VALUE_MAX_BYTES - 2000..=VALUE_MAX_BYTES,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0u8..40;
    prop_oneof![
        6 => (key.clone(), value_bytes(), any::<u8>())
            .prop_map(|(key, value_bytes, fill)| Step::Put { key, value_bytes, fill }),
        3 => (key.clone(), value_bytes(), any::<u8>(), prop::bool::weighted(0.2))
            .prop_map(|(key, value_bytes, fill, is_stale)| Step::CompareAndSet { key, value_bytes, fill, is_stale }),
        3 => key.clone().prop_map(|key| Step::Delete { key }),
        3 => key.prop_map(|key| Step::Get { key }),
        1 => Just(Step::Idle),
    ]
}

/// Keys of very different lengths; every key but the first starts with a shorter one.
fn key_bytes(key: u8) -> Vec<u8> {
    let len = if key == 39 { KEY_MAX_BYTES } else { 1 + key as usize * 5 };
    let mut bytes = vec![b'k'; len];
    bytes[len - 1] = key;
    bytes
}

/// Bytes that differ at every position from those of another fill.
fn value(value_bytes: usize, fill: u8) -> Vec<u8> {
    (0..value_bytes).map(|i| fill.wrapping_add((i % 251) as u8)).collect()
}

/// Plays `steps` on a region of `segments`; returns how many were refused because it was full.
fn play(segments: usize, steps: &[Step]) -> usize {
    let table = table(segments, 1, None);
    let mut client = Client::new(&table, 0);
    let mut model: HashMap<u8, (u64, Vec<u8>)> = HashMap::new();
    let (mut last_version, mut refused) = (0, 0);
    for step in steps {
        match *step {
            Step::Put { key, value_bytes, fill } => {
                let value = value(value_bytes, fill);
                let answer = client.put(&key_bytes(key), &value);
                if let Some(refusal) = answer.refusal() {
                    assert!(matches!(refusal, Refusal::RegionFull { free_segments: 0, .. }), "{refusal}");
                    refused += 1;
                    continue;
                }
                assert_eq!(answer.status, Status::Done);
                assert!(answer.version > last_version, "versions rise");
                last_version = answer.version;
                model.insert(key, (answer.version, value));
            }
            Step::CompareAndSet { key, value_bytes, fill, is_stale } => {
                let current = model.get(&key).map(|(version, _)| *version);
                let expected = current.unwrap_or(1) + is_stale as u64;
                let value = value(value_bytes, fill);
                let answer = client.compare_and_set(&key_bytes(key), expected, &value);
                match (answer.status, current) {
                    (Status::Refused(Refusal::RegionFull { free_segments: 0, .. }), _) => refused += 1,
                    (Status::NotFound, None) => {}
                    (Status::VersionMismatch, Some(version)) if is_stale => {
                        assert_eq!(answer.version, version);
                    }
                    (Status::Done, Some(_)) if !is_stale => {
                        assert!(answer.version > last_version, "versions rise");
                        last_version = answer.version;
                        model.insert(key, (answer.version, value));
                    }
                    other => panic!("{other:?} for {step:?}"),
                }
            }
            Step::Delete { key } => {
                let status = if model.remove(&key).is_some() { Status::Done } else { Status::NotFound };
                assert_eq!(client.delete(&key_bytes(key)).status, status);
            }
            Step::Get { key } => {
                let answer = client.get(&key_bytes(key));
                match model.get(&key) {
                    None => assert_eq!(answer.status, Status::NotFound),
                    Some((version, value)) => {
                        assert_eq!((answer.status, answer.version), (Status::Done, *version));
                        assert!(answer.value == *value, "key {key}");
                    }
                }
            }
            Step::Idle => client.worker.idle(),
        }
    }
    for key in 0..40 {
        let answer = client.get(&key_bytes(key));
        let expected = model.get(&key);
        assert_eq!(answer.status == Status::Done, expected.is_some(), "key {key}");
        assert!(expected.is_none_or(|(_, value)| answer.value == *value), "key {key}");
    }
    table.check().expect("the table is sound");
    client.worker.idle();
    let report = table.check().expect("the table is sound");
    assert_eq!(report.keys, model.len() as u64);
    let data_bytes = |(&key, (_, value)): (&u8, &(u64, Vec<u8>))| key_bytes(key).len() + value.len();
    assert_eq!(report.data_bytes, model.iter().map(data_bytes).sum::<usize>() as u64);
    refused
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..Default::default() })]

    #[test]
    fn the_table_does_what_a_map_does(steps in prop::collection::vec(step(), 1..300)) {
        play(64, &steps);
    }

    #[test]
    fn a_region_that_is_often_full_loses_nothing(steps in prop::collection::vec(step(), 200..400)) {
        prop_assert!(play(16, &steps) > 0, "the region was meant to be too small");
    }
}
