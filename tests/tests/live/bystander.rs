//! A good client with things to lose, while others misbehave.

use kv_client::Client;

use super::server::{Needs, Server, Site, Transport};
use super::{PATIENCE, value_of};

const KEYS: u64 = 100;

fn value(i: u64) -> Vec<u8> {
    value_of(i, i as usize % 5 * 1000)
}

/// A server with this memory, and the client.
pub(crate) fn good(transport: Transport, memory: &'static str) -> (Site, Server, Client) {
    let site = Site::over(transport);
    let server = site.serve_with(Needs { memory, ..Needs::default() }, &[]);
    let mut client = site.connect(PATIENCE);
    for i in 0..KEYS {
        client.put(&i.to_le_bytes(), &value(i)).unwrap();
    }
    (site, server, client)
}

/// Asserts that it has lost nothing and can still write.
pub(crate) fn assert_unharmed(client: &mut Client, round: u64) {
    for i in 0..KEYS {
        let found = client.get(&i.to_le_bytes()).unwrap().unwrap();
        assert!(found.bytes == value(i), "key {i}");
    }
    client.put(b"round", &round.to_le_bytes()).unwrap();
    assert_eq!(client.get(b"round").unwrap().unwrap().bytes, round.to_le_bytes());
}
