//! The table against a `HashMap`.

mod table_support;

use std::collections::HashMap;

use kv_common::limits::KEY_MAX_BYTES;
use kv_common::wire::{Condition, Op, Refusal, Status};
use proptest::prelude::*;
use table_support::{Answer, Client, VALUE_MAX_BYTES, table};

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        value_bytes: usize,
        fill: u8,
    },
    /// A write under any condition.
    If {
        key: u8,
        change: Change,
        condition: If,
    },
    Delete {
        key: u8,
    },
    Get {
        key: u8,
    },
    Idle,
}

#[derive(Clone, Debug)]
enum Change {
    Put(usize, u8),
    Delete,
    Append(usize, u8),
    Add(i64),
}

/// Conditions, before it is known which version the key has.
#[derive(Clone, Copy, Debug)]
enum If {
    Always,
    Absent,
    Present,
    Version,
    StaleVersion,
}

fn change() -> impl Strategy<Value = Change> {
    let delta = prop_oneof![-1000i64..1000, Just(i64::MAX), Just(i64::MIN)];
    prop_oneof![
        1 => (value_bytes(), any::<u8>()).prop_map(|(bytes, fill)| Change::Put(bytes, fill)),
        1 => Just(Change::Delete),
        1 => (value_bytes(), any::<u8>()).prop_map(|(bytes, fill)| Change::Append(bytes, fill)),
        3 => delta.prop_map(Change::Add),
    ]
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
        8 => (key.clone(), change(), prop::sample::select(vec![If::Always, If::Absent, If::Present, If::Version, If::StaleVersion]))
            .prop_map(|(key, change, condition)| Step::If { key, change, condition }),
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

/// What a change makes of a value: the new one, or none; or how it is refused. Numbers are those of the standard library.
fn expected_of(change: &Change, old: Option<&[u8]>) -> Result<Option<Vec<u8>>, Refusal> {
    match *change {
        Change::Put(bytes, fill) => Ok(Some(value(bytes, fill))),
        Change::Delete => Ok(None),
        Change::Append(bytes, fill) => {
            let whole = [old.unwrap_or(&[]), &value(bytes, fill)].concat();
            let (found_bytes, limit_bytes) = (whole.len() as u64, VALUE_MAX_BYTES as u64);
            if found_bytes > limit_bytes {
                return Err(Refusal::ValueTooLarge { found_bytes, limit_bytes });
            }
            Ok(Some(whole))
        }
        Change::Add(delta) => {
            let number = |old: &[u8]| {
                let number: i64 = std::str::from_utf8(old).ok()?.parse().ok()?;
                (number.to_string().as_bytes() == old).then_some(number)
            };
            let found_bytes = old.map_or(0, <[u8]>::len) as u64;
            let value = old.map_or(Some(0), number).ok_or(Refusal::NotACounter { found_bytes })?;
            let sum = value.checked_add(delta).ok_or(Refusal::CounterOverflow { value, delta })?;
            Ok(Some(sum.to_string().into_bytes()))
        }
    }
}

/// Refused for want of room, and rightly: no segment is free, or no run is long enough.
fn is_full(refusal: Refusal) -> bool {
    match refusal {
        Refusal::RegionFull { free_segments, .. } => free_segments == 0,
        Refusal::NoRun { run_bytes, largest_bytes } => run_bytes > largest_bytes,
        _ => false,
    }
}

fn send(client: &mut Client, key: &[u8], change: &Change, condition: Condition) -> Answer {
    match *change {
        Change::Put(bytes, fill) => client.write(Op::Put, condition, key, &value(bytes, fill)),
        Change::Delete => client.write(Op::Delete, condition, key, &[]),
        Change::Append(bytes, fill) => client.write(Op::Append, condition, key, &value(bytes, fill)),
        Change::Add(delta) => client.write(Op::Add, condition, key, &delta.to_le_bytes()),
    }
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
                    assert!(is_full(refusal), "{refusal}");
                    refused += 1;
                    continue;
                }
                assert_eq!(answer.status, Status::Done);
                assert!(answer.version > last_version, "versions rise");
                last_version = answer.version;
                model.insert(key, (answer.version, value));
            }
            Step::If { key, ref change, condition } => {
                let current = model.get(&key).map(|(version, _)| *version);
                let (condition, is_met) = match condition {
                    If::Always => (Condition::Always, true),
                    If::Absent => (Condition::Absent, current.is_none()),
                    If::Present => (Condition::Present, current.is_some()),
                    If::Version => (Condition::Version(current.unwrap_or(1)), current.is_some()),
                    If::StaleVersion => (Condition::Version(current.unwrap_or(1) + 1), false),
                };
                let old = model.get(&key).map(|(_, value)| &value[..]);
                let expected = expected_of(change, old);
                let answer = send(&mut client, &key_bytes(key), change, condition);
                match (answer.refusal(), expected) {
                    (Some(refusal), _) if is_full(refusal) => refused += 1,
                    _ if !is_met => {
                        let (status, version) = match current {
                            Some(version) => (Status::Unmet, version),
                            None => (Status::NotFound, 0),
                        };
                        assert_eq!((answer.status, answer.version), (status, version), "{step:?}");
                    }
                    (Some(refusal), Err(expected)) => assert_eq!(refusal, expected, "{step:?}"),
                    (None, Ok(Some(value))) => {
                        assert_eq!(answer.status, Status::Done, "{step:?}");
                        assert!(answer.version > last_version, "versions rise");
                        last_version = answer.version;
                        if matches!(change, Change::Add(_)) {
                            assert_eq!(answer.value, value, "the answer is the sum");
                        }
                        model.insert(key, (answer.version, value));
                    }
                    (None, Ok(None)) => {
                        let status =
                            if model.remove(&key).is_some() { Status::Done } else { Status::NotFound };
                        assert_eq!(answer.status, status, "{step:?}");
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
    assert_eq!((report.keys, report.waiting_blocks), (model.len() as u64, 0));
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
