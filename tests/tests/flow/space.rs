//! Memory that serves values of one size, and then of another.

use kv_client::{Client, Error, Outcome, Refusal};

use crate::live::server::{Needs, Start};
use crate::live::value_of;

fn key_of(round: u64, i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&round.to_le_bytes());
    key[8..].copy_from_slice(&i.to_le_bytes());
    key
}

/// Puts until the region is full. Returns how many were acknowledged.
fn fill(client: &mut Client, round: u64, len_bytes: usize) -> u64 {
    let mut next = 0;
    let mut refused = 0;
    while refused == 0 {
        for i in next..next + 50 {
            client.submit_put(&key_of(round, i), &value_of(i, len_bytes)).unwrap();
        }
        next += 50;
        while let Some(done) = client.wait().unwrap() {
            match done.outcome {
                Outcome::Put(Ok(_)) => {}
                Outcome::Put(Err(Error::Refused(Refusal::RegionFull { .. }))) => refused += 1,
                outcome => panic!("{outcome:?}"),
            }
        }
    }
    next - refused
}

/// The store gives what was deleted to values of other sizes, while a client that knows old places goes on reading.
pub(crate) fn deleted_values_make_room_for_other_sizes(start: Start) {
    let server = start(Needs { memory: "24MiB", expected_keys: 1, workers: 2, ..Needs::default() });
    let (mut client, mut reader) = (server.connect_for_setup(), server.connect());
    let mut acknowledged = 0;
    for (round, len_bytes) in [900, 7000, 2000].into_iter().enumerate() {
        let round = round as u64;
        let before = acknowledged;
        if round > 0 {
            let keys: Vec<_> = (0..before).map(|i| key_of(round - 1, i)).collect();
            for keys in keys.chunks(97) {
                // The reader has just learned where it is.
                assert!(reader.get(&keys[0]).unwrap().is_some());
                assert!(client.multi_delete(keys).into_iter().all(|deleted| deleted == Ok(true)));
            }
        }
        acknowledged = fill(&mut client, round, len_bytes);
        let live_bytes = acknowledged * (24 + 16 + len_bytes as u64);
        let segments = client.server_stat().unwrap().segments;
        let room_bytes = (segments.blocks + segments.free) << 21;
        assert!(live_bytes * 100 >= room_bytes * 85, "{live_bytes} of {room_bytes} bytes, round {round}");
        for i in (0..before).step_by(97) {
            assert_eq!(reader.get(&key_of(round - 1, i)), Ok(None), "key {i} was deleted");
        }
        for i in (0..acknowledged).step_by(53) {
            let found = reader.get(&key_of(round, i)).unwrap().expect("it was acknowledged");
            assert!(found.bytes == value_of(i, len_bytes), "key {i} of round {round}");
        }
    }
    let counters = client.server_stat().unwrap().counters;
    assert!(counters["segments_reused"] >= 10 && counters["writes_waited"] > 0, "{counters:?}");
}
