//! A server that is stopped is checked, whatever it was in the middle of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kv_client::Client;

use crate::live::bypass::{KEYS, load};
use crate::live::server::Site;
use crate::live::{PATIENCE, Random, value_of};

/// Writes with every kind of store, until it is over or the server does not answer any more.
fn write(client: &mut Client, seed: u64, is_over: &AtomicBool) {
    let mut random = Random::new(seed);
    while !is_over.load(Ordering::Acquire) {
        for _ in 0..16 {
            let key = [seed as u8, random.below(200) as u8];
            let submitted = match random.below(4) {
                0 => client.submit_delete(&key),
                1 => client.submit_put(&key, &value_of(1, random.below(6000) as usize)),
                2 => client.submit_put(&random.next().to_le_bytes(), b"new"),
                _ => client.submit_put(&key, &value_of(2, 500)),
            };
            submitted.unwrap();
        }
        while client.wait().unwrap().is_some() {}
    }
}

#[test]
fn a_server_that_is_stopped_is_checked() {
    let site = Site::new();
    let server = site.serve();
    load(&site);
    let mut client = site.connect(PATIENCE);
    server.freeze();
    let checked = client.check(|_| {}).unwrap();
    assert!(checked.is_sound(), "{:#?}", checked.findings);
    assert_eq!(checked.unjudged, kv_client::Unjudged::default());
    assert_eq!(checked.report.keys, KEYS);
    server.thaw();
    // In the middle of writes.
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 1..3 {
            let (site, is_over) = (&site, &is_over);
            scope.spawn(move || write(&mut site.connect(PATIENCE), seed, is_over));
        }
        for round in 0..8 {
            let written = client.server_stat().unwrap().counters["inserts"];
            while client.server_stat().unwrap().counters["inserts"] < written + 100 {
                thread::yield_now();
            }
            server.freeze();
            let checked = client.check(|_| {}).unwrap();
            server.thaw();
            println!("round {round}: {:?}", checked.unjudged);
            if !checked.is_sound() {
                is_over.store(true, Ordering::Release);
            }
            assert!(checked.is_sound(), "round {round}: {:#?}", checked.findings);
        }
        is_over.store(true, Ordering::Release);
    });
}
