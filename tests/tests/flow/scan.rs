//! Walks over all keys.

use std::collections::BTreeSet;

use kv_client::{Client, Cursor};

use crate::live::server::{Needs, Start};

fn scan(client: &mut Client) -> Vec<Vec<u8>> {
    let (mut keys, mut cursor) = (Vec::new(), Some(Cursor::default()));
    while let Some(from) = cursor {
        let page = client.scan(from).unwrap();
        keys.extend(page.keys);
        cursor = page.next;
    }
    keys
}

pub(crate) fn scans_see_all_keys_and_clears_leave_none(start: Start) {
    // A segment for each size of block.
    let server = start(Needs { memory: "128MiB", ..Needs::default() });
    let (mut client, mut other) = (server.connect_for_setup(), server.connect());
    assert!(scan(&mut client).is_empty());
    assert_eq!(client.clear(), Ok(0));
    // Of all lengths, so that pages end in the middle of nothing.
    let keys: BTreeSet<Vec<u8>> =
        (0..3000u32).map(|i| [&i.to_le_bytes()[..], &vec![b'x'; i as usize % 1021]].concat()).collect();
    for key in &keys {
        client.put(key, b"value").unwrap();
    }
    let seen = scan(&mut other);
    assert_eq!(seen.len(), keys.len(), "each once, since nothing moved");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), keys);
    let last = keys.last().unwrap();
    assert!(other.get(last).unwrap().is_some(), "it has learned a place");
    assert_eq!(client.clear(), Ok(keys.len() as u64));
    assert_eq!(other.get(last), Ok(None));
    assert!(scan(&mut other).is_empty());
    assert_eq!(client.server_stat().unwrap().counters["keys"], 0);
    assert_eq!(other.scan(Cursor::from_u64(u64::MAX)).unwrap().next, None, "no cursor is the end");
}
