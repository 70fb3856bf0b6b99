//! Writes that depend on what is there: conditions, counters, appends.

use kv_client::{Appended, Condition, Conditional, Count, Error, Outcome, Refusal, Value};

use crate::live::server::{Needs, Start};

pub(crate) fn puts_under_every_condition(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    for condition in [Condition::Present, Condition::Version(1)] {
        assert_eq!(client.put_with(b"key", b"no", condition), Ok(Conditional::NotFound));
    }
    assert_eq!(client.get(b"key"), Ok(None));
    let first = client.put_with(b"key", b"one", Condition::Absent).unwrap().done().unwrap();
    for condition in [Condition::Absent, Condition::Version(first - 1), Condition::Version(first + 1)] {
        assert_eq!(client.put_with(b"key", b"no", condition), Ok(Conditional::Mismatch(first)));
    }
    assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: b"one".to_vec(), version: first })));
    let mut version = first;
    // In place, to another size, and through the staging area.
    for value in [&b"two"[..], &[3; 5000], &[4; 200_000]] {
        for is_version in [true, false] {
            let condition = if is_version { Condition::Version(version) } else { Condition::Present };
            let new = client.put_with(b"key", value, condition).unwrap().done().unwrap();
            assert!(new > version);
            assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: value.to_vec(), version: new })));
            version = new;
        }
    }
    assert_eq!(client.put_with(b"key", &[5; 100_000], Condition::Absent), Ok(Conditional::Mismatch(version)));
    let ticket = client.submit_put_with(b"key", b"three", Condition::Absent).unwrap();
    let done = client.wait().unwrap().unwrap();
    assert_eq!(
        (done.ticket, done.outcome),
        (ticket, Outcome::Conditional(Ok(Conditional::Mismatch(version))))
    );
    let counters = client.server_stat().unwrap().counters;
    assert_eq!(counters["puts"], counters["conditional_writes"], "of each put one knows how it ended");
    assert_eq!(counters["conditions_unmet"], 2 + 3 + 2);
}

pub(crate) fn deletes_under_every_condition(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    for condition in [Condition::Always, Condition::Absent, Condition::Present, Condition::Version(1)] {
        assert_eq!(client.delete_if(b"key", condition), Ok(Conditional::NotFound));
    }
    let first = client.put(b"key", b"one").unwrap();
    for condition in [Condition::Absent, Condition::Version(first - 1), Condition::Version(first + 1)] {
        assert_eq!(client.delete_if(b"key", condition), Ok(Conditional::Mismatch(first)));
    }
    assert_eq!(client.exists(b"key"), Ok(true));
    let deleted = client.delete_if(b"key", Condition::Version(first)).unwrap().done().unwrap();
    assert!(deleted > first);
    assert_eq!(client.get(b"key"), Ok(None));
    let again = client.put(b"key", b"one").unwrap();
    assert!(again > deleted);
    assert_eq!(client.delete_if(b"key", Condition::Version(first)), Ok(Conditional::Mismatch(again)));
    assert!(matches!(client.delete_if(b"key", Condition::Present), Ok(Conditional::Done(_))));
    assert_eq!(client.exists(b"key"), Ok(false));
}

pub(crate) fn adds_count_and_refuse_what_is_no_counter(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let mut other = server.connect();
    let mut last = 0;
    // Also over zero, and with more and fewer digits than before.
    for (delta, expected) in
        [(5, 5), (-7, -2), (100, 98), (0, 98), (-98, 0), (i64::MAX, i64::MAX), (i64::MIN, -1)]
    {
        let Count { value, version } = client.add(b"count", delta).unwrap();
        assert_eq!(value, expected);
        assert!(version > last);
        last = version;
        let found = other.get(b"count").unwrap().unwrap();
        assert_eq!((found.bytes, found.version), (expected.to_string().into_bytes(), version));
    }
    let overflow = Refusal::CounterOverflow { value: -1, delta: i64::MIN };
    assert_eq!(client.add(b"count", i64::MIN), Err(Error::Refused(overflow)));
    for value in [&b""[..], b"x", b"007", b"+1", b" 1", b"9223372036854775808", &[0; 8], &[b'1'; 5000]] {
        let version = client.put(b"key", value).unwrap();
        let refusal = Refusal::NotACounter { found_bytes: value.len() as u64 };
        assert_eq!(client.add(b"key", 1), Err(Error::Refused(refusal)));
        assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: value.to_vec(), version })), "unchanged");
    }
    let version = client.put(b"key", b"41").unwrap();
    assert_eq!(client.add_if(b"key", 1, Condition::Version(version - 1)), Ok(Conditional::Mismatch(version)));
    let count = client.add_if(b"key", 1, Condition::Version(version)).unwrap().done().unwrap();
    assert_eq!(count.value, 42);
    assert_eq!(client.add_if(b"absent", 1, Condition::Present), Ok(Conditional::NotFound));
    assert_eq!(client.get(b"absent"), Ok(None));
    let ticket = client.submit_add(b"absent", -3, Condition::Absent).unwrap();
    let get = client.submit_get(b"absent").unwrap();
    for _ in 0..2 {
        let done = client.wait().unwrap().unwrap();
        match done.outcome {
            Outcome::Add(Ok(Conditional::Done(Count { value, .. }))) => {
                assert_eq!((done.ticket, value), (ticket, -3))
            }
            Outcome::Get(Ok(Some(value))) => assert_eq!((done.ticket, &value.bytes[..]), (get, &b"-3"[..])),
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(client.add(b"", 1), Err(Error::KeyEmpty));
}

pub(crate) fn appends_make_longer_values(start: Start) {
    const LARGEST_BYTES: usize = 1 << 20;
    let server = start(Needs { max_value: "1MiB", ..Needs::default() });
    let mut client = server.connect();
    let mut other = server.connect();
    let mut whole = Vec::new();
    // Through every way that a value can take: in place, moved, staged; and past the end of one class.
    for part in [&b"a"[..], b"", &[1; 15], &[2; 300], &[3; 5000], &[4; 100_000], b"end"] {
        whole.extend_from_slice(part);
        let Appended { value_bytes, version } = client.append(b"log", part).unwrap();
        assert_eq!(value_bytes, whole.len());
        assert_eq!(other.get(b"log"), Ok(Some(Value { bytes: whole.clone(), version })));
    }
    let version = other.get(b"log").unwrap().unwrap().version;
    let too_long = vec![5; LARGEST_BYTES - whole.len() + 1];
    let refusal =
        Refusal::ValueTooLarge { found_bytes: LARGEST_BYTES as u64 + 1, limit_bytes: LARGEST_BYTES as u64 };
    assert_eq!(client.append(b"log", &too_long), Err(Error::Refused(refusal)));
    assert_eq!(client.get(b"log"), Ok(Some(Value { bytes: whole.clone(), version })), "unchanged");
    assert_eq!(client.append(b"log", &too_long[1..]).unwrap().value_bytes, LARGEST_BYTES);
    assert_eq!(client.append_if(b"new", b"x", Condition::Present), Ok(Conditional::NotFound));
    assert_eq!(client.get(b"new"), Ok(None));
    let first = client.append_if(b"new", b"x", Condition::Absent).unwrap().done().unwrap();
    assert_eq!(client.append_if(b"new", b"y", Condition::Absent), Ok(Conditional::Mismatch(first.version)));
    let ticket = client.submit_append(b"new", b"y", Condition::Version(first.version)).unwrap();
    let done = client.wait().unwrap().unwrap();
    assert!(matches!(done.outcome, Outcome::Append(Ok(Conditional::Done(Appended { value_bytes: 2, .. })))));
    assert_eq!(done.ticket, ticket);
    assert_eq!(client.get(b"new").unwrap().unwrap().bytes, b"xy");
}
