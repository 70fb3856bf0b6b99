//! What happens when there is no room.

use kv_client::{Client, Error, Outcome, Refusal};
use kv_common::layout::PAGE_PAYLOAD_BYTES;

use crate::live::server::{Needs, Start};
use crate::live::value_of;

fn key_of(i: u64) -> [u8; 8] {
    i.to_le_bytes()
}

fn assert_all_there(client: &mut Client, keys: impl Iterator<Item = u64>, len_bytes: usize) {
    for i in keys {
        let found = client.get(&key_of(i)).unwrap().unwrap_or_else(|| panic!("key {i} was acknowledged"));
        assert!(found.bytes == value_of(i, len_bytes), "key {i}");
    }
}

pub(crate) fn a_full_region_is_named_and_loses_nothing(start: Start) {
    const LEN_BYTES: usize = 50_000;
    let server = start(Needs { memory: "16MiB", ..Needs::default() });
    let (mut client, mut other) = (server.connect(), server.connect());
    let mut acknowledged = 0;
    let refusal = loop {
        match client.put(&key_of(acknowledged), &value_of(acknowledged, LEN_BYTES)) {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
    };
    // Five segments of 2 MiB are for values, each with 39 blocks of 53,248 bytes.
    assert_eq!(acknowledged, 5 * ((2 << 20) / 53_248));
    let Error::Refused(Refusal::RegionFull { block_bytes, free_segments }) = refusal else {
        panic!("{refusal}")
    };
    assert!(block_bytes >= LEN_BYTES as u64 && free_segments == 0);
    assert!(refusal.to_string().contains("region full"), "{refusal}");
    assert!(matches!(client.put(b"small", b"value"), Err(Error::Refused(Refusal::RegionFull { .. }))));
    // An update that needs a new block is refused, and leaves the old value.
    let update = client.put(&key_of(0), &value_of(9, LEN_BYTES));
    assert!(matches!(update, Err(Error::Refused(Refusal::RegionFull { .. }))), "{update:?}");
    assert_all_there(&mut client, 0..acknowledged, LEN_BYTES);
    assert_all_there(&mut other, 0..acknowledged, LEN_BYTES);
    // Room that deletes make is room, all of it, as often as wanted.
    for round in 0..3 {
        for i in (0..acknowledged).step_by(2) {
            assert_eq!(other.delete(&key_of(i)), Ok(true), "round {round}");
        }
        for i in (0..acknowledged).step_by(2) {
            client.put(&key_of(i), &value_of(i, LEN_BYTES)).unwrap();
        }
    }
    assert!(client.put(&key_of(acknowledged), &value_of(1, LEN_BYTES)).is_err());
    assert_all_there(&mut other, 0..acknowledged, LEN_BYTES);
    other.delete(&key_of(1)).unwrap();
    client.put(&key_of(0), &value_of(0, LEN_BYTES)).expect("an update needs one block, and one is free");
}

/// Keys that an index segment has room for, wherever they belong.
const SURELY_STORED: u64 = 160_000;

pub(crate) fn a_full_index_is_named_and_loses_nothing(start: Start) {
    // One index segment, and a value that leaves three others for blocks of 32 bytes: so many that the index is not large
    // enough for them, and no segment for it to grow into.
    let server = start(Needs { memory: "24MiB", expected_keys: 1, ..Needs::default() });
    let (mut setup, mut client) = (server.connect_for_setup(), server.connect());
    setup.put(b"large", &vec![7; 190 * PAGE_PAYLOAD_BYTES]).unwrap();
    let (mut acknowledged, mut refused, mut submitted) = (Vec::new(), Vec::new(), 0);
    while refused.is_empty() {
        let by = if submitted < SURELY_STORED { &mut setup } else { &mut client };
        // In batches, because each alone takes a round trip.
        let tickets: Vec<_> =
            (submitted..submitted + 500).map(|i| (by.submit_put(&key_of(i), b"").unwrap(), i)).collect();
        submitted += 500;
        let mut numbers: std::collections::HashMap<_, _> = tickets.into_iter().collect();
        while let Some(done) = by.wait().unwrap() {
            let i = numbers.remove(&done.ticket).unwrap();
            match done.outcome {
                Outcome::Put(Ok(_)) => acknowledged.push(i),
                Outcome::Put(Err(error)) => refused.push((i, error)),
                outcome => panic!("{outcome:?}"),
            }
        }
    }
    for (_, error) in &refused {
        assert_eq!(*error, Error::Refused(Refusal::IndexFull { index_segments: 1 }));
        assert!(error.to_string().contains("index full"), "{error}");
    }
    assert!(acknowledged.len() > 172_032, "{} keys are less than three quarters", acknowledged.len());
    let mut other = server.connect();
    other.warm_up().unwrap();
    assert_all_there(&mut other, acknowledged.iter().copied().step_by(server.one_in), 0);
    for (i, _) in &refused {
        assert_eq!(other.get(&key_of(*i)), Ok(None), "key {i} was refused");
    }
    // Keys that are there can be updated, and room can be made.
    client.put(&key_of(acknowledged[0]), b"").unwrap();
    for &i in acknowledged.iter().step_by(4) {
        setup.submit_delete(&key_of(i)).unwrap();
        while setup.pending() >= 64 {
            setup.wait().unwrap();
        }
    }
    while setup.wait().unwrap().is_some() {}
    for (i, _) in &refused {
        client.put(&key_of(*i), b"").unwrap();
    }
    assert_all_there(&mut other, refused.iter().map(|(i, _)| *i), 0);
}
