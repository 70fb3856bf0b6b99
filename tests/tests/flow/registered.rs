//! GETs into registered memory.

use std::collections::HashMap;

use kv_client::{Client, Error, NotSubmitted, Outcome, Registered, Stats, ValueRef};

use crate::live::server::{Needs, Start};
use crate::live::value_of;

/// The largest value whose block is in one piece, whatever its key.
const IN_PLACE_BYTES_MAX: usize = (320 << 10) - 24 - 1024;

/// The hits since `before`, and how many of them were neither copied nor answered by the server.
fn hits_in_place(client: &Client, before: Stats) -> (u64, u64) {
    let now = client.stats();
    assert_eq!(now.asked_server, before.asked_server);
    (now.hits - before.hits, now.values_in_place - before.values_in_place)
}

pub(crate) fn values_stay_where_they_were_read(start: Start) {
    let server = start(Needs { memory: "64MiB", ..Needs::default() });
    let (mut writer, mut client) = (server.connect(), server.connect());
    let mut buffer = client.register(IN_PLACE_BYTES_MAX).unwrap();
    assert!(buffer.room_bytes() >= IN_PLACE_BYTES_MAX + 1024);
    assert_eq!(client.get_into(b"key", &mut buffer), Ok(None));
    assert_eq!(buffer.value(), None);
    let before = client.stats();
    let sizes = [0, 1, 7, 8, 9, 64, 1000, 8192, 8193, 100_000, IN_PLACE_BYTES_MAX - 1, IN_PLACE_BYTES_MAX];
    for (i, &size) in sizes.iter().enumerate() {
        for key in [vec![b'k'; 1], vec![b'k'; 1024]] {
            let bytes = &value_of(i as u64, size)[..];
            let version = writer.put(&key, bytes).unwrap();
            let found = client.get_into(&key, &mut buffer).unwrap();
            assert!(found == Some(ValueRef { bytes, version }), "{size} bytes");
            assert!(buffer.value() == Some(ValueRef { bytes, version }), "{size} bytes");
        }
    }
    assert_eq!(hits_in_place(&client, before), (2 * sizes.len() as u64, 2 * sizes.len() as u64));
    // What is in it belongs to the last GET.
    assert_eq!(client.get_into(b"absent", &mut buffer), Ok(None));
    assert_eq!(buffer.value(), None);
    assert_eq!(client.get_into(b"", &mut buffer), Err(Error::KeyEmpty));
    // It is any client's of this process.
    drop(client);
    let version = writer.put(b"key", b"value").unwrap();
    assert_eq!(writer.get_into(b"key", &mut buffer), Ok(Some(ValueRef { bytes: b"value", version })));
    drop(writer);
    assert_eq!(buffer.value(), Some(ValueRef { bytes: b"value", version }));
}

pub(crate) fn values_beyond_registered_memory_are_copied_or_refused(start: Start) {
    const LARGEST_BYTES: usize = 1 << 20;
    let server = start(Needs { max_value: "1MiB", ..Needs::default() });
    let mut client = server.connect();
    let limit_bytes = LARGEST_BYTES;
    let too_large = Error::ValueTooLarge { found_bytes: limit_bytes + 1, limit_bytes };
    assert_eq!(client.register(limit_bytes + 1), Err(too_large));
    let mut buffer = client.register(0).unwrap();
    let room_bytes = buffer.room_bytes();
    for (size, is_in_place) in
        [(room_bytes - 100, 1), (room_bytes - 27, 1), (room_bytes - 26, 0), (room_bytes, 0)]
    {
        let (before, bytes) = (client.stats(), &value_of(7, size)[..]);
        let version = client.put(b"key", bytes).unwrap();
        let found = client.get_into(b"key", &mut buffer).unwrap();
        assert!(found == Some(ValueRef { bytes, version }), "{size} bytes of {room_bytes}");
        assert_eq!(hits_in_place(&client, before), (1, is_in_place), "{size} bytes of {room_bytes}");
    }
    for value_bytes in [room_bytes + 1, LARGEST_BYTES] {
        let version = client.put(b"key", &value_of(1, value_bytes)).unwrap();
        let error = Error::BufferTooSmall { value_bytes, room_bytes };
        assert_eq!(client.get_into(b"key", &mut buffer), Err(error.clone()));
        assert_eq!(buffer.value(), None);
        // What the error asks for is enough.
        let mut larger = client.register(value_bytes).unwrap();
        let found = client.get_into(b"key", &mut larger).unwrap();
        assert!(found == Some(ValueRef { bytes: &value_of(1, value_bytes), version }));
        client.submit_get_into(b"key", buffer).unwrap();
        let Outcome::GetInto(back, result) = client.wait().unwrap().unwrap().outcome else { panic!() };
        assert_eq!((back.value(), result), (None, Err(error)));
        buffer = back;
    }
    let version = client.put(b"key", b"small").unwrap();
    assert_eq!(client.get_into(b"key", &mut buffer), Ok(Some(ValueRef { bytes: b"small", version })));
}

pub(crate) fn submitted_gets_bring_their_memory_back(start: Start) {
    let server = start(Needs::default());
    let mut client = server.connect();
    let mut buffers: Vec<Registered> = (0..40).map(|_| client.register(3000).unwrap()).collect();
    for round in 0..3_u64 {
        let mut wanted = HashMap::new();
        while let Some(buffer) = buffers.pop() {
            let key = [buffers.len() as u8];
            // Behind a write of its own, between ordinary GETs, and of a key that is not there.
            let value = (!key[0].is_multiple_of(3)).then(|| value_of(round, 400 * usize::from(key[0] % 7)));
            if let Some(value) = &value {
                client.submit_put(&key, value).unwrap();
            }
            wanted.insert(
                client.submit_get_into(&[0, key[0]][usize::from(value.is_some())..], buffer).unwrap(),
                value,
            );
            client.submit_get(&key).unwrap();
        }
        while let Some(done) = client.wait().unwrap() {
            match done.outcome {
                Outcome::GetInto(buffer, result) => {
                    let value = wanted.remove(&done.ticket).expect("it completes once");
                    assert_eq!(buffer.value().map(|found| found.bytes), value.as_deref());
                    assert_eq!(buffer.value().map(|found| found.version), result.unwrap());
                    buffers.push(buffer);
                }
                Outcome::Get(result) => drop(result.unwrap()),
                Outcome::Put(result) => drop(result.unwrap()),
                outcome => panic!("{outcome:?}"),
            }
        }
        assert_eq!((wanted.len(), buffers.len(), client.pending()), (0, 40, 0));
    }
    let buffer = buffers.pop().unwrap();
    let Err(NotSubmitted { error, buffer }) = client.submit_get_into(&[7; 1025], buffer) else { panic!() };
    assert_eq!((error, buffer.value()), (Error::KeyTooLong { found_bytes: 1025 }, None));
    // The client goes first, with what it has.
    client.submit_get_into(b"key", buffer).unwrap();
}
