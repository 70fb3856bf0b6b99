//! Bandwidth of PUTs and GETs of large values, beside what copying and hashing the same bytes takes in this process.
//!
//! usage: large_values ROUNDS MIB..., with a kv-server at KV_URL

use std::hint::black_box;
use std::time::Instant;

use kv_client::Client;

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: large_values ROUNDS MIB...";
    let rounds: usize = arguments.next().ok_or(usage)?.parse()?;
    let sizes: Vec<usize> = arguments.map(|text| text.parse()).collect::<Result<_, _>>()?;
    let mut client = Client::connect(&std::env::var("KV_URL")?)?;
    println!("{}: GiB/s, median of {rounds} rounds (least, most)", client.transport());
    for mib in sizes {
        measure(&mut client, mib << 20, rounds)?;
    }
    Ok(())
}

fn measure(client: &mut Client, bytes: usize, rounds: usize) -> Result<(), Error> {
    let value: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let mut reused = vec![0u8; bytes];
    let mut buffer = client.register(bytes)?;
    let mut read = Vec::new();
    let is_it = |found: &[u8]| found.len() == bytes && found[bytes / 2] == value[bytes / 2];
    report(bytes, "copy, memory in use", rounds, || {
        reused.copy_from_slice(black_box(&value));
        Ok(())
    })?;
    report(bytes, "copy, new memory", rounds, || {
        black_box(value.clone());
        Ok(())
    })?;
    report(bytes, "xxh3", rounds, || {
        black_box(xxhash_rust::xxh3::xxh3_64(black_box(&value)));
        Ok(())
    })?;
    report(bytes, "put", rounds, || Ok(client.put(b"key", &value).map(drop)?))?;
    report(bytes, "get", rounds, || {
        Ok(check(client.get(b"key")?.is_some_and(|value| is_it(&value.bytes)))?)
    })?;
    report(bytes, "get_to_vec", rounds, || {
        client.get_to_vec(b"key", &mut read)?;
        Ok(check(is_it(&read))?)
    })?;
    report(bytes, "get_into", rounds, || {
        let found = client.get_into(b"key", &mut buffer)?;
        Ok(check(found.is_some_and(|value| is_it(value.bytes)))?)
    })?;
    client.delete(b"key")?;
    Ok(())
}

fn check(is_right: bool) -> Result<(), &'static str> {
    if is_right { Ok(()) } else { Err("another value was found than the one put") }
}

fn report(
    bytes: usize,
    name: &str,
    rounds: usize,
    mut act: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    act()?;
    let mut rates = Vec::new();
    for _ in 0..rounds {
        let started = Instant::now();
        act()?;
        rates.push(bytes as f64 / started.elapsed().as_secs_f64() / f64::from(1 << 30));
    }
    rates.sort_by(f64::total_cmp);
    let (least, median, most) = (rates[0], rates[rounds / 2], rates[rounds - 1]);
    println!("{:>5} MiB  {name:<20} {median:6.2}  ({least:.2}, {most:.2})", bytes >> 20);
    Ok(())
}
