//! Many operations at once.

use std::collections::HashMap;

use kv_client::{CLIENT_OPERATIONS_MAX, Client, Completion, Conditional, Error, Outcome, Ticket};

use crate::live::server::{Needs, Start};
use crate::live::wait_for;

/// Takes completions until nothing is in flight.
fn take_all(client: &mut Client) -> HashMap<Ticket, Outcome> {
    let mut outcomes = HashMap::new();
    while let Some(Completion { ticket, outcome }) = client.wait().unwrap() {
        assert!(outcomes.insert(ticket, outcome).is_none(), "{ticket:?} completes once");
    }
    assert_eq!(client.pending(), 0);
    outcomes
}

pub(crate) fn multi_get_has_a_result_per_key(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    assert_eq!(client.multi_get(&[] as &[&[u8]]), []);
    for i in 0..50_u8 {
        client.put(&[b'k', i], &vec![i; i as usize]).unwrap();
    }
    // Around the number that is looked up together; missing, twice, and no keys at all among them.
    let too_long = vec![0; 1025];
    for count in [1, 15, 16, 17, 32, 33, 100] {
        let keys: Vec<Vec<u8>> = (0..count)
            .map(|i| match i % 7 {
                3 => Vec::new(),
                4 => too_long.clone(),
                5 => b"missing".to_vec(),
                _ => vec![b'k', (i * 11 % 50) as u8],
            })
            .chain([vec![b'k', 9], vec![b'k', 9], b"missing".to_vec()])
            .collect();
        let results = client.multi_get(&keys);
        assert_eq!(results.len(), keys.len());
        for (key, result) in keys.iter().zip(results) {
            match key.len() {
                0 => assert_eq!(result, Err(Error::KeyEmpty)),
                1025 => assert_eq!(result, Err(Error::KeyTooLong { found_bytes: 1025 })),
                2 => assert_eq!(result.unwrap().unwrap().bytes, vec![key[1]; key[1] as usize]),
                _ => assert_eq!(result, Ok(None)),
            }
        }
    }
    let mut order = Vec::new();
    client.multi_get_with(&[[b'k', 1], [b'k', 2], [b'x', 3]], |index, result| {
        order.push((index, result.unwrap().map(|(bytes, _)| bytes.to_vec())));
    });
    assert_eq!(order, [(0, Some(vec![1])), (1, Some(vec![2, 2])), (2, None)]);
}

pub(crate) fn multi_put_and_multi_delete_have_a_result_per_key(start: Start) {
    let server = start(Needs { memory: "128MiB", max_value: "1MiB", ..Needs::default() });
    let mut client = server.connect();
    assert_eq!(client.multi_put(&[] as &[(&[u8], &[u8])]), []);
    assert_eq!(client.multi_delete(&[] as &[&[u8]]), []);
    // More than are under way together; twice the same key, impossible keys and values, and large values among them.
    let pair = |i: usize| match i % 9 {
        3 => (Vec::new(), b"no key".to_vec()),
        4 => (vec![b'k'; 1025], b"a key too long".to_vec()),
        5 => (b"k".to_vec(), vec![0; (1 << 20) + 1]),
        6 => (b"twice".to_vec(), i.to_string().into_bytes()),
        7 => (vec![b'l', i as u8], vec![i as u8; 20_000]),
        _ => (vec![b'k', i as u8], vec![i as u8; i]),
    };
    let pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..200).map(pair).collect();
    let results = client.multi_put(&pairs);
    assert_eq!(results.len(), pairs.len());
    let mut last = HashMap::new();
    for (i, ((key, value), result)) in pairs.iter().zip(results).enumerate() {
        match i % 9 {
            3 => assert_eq!(result, Err(Error::KeyEmpty)),
            4 => assert_eq!(result, Err(Error::KeyTooLong { found_bytes: 1025 })),
            5 => assert!(matches!(result, Err(Error::ValueTooLarge { .. })), "{result:?}"),
            _ => {
                let version = result.unwrap();
                let before = last.insert(key.clone(), (version, value));
                assert!(before.is_none_or(|(before, _)| before < version), "in their order");
            }
        }
    }
    for (key, (version, value)) in &last {
        let found = client.get(key).unwrap().unwrap();
        assert_eq!((&found.bytes, found.version), (*value, *version), "{key:?}");
    }
    let keys: Vec<&[u8]> = pairs.iter().map(|(key, _)| &key[..]).collect();
    let results = client.multi_delete(&keys);
    assert_eq!(results.len(), keys.len());
    for (key, result) in keys.iter().zip(results) {
        match key.len() {
            0 => assert_eq!(result, Err(Error::KeyEmpty)),
            1025 => assert_eq!(result, Err(Error::KeyTooLong { found_bytes: 1025 })),
            // Only the first of those that are given twice was there.
            _ => assert_eq!(result, Ok(last.remove(*key).is_some()), "{key:?}"),
        }
    }
    assert!(last.is_empty());
    assert!(client.multi_get(&keys[..3]).iter().all(|result| *result == Ok(None)));
}

pub(crate) fn submitted_operations_complete_once(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    assert_eq!(client.poll(), Ok(None));
    assert_eq!(client.wait(), Ok(None));
    let absent = client.submit_get(b"absent").unwrap();
    let no_delete = client.submit_delete(b"absent").unwrap();
    let put = client.submit_put(b"key", b"value").unwrap();
    let get = client.submit_get(b"key").unwrap();
    let cas = client.submit_compare_and_set(b"key", u64::MAX, b"no").unwrap();
    let delete = client.submit_delete(b"key").unwrap();
    let gone = client.submit_get(b"key").unwrap();
    assert_eq!(client.pending(), 7);
    // By polling alone.
    let mut outcomes = HashMap::new();
    wait_for("all completions", || {
        while let Some(Completion { ticket, outcome }) = client.poll().unwrap() {
            outcomes.insert(ticket, outcome);
        }
        (client.pending() == 0).then_some(())
    });
    assert_eq!(outcomes.len(), 7);
    assert_eq!(outcomes[&absent], Outcome::Get(Ok(None)));
    assert_eq!(outcomes[&no_delete], Outcome::Delete(Ok(false)));
    let Outcome::Put(Ok(version)) = outcomes[&put] else { panic!("{:?}", outcomes[&put]) };
    // Not before the PUT that was submitted before it; the DELETE behind it may have overtaken it.
    match &outcomes[&get] {
        Outcome::Get(Ok(Some(value))) => {
            assert_eq!((value.bytes.as_slice(), value.version), (&b"value"[..], version));
        }
        outcome => assert_eq!(*outcome, Outcome::Get(Ok(None))),
    }
    assert_eq!(outcomes[&cas], Outcome::Conditional(Ok(Conditional::Mismatch(version))));
    assert_eq!(outcomes[&delete], Outcome::Delete(Ok(true)));
    assert_eq!(outcomes[&gone], Outcome::Get(Ok(None)));
    assert_eq!(client.poll(), Ok(None));
}

pub(crate) fn reads_come_behind_own_writes(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let mut expected = HashMap::new();
    for round in 0..200_u32 {
        let key = (round % 5).to_le_bytes();
        client.submit_put(&key, &round.to_le_bytes()).unwrap();
        // At once, and by a call that returns only when it is done; also of a value that goes another way.
        if round % 4 == 0 {
            assert_eq!(client.get(&key).unwrap().unwrap().bytes, round.to_le_bytes());
        }
        if round % 16 == 0 {
            client.submit_put(b"large", &vec![round as u8; 100_000]).unwrap();
            assert_eq!(client.get(b"large").unwrap().unwrap().bytes, vec![round as u8; 100_000]);
        }
        expected.insert(client.submit_get(&key).unwrap(), round);
        if round % 5 == 4 {
            check_rounds(take_all(&mut client), &mut expected);
        }
    }
    assert!(expected.is_empty());
    assert!(client.stats().waited_for_own_write > 0);
    let other = client.submit_put(b"a", b"1").unwrap();
    let results = client.multi_get(&[b"a", b"b"]);
    assert_eq!(results[0].as_ref().unwrap().as_ref().unwrap().bytes, b"1");
    assert!(matches!(take_all(&mut client)[&other], Outcome::Put(Ok(_))));
}

fn check_rounds(outcomes: HashMap<Ticket, Outcome>, expected: &mut HashMap<Ticket, u32>) {
    for (ticket, outcome) in outcomes {
        match outcome {
            Outcome::Get(Ok(Some(value))) => {
                let round = expected.remove(&ticket).unwrap();
                assert_eq!(value.bytes, round.to_le_bytes());
            }
            Outcome::Put(Ok(_)) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
}

pub(crate) fn writes_of_one_key_keep_their_order(start: Start) {
    let server = start(Needs { workers: 2, ..Needs::default() });
    let mut client = server.connect();
    // Large ones wait for the staging area; those behind them must not overtake.
    let tickets: Vec<Ticket> = (0..300_u32)
        .map(|i| {
            let mut value = i.to_le_bytes().to_vec();
            value.resize(if i % 3 == 0 { 20_000 } else { 100 }, 0);
            client.submit_put(b"key", &value).unwrap()
        })
        .collect();
    let outcomes = take_all(&mut client);
    let version_of = |ticket| match outcomes[ticket] {
        Outcome::Put(Ok(version)) => version,
        ref outcome => panic!("{outcome:?}"),
    };
    assert!(tickets.iter().map(version_of).is_sorted_by(|a, b| a < b));
    let last = client.get(b"key").unwrap().unwrap();
    assert_eq!((&last.bytes[..4], last.version), (&299_u32.to_le_bytes()[..], version_of(&tickets[299])));
}

pub(crate) fn too_many_operations_are_refused(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let tickets: Vec<Ticket> = (0..CLIENT_OPERATIONS_MAX)
        .map(|i| match i % 2 {
            0 => client.submit_put(&i.to_le_bytes(), b"value").unwrap(),
            _ => client.submit_get(&(i - 1).to_le_bytes()).unwrap(),
        })
        .collect();
    let refused = Error::TooManyInFlight { limit: CLIENT_OPERATIONS_MAX };
    assert_eq!(client.submit_put(b"key", b"value"), Err(refused.clone()));
    assert_eq!(client.submit_delete(b"key"), Err(refused.clone()));
    assert_eq!(client.submit_get(b"key"), Err(refused));
    let outcomes = take_all(&mut client);
    assert_eq!(outcomes.len(), CLIENT_OPERATIONS_MAX);
    for ticket in &tickets {
        let is_good = matches!(&outcomes[ticket], Outcome::Put(Ok(_)) | Outcome::Get(Ok(Some(_))));
        assert!(is_good, "{:?}", outcomes[ticket]);
    }
    client.submit_put(b"key", b"value").unwrap();
    assert_eq!(take_all(&mut client).len(), 1);
}
