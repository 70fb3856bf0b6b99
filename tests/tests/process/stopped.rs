//! GETs need no processor time of the server: they go on while it is stopped.

use std::time::{Duration, Instant};

use kv_client::{Client, Error, Options};

use crate::live::bypass::{self, KEYS, get, load, value};
use crate::live::server::{Site, Transport};
use crate::live::{PATIENCE, value_of, wait_for};

/// Short, because tests wait for it; nothing depends on how short.
const TIMEOUT: Duration = Duration::from_millis(300);

fn get_all(client: &mut Client) {
    for i in 0..KEYS {
        get(client, i);
        assert_eq!(client.exists(&(KEYS + i).to_le_bytes()), Ok(false), "key {i}");
    }
}

fn is_timeout<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Timeout { waited_ms }) if *waited_ms >= TIMEOUT.as_millis() as u64)
}

fn is_unknown<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::OutcomeUnknown { .. }))
}

#[test]
fn gets_go_on_while_the_server_is_stopped_and_writes_end_by_their_deadline() {
    let site = Site::new();
    let server = site.serve();
    load(&site);
    let mut warm = site.connect(TIMEOUT);
    warm.warm_up().unwrap();
    let mut cold = Client::connect_with(
        &site.url(),
        &Options { timeout: TIMEOUT, index_cache_bytes: 64, ..Options::default() },
    )
    .unwrap();
    let version = cold.put(b"written", b"before").unwrap();
    server.freeze();
    for client in [&mut warm, &mut cold] {
        for _ in 0..5 {
            get_all(client);
        }
        let keys: Vec<[u8; 8]> = (0..2 * KEYS).map(u64::to_le_bytes).collect();
        let found = client.multi_get(&keys).into_iter().filter(|found| found.as_ref().unwrap().is_some());
        assert_eq!(found.count() as u64, KEYS);
        assert_eq!(client.server_stat().unwrap().server_pid, u64::from(server.pid()));
    }
    assert_eq!(cold.stats().asked_server + warm.stats().asked_server, 0);

    // Each write and each request ends typed, by its deadline, and GETs go on between them.
    let began = Instant::now();
    assert!(is_unknown(&cold.put(b"written", b"while stopped")));
    assert!(began.elapsed() >= TIMEOUT);
    assert_eq!(cold.get(b"written").unwrap().unwrap().version, version);
    assert!(is_unknown(&cold.put(b"large", &value_of(1, 100_000))));
    assert!(is_unknown(&cold.put(b"second large", &value_of(2, 100_000))));
    let third = cold.put(b"third large", &value_of(3, 100_000));
    assert!(is_timeout(&third), "both halves of the staging area are lent");
    // Its parts are not sent, so nothing can come of it.
    assert!(is_timeout(&cold.put(b"very large", &value_of(4, 2_000_000))));
    assert!(is_unknown(&cold.delete(&0_u64.to_le_bytes())));
    assert!(is_unknown(&cold.compare_and_set(&1_u64.to_le_bytes(), 1, b"no")));
    assert!(is_timeout(&cold.ping()));
    get_all(&mut cold);
    assert_eq!(cold.stats().timeouts, 8);
    let connected = Client::connect_with(&site.url(), &Options { timeout: TIMEOUT, ..Options::default() });
    assert!(matches!(connected, Err(Error::Connect { .. })), "{connected:?}");

    server.thaw();
    let mut client = site.connect(PATIENCE);
    // What was sent is done in its order, before what is sent now.
    wait_for("an answer", || cold.put(b"again", b"value").ok());
    assert_eq!(client.get(b"written").unwrap().unwrap().bytes, b"while stopped");
    assert_eq!(client.get(b"large").unwrap().unwrap().bytes, value_of(1, 100_000));
    assert_eq!(client.get(b"second large").unwrap().unwrap().bytes, value_of(2, 100_000));
    for key in [&b"third large"[..], b"very large"] {
        assert_eq!(client.exists(key), Ok(false), "it was not sent");
    }
    assert_eq!(client.get(&0_u64.to_le_bytes()), Ok(None));
    assert_eq!(client.get(&1_u64.to_le_bytes()).unwrap().unwrap().bytes, value(1));
    wait_for("a large value", || cold.put(b"very large", &value_of(4, 2_000_000)).ok());
    assert!(client.get(b"very large").unwrap().unwrap().bytes == value_of(4, 2_000_000));
}

#[test]
fn over_tcp_everything_ends_by_its_deadline_and_goes_on_when_the_server_does() {
    let site = Site::over(Transport::Tcp);
    let server = site.serve();
    load(&site);
    let mut client = site.connect(TIMEOUT);
    get_all(&mut client);
    let mut buffer = client.register(100).unwrap();
    server.freeze();
    for round in 0..2 {
        let began = Instant::now();
        assert!(is_timeout(&client.get_into(&1_u64.to_le_bytes(), &mut buffer)));
        assert_eq!(buffer.value(), None);
        assert!(is_timeout(&client.get(&1_u64.to_le_bytes())));
        assert!(is_timeout(&client.get(b"absent")));
        assert!(is_timeout(&client.exists(&2_u64.to_le_bytes())));
        assert!(is_timeout(&client.ping()));
        assert!(is_unknown(&client.put(&[b'w', round], b"while stopped")));
        assert!(is_unknown(&client.delete(&0_u64.to_le_bytes())));
        assert!(began.elapsed() >= 7 * TIMEOUT);
        let keys: Vec<[u8; 8]> = (0..200).map(u64::to_le_bytes).collect();
        assert!(client.multi_get(&keys).iter().all(is_timeout));
        assert!(is_timeout(&client.server_stat()) && is_timeout(&client.warm_up()));
    }
    let connected = Client::connect_with(&site.url(), &Options { timeout: TIMEOUT, ..Options::default() });
    assert!(matches!(connected, Err(Error::Connect { .. })), "{connected:?}");
    server.thaw();
    wait_for("an answer", || client.ping().ok());
    assert_eq!(client.server_stat().unwrap().server_pid, u64::from(server.pid()));
    for round in 0..2 {
        assert_eq!(client.get(&[b'w', round]).unwrap().unwrap().bytes, b"while stopped");
    }
    client.put(&0_u64.to_le_bytes(), &value(0)).unwrap();
    get_all(&mut client);
    // Memory of READs that were given up, over the same connection.
    let found = client.get_into(&1_u64.to_le_bytes(), &mut buffer).unwrap().unwrap();
    assert_eq!(found.bytes, value(1));
    assert_eq!(client.stats().reconnects, 0);
}

#[test]
fn gets_take_no_processor_time_of_the_server() {
    bypass::gets_take_no_processor_time_of_the_server(Transport::Shm);
}
