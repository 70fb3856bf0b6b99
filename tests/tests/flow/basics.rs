//! Single operations and their outcomes.

use std::collections::HashSet;
use std::time::Duration;

use kv_client::{Client, Conditional, Error, KEY_MAX_BYTES, Options, Value};

use crate::live::server::{Needs, Start};

pub(crate) fn put_get_update_delete(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    assert_eq!(client.get(b"key"), Ok(None));
    assert_eq!(client.delete(b"key"), Ok(false));
    let first = client.put(b"key", b"one").unwrap();
    assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: b"one".to_vec(), version: first })));
    // In place, and to another size.
    for value in [&b"two"[..], &[3; 3000], &[4; 100_000], b""] {
        let version = client.put(b"key", value).unwrap();
        assert!(version > first);
        assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: value.to_vec(), version })));
        let mut buffer = b"what was there before".to_vec();
        assert_eq!(client.get_to_vec(b"key", &mut buffer), Ok(Some(version)));
        assert_eq!(buffer, value);
        assert_eq!(
            client.get_with(b"key", |bytes, found| (bytes.len(), found)),
            Ok(Some((value.len(), version)))
        );
    }
    assert_eq!(client.exists(b"key"), Ok(true));
    assert_eq!(client.get(b"kez"), Ok(None));
    assert_eq!(client.delete(b"key"), Ok(true));
    let mut buffer = b"what was there before".to_vec();
    assert_eq!(client.get_to_vec(b"key", &mut buffer), Ok(None));
    assert!(buffer.is_empty());
    assert_eq!((client.exists(b"key"), client.delete(b"key")), (Ok(false), Ok(false)));
    client.put(b"key", b"again").unwrap();
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"again");
    client.ping().unwrap();
}

pub(crate) fn compare_and_set_in_all_its_outcomes(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    assert_eq!(client.compare_and_set(b"key", 0, b"no"), Ok(Conditional::NotFound));
    assert_eq!(client.compare_and_set(b"key", 1, b"no"), Ok(Conditional::NotFound));
    assert_eq!(client.get(b"key"), Ok(None));
    let first = client.put(b"key", b"one").unwrap();
    for wrong in [0, first - 1, first + 1, u64::MAX] {
        assert_eq!(client.compare_and_set(b"key", wrong, b"no"), Ok(Conditional::Mismatch(first)));
    }
    assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: b"one".to_vec(), version: first })));
    let mut version = first;
    // In place, to another size, through the staging area, and to nothing.
    for value in [&b"two"[..], &[3; 5000], &[4; 200_000], b""] {
        let Conditional::Done(new) = client.compare_and_set(b"key", version, value).unwrap() else {
            panic!("nobody else writes")
        };
        assert!(new > version);
        assert_eq!(client.compare_and_set(b"key", version, b"no"), Ok(Conditional::Mismatch(new)));
        assert_eq!(client.get(b"key"), Ok(Some(Value { bytes: value.to_vec(), version: new })));
        version = new;
    }
    client.delete(b"key").unwrap();
    assert_eq!(client.compare_and_set(b"key", version, b"no"), Ok(Conditional::NotFound));
    // The same bytes as before are not the same version.
    let again = client.put(b"key", b"one").unwrap();
    assert_eq!(client.compare_and_set(b"key", first, b"no"), Ok(Conditional::Mismatch(again)));
    assert!(again > version);
}

pub(crate) fn empty_values_are_values(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let version = client.put(b"empty", b"").unwrap();
    let empty = Value { bytes: Vec::new(), version };
    assert_eq!(client.get(b"empty"), Ok(Some(empty.clone())));
    assert_eq!(client.exists(b"empty"), Ok(true));
    assert_eq!(client.get(b"absent"), Ok(None));
    assert_eq!(client.multi_get(&[&b"empty"[..], b"absent"]), [Ok(Some(empty)), Ok(None)]);
    assert!(matches!(client.compare_and_set(b"empty", version, b""), Ok(Conditional::Done(_))));
    assert_eq!(client.delete(b"empty"), Ok(true));
    assert_eq!(client.get(b"empty"), Ok(None));
}

pub(crate) fn keys_have_any_bytes(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    // Prefixes of each other, zeros at the end, and what ends lines or strings elsewhere.
    keys.extend((2..40).map(|len| vec![0; len]));
    keys.extend((2..40).map(|len| vec![0xff; len]));
    keys.extend(
        [&b"a\0b"[..], b"a\n", b"\n\n", b"\r\n", b"a\0", b"\0a", b"../..", b"k=v"].map(<[u8]>::to_vec),
    );
    for len in [KEY_MAX_BYTES - 1, KEY_MAX_BYTES] {
        keys.extend([0, 0xff].map(|last| [vec![b'k'; len - 1], vec![last]].concat()));
    }
    assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len(), "the test has each key once");
    for (i, key) in keys.iter().enumerate() {
        client.put(key, format!("value {i}").as_bytes()).unwrap();
    }
    let mut other = server.connect();
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(other.get(key).unwrap().unwrap().bytes, format!("value {i}").as_bytes(), "{key:?}");
    }
    for key in keys.iter().step_by(2) {
        assert_eq!(client.delete(key), Ok(true));
    }
    for (i, key) in keys.iter().enumerate() {
        assert_eq!(other.exists(key), Ok(i % 2 == 1), "{key:?}");
    }
}

pub(crate) fn keys_beyond_the_limits_are_refused(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    for found_bytes in [0, KEY_MAX_BYTES + 1, 100_000] {
        let key = &vec![b'k'; found_bytes][..];
        let error = if found_bytes == 0 { Error::KeyEmpty } else { Error::KeyTooLong { found_bytes } };
        assert_eq!(client.get(key), Err(error.clone()));
        assert_eq!(client.exists(key), Err(error.clone()));
        assert_eq!(client.put(key, b"value"), Err(error.clone()));
        assert_eq!(client.delete(key), Err(error.clone()));
        assert_eq!(client.compare_and_set(key, 1, b"value"), Err(error.clone()));
        assert_eq!(client.submit_get(key), Err(error.clone()));
        assert_eq!(client.submit_put(key, b"value"), Err(error.clone()));
        assert_eq!(client.submit_delete(key), Err(error.clone()));
        assert_eq!(client.submit_compare_and_set(key, 1, b"value"), Err(error));
    }
    assert_eq!(client.pending(), 0);
    assert_eq!(client.server_stat().unwrap().counters["requests"], 0, "none of it was sent");
    client.put(b"key", b"value").unwrap();
}

pub(crate) fn versions_rise(start: Start) {
    let server = start(Needs::default());
    let mut clients = [server.connect(), server.connect()];
    let mut seen = HashSet::new();
    let mut last = [0; 5];
    for round in 0..200 {
        let (client, key) = (&mut clients[round % 2], round % last.len());
        let name = [b'k', key as u8];
        let version = match round % 3 {
            0 => client.put(&name, &vec![7; round]).unwrap(),
            1 => match client.compare_and_set(&name, last[key], b"value").unwrap() {
                Conditional::Done(version) => version,
                Conditional::NotFound => continue,
                Conditional::Mismatch(version) => panic!("{version} instead of {}", last[key]),
            },
            _ => {
                client.delete(&name).unwrap();
                client.put(&name, b"again").unwrap()
            }
        };
        assert!(version > last[key], "round {round}: {version} after {}", last[key]);
        assert!(seen.insert(version), "round {round}: {version} was used before");
        last[key] = version;
    }
}

pub(crate) fn timeouts_have_any_length(start: Start) {
    let server = start(Needs::default());
    let connect = |timeout| Client::connect_with(&server.url, &Options { timeout, ..Options::default() });
    let at_once = connect(Duration::ZERO);
    assert!(matches!(at_once, Err(Error::Connect { .. })), "{at_once:?}");
    let mut patient = connect(Duration::MAX).unwrap();
    patient.put(b"key", b"value").unwrap();
    patient.put(b"large", &[7; 100_000]).unwrap();
    assert_eq!(patient.get(b"key").unwrap().unwrap().bytes, b"value");
    // Too short for an answer: known not to have happened, or not known, or done after all.
    let Ok(mut hasty) = connect(Duration::from_micros(1500)) else { return };
    for round in 0..50_u64 {
        match hasty.put(b"hasty", &round.to_le_bytes()) {
            Ok(_) | Err(Error::Timeout { .. } | Error::OutcomeUnknown { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(hasty.stats().timeouts <= 50 && hasty.stats().writes == 50);
}
