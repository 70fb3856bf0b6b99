//! Whether GETs bypass the server's processors: a table of values of all sizes, and what it costs to read it.

use std::time::Instant;

use kv_client::Client;

use super::procfs::{at_rest, threads};
use super::server::{Site, Transport};
use super::{PATIENCE, value_of};

/// Keys of the table.
pub(crate) const KEYS: u64 = 1000;

pub(crate) fn value(i: u64) -> Vec<u8> {
    value_of(i, [0, 8, 100, 1000, 5000, 20_000][i as usize % 6])
}

/// Stores the table.
pub(crate) fn load(site: &Site) {
    let mut client = site.connect(PATIENCE);
    for i in 0..KEYS {
        client.put(&i.to_le_bytes(), &value(i)).unwrap();
    }
}

/// Gets a key of the table.
pub(crate) fn get(client: &mut Client, i: u64) {
    let found = client.get_with(&i.to_le_bytes(), |bytes, _| bytes == value(i)).unwrap();
    assert_eq!(found, Some(true), "key {i}");
}

/// Asserts that no thread of the server but the one that sets the clock runs during 100,000 GETs, the first of each key
/// with a cold index cache.
pub(crate) fn gets_take_no_processor_time_of_the_server(transport: Transport) {
    const GETS: u64 = 100_000;
    let site = Site::over(transport);
    let server = site.serve();
    load(&site);
    let mut client = site.connect(PATIENCE);
    let before = at_rest(server.pid());
    let (counters, began) = (client.server_stat().unwrap().counters, Instant::now());
    for i in 0..GETS {
        let found = client.get_with(&(i % KEYS).to_le_bytes(), |bytes, _| bytes.len()).unwrap();
        assert_eq!(found, Some(value(i % KEYS).len()));
    }
    let (after, took) = (threads(server.pid()), began.elapsed());
    assert_eq!(client.stats().asked_server, 0);
    let after_counters = client.server_stat().unwrap().counters;
    for name in ["requests", "gets_by_server", "wake_ups"] {
        assert_eq!(after_counters[name], counters[name], "{name}");
    }
    assert_eq!(before.len(), after.len());
    for (before, after) in before.iter().zip(&after) {
        if after.name == "kv-accept" {
            // It sets the superblock's clock every 20 ms, for expiry, whatever clients do.
            let ticks = took.as_millis() as u64 / 20 + 2;
            let slices = after.slices - before.slices;
            assert!(slices <= 2 * ticks, "{slices} times on a processor for {ticks} ticks of the clock");
        } else {
            assert_eq!((after.run, after.slices), (before.run, before.slices), "{}", after.name);
        }
    }
}
