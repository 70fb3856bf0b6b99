//! Store a value, read it back, replace it only if nobody else did, delete it.
//!
//! ```text
//! cargo run --example get_put -- kv+shm:///tmp/kv-1000.sock        or set KV_URL
//! ```

use std::error::Error;

use kv_client::{Client, Conditional};

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("KV_URL").ok());
    let url = url.ok_or("name the server: its URL as first argument, or in KV_URL")?;
    let mut client = Client::connect(&url)?;

    // A write is a request to the server. It returns the version of what was stored.
    let version = client.put(b"greeting", b"hello")?;

    // A GET reads the server's memory; the server does not run for it.
    let value = client.get(b"greeting")?.ok_or("somebody else deleted it")?;
    println!("version {}: {}", value.version, String::from_utf8_lossy(&value.bytes));

    // The version is the token of compare-and-set.
    match client.compare_and_set(b"greeting", version, b"hello again")? {
        Conditional::Done(new) => println!("replaced, now version {new}"),
        Conditional::Mismatch(found) => println!("somebody wrote version {found} meanwhile"),
        Conditional::NotFound => println!("somebody deleted it meanwhile"),
    }

    println!("deleted: {}", client.delete(b"greeting")?);
    println!("there: {}", client.exists(b"greeting")?);
    Ok(())
}
