//! The largest value that there can be.

use std::time::Instant;

use crate::live::server::{Needs, Site};
use crate::live::{PATIENCE, value_of};

#[test]
#[ignore = "takes 7 GiB of memory; scripts/test.sh runs it if there are so many"]
fn a_value_of_1_gib_is_stored_read_replaced_and_deleted() {
    let site = Site::new();
    let _server = site.serve_with(Needs { memory: "2200MiB", max_value: "1GiB", ..Needs::default() }, &[]);
    let mut client = site.connect(PATIENCE);
    let mut value = value_of(1, 1 << 30);
    for round in 0..2u8 {
        value[1 << 29] = round;
        let started = Instant::now();
        client.put(b"key", &value).unwrap();
        let put = started.elapsed();
        let found = client.get(b"key").unwrap().unwrap();
        println!("PUT of 1 GiB: {put:.2?}, GET: {:.2?}", started.elapsed() - put);
        assert!(found.bytes == value);
    }
    assert_eq!(client.delete(b"key"), Ok(true));
    assert_eq!(client.server_stat().unwrap().counters["block_bytes"], 0);
}
