//! The table against a `HashMap`.

mod table_support;

use std::collections::HashMap;

use kv_common::limits::{ANSWER_MAX_BYTES, KEY_MAX_BYTES, TTL_MAX_NS};
use kv_common::wire::{Condition, Op, Refusal, Status};
use proptest::prelude::*;
use table_support::{Answer, Client, VALUE_MAX_BYTES, clock_ns, pass, sweep, table};

const DAY_NS: u64 = 86_400_000_000_000;

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
    /// How long it lives.
    Ttl {
        key: u8,
    },
    /// Time goes by.
    Pass {
        ms: u64,
    },
    /// A part of the sweep for keys whose time is over.
    Sweep,
    Idle,
}

#[derive(Clone, Debug)]
enum Change {
    Put(usize, u8),
    PutFor(usize, u8, u64),
    Touch(Option<u64>),
    GetAndTouch(Option<u64>),
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
        2 => (value_bytes(), any::<u8>(), ttl_ns()).prop_map(|(bytes, fill, ttl_ns)| Change::PutFor(bytes, fill, ttl_ns)),
        1 => prop::option::of(ttl_ns()).prop_map(Change::Touch),
        1 => prop::option::of(ttl_ns()).prop_map(Change::GetAndTouch),
        1 => Just(Change::Delete),
        1 => (value_bytes(), any::<u8>()).prop_map(|(bytes, fill)| Change::Append(bytes, fill)),
        3 => delta.prop_map(Change::Add),
    ]
}

/// Over soon, or longer than all steps together.
fn ttl_ns() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1, 1_000_000, 200_000_000, 1_000_000_000, DAY_NS, TTL_MAX_NS])
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
        3 => key.clone().prop_map(|key| Step::Get { key }),
        2 => key.prop_map(|key| Step::Ttl { key }),
        2 => (0..300u64).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Sweep),
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

/// A key as the model knows it.
#[derive(Clone, Debug)]
struct Known {
    version: u64,
    value: Vec<u8>,
    /// By the server's clock.
    ends_ns: Option<u64>,
}

/// The map that the table is compared with.
#[derive(Default)]
struct Model(HashMap<u8, Known>);

impl Model {
    /// What is there and whose time is not over.
    fn get(&self, key: u8) -> Option<&Known> {
        self.0.get(&key).filter(|known| known.ends_ns.is_none_or(|ends_ns| ends_ns > clock_ns()))
    }

    /// True if it was there.
    fn remove(&mut self, key: u8) -> bool {
        let was_there = self.get(key).is_some();
        self.0.remove(&key);
        was_there
    }
}

/// When the value ends that a change has made.
fn end_of(change: &Change, old: Option<&Known>) -> Option<u64> {
    match *change {
        Change::PutFor(_, _, ttl_ns) => Some(clock_ns() + ttl_ns),
        Change::Touch(ttl_ns) | Change::GetAndTouch(ttl_ns) => ttl_ns.map(|ttl_ns| clock_ns() + ttl_ns),
        Change::Append(..) | Change::Add(_) => old.and_then(|old| old.ends_ns),
        Change::Put(..) | Change::Delete => None,
    }
}

/// What a change makes of a value: the new one, or none; or how it is refused. Numbers are those of the standard library.
fn expected_of(change: &Change, old: Option<&[u8]>) -> Result<Option<Vec<u8>>, Refusal> {
    match *change {
        Change::Put(bytes, fill) | Change::PutFor(bytes, fill, _) => Ok(Some(value(bytes, fill))),
        Change::Touch(_) | Change::GetAndTouch(_) => Ok(old.map(<[u8]>::to_vec)),
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
        Change::PutFor(bytes, fill, ttl_ns) => {
            client.ttl_ns = Some(ttl_ns);
            client.write(Op::Put, condition, key, &value(bytes, fill))
        }
        Change::Touch(ttl_ns) => {
            client.ttl_ns = ttl_ns;
            client.write(Op::Touch, condition, key, &[])
        }
        Change::GetAndTouch(ttl_ns) => {
            client.ttl_ns = ttl_ns;
            client.write(Op::GetAndTouch, condition, key, &[])
        }
        Change::Delete => client.write(Op::Delete, condition, key, &[]),
        Change::Append(bytes, fill) => client.write(Op::Append, condition, key, &value(bytes, fill)),
        Change::Add(delta) => client.write(Op::Add, condition, key, &delta.to_le_bytes()),
    }
}

/// Plays `steps` on a region of `segments`; returns how many were refused because it was full.
fn play(segments: usize, steps: &[Step]) -> usize {
    let table = table(segments, 1, None);
    let mut client = Client::new(&table, 0);
    let mut model = Model::default();
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
                model.0.insert(key, Known { version: answer.version, value, ends_ns: None });
            }
            Step::If { key, ref change, condition } => {
                let old = model.get(key).cloned();
                let current = old.as_ref().map(|old| old.version);
                let (condition, is_met) = match condition {
                    If::Always => (Condition::Always, true),
                    If::Absent => (Condition::Absent, current.is_none()),
                    If::Present => (Condition::Present, current.is_some()),
                    If::Version => (Condition::Version(current.unwrap_or(1)), current.is_some()),
                    If::StaleVersion => (Condition::Version(current.unwrap_or(1) + 1), false),
                };
                let expected = expected_of(change, old.as_ref().map(|old| &old.value[..]));
                let ends_ns = end_of(change, old.as_ref());
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
                        if matches!(change, Change::Add(_) | Change::GetAndTouch(_)) {
                            let answered = &value[..value.len().min(ANSWER_MAX_BYTES)];
                            assert!(answer.value == answered, "the answer is the value, or its beginning");
                            assert_eq!(answer.total_bytes, value.len());
                        }
                        model.0.insert(key, Known { version: answer.version, value, ends_ns });
                    }
                    (None, Ok(None)) => {
                        let status = if model.remove(key) { Status::Done } else { Status::NotFound };
                        assert_eq!(answer.status, status, "{step:?}");
                    }
                    other => panic!("{other:?} for {step:?}"),
                }
            }
            Step::Delete { key } => {
                let status = if model.remove(key) { Status::Done } else { Status::NotFound };
                assert_eq!(client.delete(&key_bytes(key)).status, status);
            }
            Step::Get { key } => {
                let answer = client.get(&key_bytes(key));
                match model.get(key) {
                    None => assert_eq!(answer.status, Status::NotFound),
                    Some(known) => {
                        assert_eq!((answer.status, answer.version), (Status::Done, known.version));
                        assert!(answer.value == known.value, "key {key}");
                    }
                }
            }
            Step::Ttl { key } => {
                let answer = client.write(Op::Ttl, Condition::Always, &key_bytes(key), &[]);
                let Some(known) = model.get(key) else {
                    assert_eq!(answer.status, Status::NotFound);
                    continue;
                };
                assert_eq!((answer.status, answer.version), (Status::Done, known.version));
                let left = known.ends_ns.map(|ends_ns| ends_ns - clock_ns());
                assert_eq!(answer.value, left.map_or(Vec::new(), |left_ns| left_ns.to_le_bytes().to_vec()));
            }
            Step::Pass { ms } => pass(ms * 1_000_000),
            Step::Sweep => client.worker.sweep_expired(),
            Step::Idle => client.worker.idle(),
        }
    }
    for key in 0..40 {
        let answer = client.get(&key_bytes(key));
        let expected = model.get(key);
        assert_eq!(answer.status == Status::Done, expected.is_some(), "key {key}");
        assert!(expected.is_none_or(|known| answer.value == known.value), "key {key}");
    }
    // Whose time is soon over, is over now, and removed in the background.
    pass(1_000_000_000);
    sweep(&mut client.worker, &table);
    let left: Vec<(u8, Known)> =
        (0..40).filter_map(|key| model.get(key).map(|known| (key, known.clone()))).collect();
    assert_eq!(table.has_expiring_keys(), left.iter().any(|(_, known)| known.ends_ns.is_some()));
    table.check().expect("the table is sound");
    client.worker.idle();
    let report = table.check().expect("the table is sound");
    assert_eq!((report.keys, report.waiting_blocks), (left.len() as u64, 0));
    let data_bytes = |(key, known): &(u8, Known)| key_bytes(*key).len() + known.value.len();
    assert_eq!(report.data_bytes, left.iter().map(data_bytes).sum::<usize>() as u64);
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
