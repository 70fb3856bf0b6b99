//! A server that evicts.

use std::time::Duration;

use kv_client::{Client, Conditional, Outcome, PutOptions};
use kv_server::config::OnFull;

use crate::live::server::{Needs, Start};
use crate::live::value_of;

/// 2,304 bytes each as blocks, of which 3,640 fit.
const LEN_BYTES: usize = 2200;
const HOT: u64 = 40;
const COLD: u64 = 8000;
/// Keys that are written between two rounds of GETs of what is hot.
const COLD_PER_ROUND: u64 = 20;

/// Every other one has an end that does not come.
fn put_all(client: &mut Client, keys: impl Iterator<Item = u64>) {
    for i in keys {
        let (name, value) = (i.to_le_bytes(), value_of(i, LEN_BYTES));
        let mut options = PutOptions::default();
        options.ttl = (i % 2 == 1).then_some(Duration::from_secs(3600));
        client.submit_put_with(&name, &value, options).unwrap();
    }
    while let Some(done) = client.wait().unwrap() {
        assert!(matches!(done.outcome, Outcome::Conditional(Ok(Conditional::Done(_)))), "{done:?}");
    }
}

fn present(client: &mut Client, keys: impl Iterator<Item = u64>) -> u64 {
    let names: Vec<[u8; 8]> = keys.map(u64::to_le_bytes).collect();
    let mut present = 0;
    client.multi_get_with(&names, |i, result| {
        if let Some((bytes, _)) = result.unwrap() {
            let number = u64::from_le_bytes(names[i]);
            assert!(bytes == value_of(number, LEN_BYTES), "key {number}");
            present += 1;
        }
    });
    present
}

pub(crate) fn keys_in_use_stay_and_no_write_is_refused(start: Start) {
    let server = start(Needs { memory: "16MiB", on_full: OnFull::Evict, ..Needs::default() });
    let (mut setup, mut reader) = (server.connect_for_setup(), server.connect());
    let cold = HOT..HOT + COLD;
    put_all(&mut setup, 0..HOT);
    for first in cold.clone().step_by(COLD_PER_ROUND as usize) {
        put_all(&mut setup, first..first + COLD_PER_ROUND);
        // The server does not see these, and hears of some.
        present(&mut reader, 0..HOT);
        present(&mut reader, 0..HOT);
    }
    // One in 16 hits is noted, or fewer, so each of these was noted some 20 times while the hand went round once.
    assert!(present(&mut reader, 0..HOT) >= HOT - 1);
    assert_eq!(present(&mut reader, HOT..HOT + COLD / 2), 0, "what nobody used is gone");
    assert!(present(&mut reader, cold.end - 1000..cold.end) >= 990, "what is new is there");
    let stat = reader.server_stat().unwrap();
    let counter = |name: &str| stat.counters[name];
    assert!(counter("evictions") > COLD / 3 && counter("refused") == 0, "{:?}", stat.counters);
    assert_eq!(stat.evicted_ages.iter().sum::<u64>(), counter("evictions"));
    assert!(counter("hits_reported") > 0 && reader.stats().hits_reported >= counter("hits_reported"));
}

/// Seven pages, of which a region of 32 MiB has room for some sixty.
const LARGE_BYTES: usize = 400_000;
const LARGE_COLD: u64 = 90;

pub(crate) fn large_values_make_room_for_large_values(start: Start) {
    let server = start(Needs { memory: "32MiB", on_full: OnFull::Evict, ..Needs::default() });
    let (mut writer, mut reader) = (server.connect(), server.connect());
    let hot = value_of(0, LARGE_BYTES);
    writer.put(b"hot", &hot).unwrap();
    let key = |i: u64| (1 << 32 | i).to_le_bytes();
    for i in 1..=LARGE_COLD {
        writer.put(&key(i), &value_of(i, LARGE_BYTES + i as usize)).unwrap();
        for _ in 0..12 {
            let found = reader.get(b"hot").unwrap().expect("what is used stays");
            assert!(found.bytes == hot);
        }
    }
    for i in 1..=LARGE_COLD {
        let found = reader.get(&key(i)).unwrap();
        assert!(found.is_some() || i <= LARGE_COLD - 20, "{i} is new");
        let Some(found) = found else { continue };
        assert!(i > 20 && found.bytes == value_of(i, LARGE_BYTES + i as usize), "{i}");
    }
    // A size that comes when the region is full gets a segment.
    put_all(&mut writer, 0..HOT);
    assert_eq!(present(&mut reader, 0..HOT), HOT);
    let stat = reader.server_stat().unwrap();
    assert!(stat.counters["refused"] == 0 && stat.counters["hits_reported"] > 0, "{:?}", stat.counters);
    assert_eq!(stat.evicted_ages.iter().sum::<u64>(), stat.counters["evictions"]);
}
