//! Many operations in flight over one connection: submit without waiting, take completions as they come.
//!
//! ```text
//! cargo run --example pipelined -- kv+shm:///tmp/kv-1000.sock        or set KV_URL
//! ```

use std::collections::HashMap;
use std::error::Error;

use kv_client::{Client, Outcome};

/// Operations in flight at once. The server takes at most 64 requests of one client at a time; more wait in the client.
const DEPTH: usize = 64;
const KEYS: usize = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("KV_URL").ok());
    let url = url.ok_or("name the server: its URL as first argument, or in KV_URL")?;
    let mut client = Client::connect(&url)?;
    let key = |i: usize| format!("pipelined/{i}").into_bytes();

    // Every ticket completes exactly once, in any order.
    let (mut in_flight, mut next, mut stored) = (HashMap::new(), 0, 0);
    while stored < KEYS {
        while next < KEYS && in_flight.len() < DEPTH {
            in_flight.insert(client.submit_put(&key(next), b"value")?, next);
            next += 1;
        }
        let done = client.wait()?.ok_or("a PUT is in flight")?;
        let index = in_flight.remove(&done.ticket).ok_or("a ticket completes once")?;
        let Outcome::Put(result) = done.outcome else { return Err("a PUT ends as a PUT".into()) };
        result.map_err(|error| format!("key {index}: {error}"))?;
        stored += 1;
    }
    println!("{stored} stored");

    // Reads overlap best as one multi_get: one result per key, in their order.
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let results = client.multi_get(&keys);
    let found = results.iter().filter(|result| matches!(result, Ok(Some(_)))).count();
    let stats = client.stats();
    println!("{found} found with {:.2} READs per GET", stats.reads as f64 / stats.gets as f64);

    for key in &keys {
        while client.pending() >= DEPTH {
            client.wait()?;
        }
        client.submit_delete(key)?;
    }
    while client.wait()?.is_some() {}
    Ok(())
}
