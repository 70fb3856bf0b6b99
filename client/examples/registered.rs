//! Values read straight into memory of the program: once registered, used for many GETs, with and without waiting.
//!
//! ```text
//! cargo run --example registered -- kv+rdma://server:7410        or set KV_URL; any transport will do
//! ```

use std::error::Error;

use kv_client::{Client, Outcome};

const KEYS: usize = 1000;
const VALUE_BYTES: usize = 16 << 10;
/// GETs under way at once, each with memory of its own.
const DEPTH: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("KV_URL").ok());
    let url = url.ok_or("name the server: its URL as first argument, or in KV_URL")?;
    let mut client = Client::connect(&url)?;
    let key = |i: usize| format!("registered/{i}").into_bytes();
    for i in 0..KEYS {
        client.put(&key(i), &vec![i as u8; VALUE_BYTES])?;
    }

    // One after the other: the value is a slice of the buffer, until the next GET into it.
    let mut buffer = client.register(VALUE_BYTES)?;
    let mut sum = 0_u64;
    for i in 0..KEYS {
        let value = client.get_into(&key(i), &mut buffer)?.ok_or("it was just put")?;
        sum += value.bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    }

    // Several at once: a buffer goes with its GET and comes back with the completion.
    let mut spare = vec![buffer];
    while spare.len() < DEPTH {
        spare.push(client.register(VALUE_BYTES)?);
    }
    let (mut next, mut ended, mut again) = (0, 0, 0_u64);
    while ended < KEYS {
        while next < KEYS
            && let Some(buffer) = spare.pop()
        {
            client.submit_get_into(&key(next), buffer)?;
            next += 1;
        }
        let done = client.wait()?.ok_or("a GET is under way")?;
        let Outcome::GetInto(buffer, result) = done.outcome else {
            return Err("only such GETs are under way".into());
        };
        result?;
        let value = buffer.value().ok_or("nobody deletes it")?;
        again += value.bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        spare.push(buffer);
        ended += 1;
    }
    if sum != again {
        return Err(format!("the bytes add up to {sum} and to {again}").into());
    }
    let stats = client.stats();
    println!(
        "{} of {} values stayed where their READ ended, over {}",
        stats.values_in_place,
        stats.hits,
        client.transport()
    );
    for i in 0..KEYS {
        client.delete(&key(i))?;
    }
    Ok(())
}
