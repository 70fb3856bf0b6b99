//! GETs and nothing else, between two marks that callgrind can be told to count by: `scripts/get-cost.sh` runs it.
//!
//! usage: get_cost VALUE_BYTES GETS, with a kv-server at KV_URL

use kv_client::{Client, Error};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number =
        || arguments.next().and_then(|text| text.parse().ok()).ok_or("usage: get_cost VALUE_BYTES GETS");
    let (value_bytes, gets): (usize, usize) = (number()?, number()?);
    let mut client = Client::connect(&std::env::var("KV_URL")?)?;
    // Keys of 24 bytes, few enough to stay in the processor's caches: instructions are counted, not misses.
    let keys: Vec<String> = (0..1000).map(|i| format!("user{i:020}")).collect();
    for key in &keys {
        client.put(key.as_bytes(), &vec![7; value_bytes])?;
    }
    client.warm_up()?;
    let before = client.stats();
    get_each(&mut client, &keys, gets)?;
    get_into_each(&mut client, &keys, gets, value_bytes)?;
    multi_get_each(&mut client, &keys, gets)?;
    let after = client.stats();
    assert_eq!(after.reads - before.reads, 3 * gets as u64, "every GET takes one READ");
    assert_eq!(after.values_in_place, gets as u64, "every value stays where it was read to");
    Ok(())
}

/// One GET after the other.
#[inline(never)]
fn get_each(client: &mut Client, keys: &[String], gets: usize) -> Result<(), Error> {
    let mut value = Vec::with_capacity(1 << 20);
    for i in 0..gets {
        client.get_to_vec(keys[i % keys.len()].as_bytes(), &mut value)?;
    }
    Ok(())
}

/// The same into registered memory, of which the value's last byte is looked at.
#[inline(never)]
fn get_into_each(client: &mut Client, keys: &[String], gets: usize, value_bytes: usize) -> Result<(), Error> {
    let mut buffer = client.register(value_bytes)?;
    let mut sum = 0;
    for i in 0..gets {
        let value = client.get_into(keys[i % keys.len()].as_bytes(), &mut buffer)?;
        sum += usize::from(value.and_then(|value| value.bytes.last().copied()).unwrap_or(0));
    }
    assert_eq!(sum, 7 * gets, "every value was found");
    Ok(())
}

/// The same as the first in batches of 16.
#[inline(never)]
fn multi_get_each(client: &mut Client, keys: &[String], gets: usize) -> Result<(), Error> {
    let mut value: Vec<u8> = Vec::with_capacity(1 << 20);
    for i in 0..gets / 16 {
        let batch = &keys[i % 60 * 16..][..16];
        client.multi_get_with(batch, |_, result| {
            value.clear();
            value.extend_from_slice(result.ok().flatten().expect("all keys are there").0);
        });
    }
    Ok(())
}
