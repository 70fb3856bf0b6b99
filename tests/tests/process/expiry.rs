//! Keys whose time ends, while the server is stopped.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::{Duration, Instant};

use kv_client::{Client, Condition, Conditional, Error, Options, PutOptions, TimeToLive};
use kv_common::hello::WELCOME_DESCRIPTORS;
use kv_common::transport::handshake::{receive_hello, send_hello};

use crate::live::server::Site;
use crate::live::{PATIENCE, wait_for};

/// How far readers may be off, as documented.
const BOUND: Duration = Duration::from_millis(50);

/// A key whose time is over at some moment between two.
struct Ending {
    key: Vec<u8>,
    earliest: Instant,
    latest: Instant,
}

impl Ending {
    fn put(client: &mut Client, key: Vec<u8>, ttl: Duration) -> Ending {
        let began = Instant::now();
        client.put_with(&key, &key, PutOptions::from(ttl)).unwrap();
        Ending { key, earliest: began + ttl, latest: Instant::now() + ttl }
    }

    /// One look. True if the key was found.
    fn is_found(&self, client: &mut Client) -> bool {
        let began = Instant::now();
        let found = client.get(&self.key).unwrap();
        let ended = Instant::now();
        match &found {
            Some(value) => {
                assert_eq!(value.bytes, self.key);
                assert!(began < self.latest + BOUND, "found {:?} after its end", began - self.latest);
            }
            None => {
                assert!(ended + BOUND > self.earliest, "missed {:?} before its end", self.earliest - ended)
            }
        }
        found.is_some()
    }
}

#[test]
fn time_does_not_stop_with_the_server() {
    let site = Site::new();
    let server = site.serve();
    let mut writer = site.connect(PATIENCE);
    writer.put_with(b"late", b"value", PutOptions::from(Duration::from_secs(3600))).unwrap();
    writer.put(b"endless", b"value").unwrap();
    // One has looked at the server's clock before it is stopped, one has not, and one will not for long.
    let mut readers = [site.connect(PATIENCE), site.connect(PATIENCE)];
    let mut sleeper = site.connect(PATIENCE);
    assert!(readers[0].exists(b"late").unwrap());
    let mut ending: Vec<Ending> = (0..40_u8)
        .map(|i| Ending::put(&mut writer, vec![b'e', i], Duration::from_millis(400 + 40 * u64::from(i))))
        .collect();
    server.freeze();
    let all: Vec<Vec<u8>> = ending.iter().map(|ending| ending.key.clone()).collect();
    while !ending.is_empty() {
        for reader in &mut readers {
            assert!(reader.exists(b"late").unwrap() && reader.exists(b"endless").unwrap());
        }
        ending.retain(|key| {
            let found = readers.each_mut().map(|reader| key.is_found(reader));
            found.contains(&true)
        });
    }
    // Long over: the last of these ended some 400 ms ago.
    assert!(sleeper.multi_get(&all[..30]).iter().all(|found| *found == Ok(None)));
    assert!(sleeper.exists(b"late").unwrap());
    for reader in readers.iter().chain([&sleeper]) {
        assert_eq!(reader.stats().asked_server, 0);
    }
    server.thaw();
    // They are absent for everybody, and their space comes back by itself.
    let absent = PutOptions::from(Condition::Absent);
    assert!(matches!(writer.put_with(b"e\0", b"new", absent), Ok(Conditional::Done(_))));
    assert_eq!(writer.ttl(b"e\x01"), Ok(TimeToLive::Absent));
    assert!(matches!(writer.ttl(b"late"), Ok(TimeToLive::Left(_))));
    wait_for("the background", || {
        let counters = writer.server_stat().unwrap().counters;
        (counters["expiring_keys"] == 1 && counters["keys"] == 3).then_some(())
    });
    // The one that was written anew may have been removed before that.
    assert!((39..=40).contains(&writer.server_stat().unwrap().counters["expired"]));
    for reader in &mut readers {
        assert_eq!(reader.get(b"e\0").unwrap().unwrap().bytes, b"new");
        assert!(reader.exists(b"late").unwrap());
    }
}

/// The server is stopped, for longer than the key has left, after it has answered a hello and before the client looks at its
/// clock for the first time.
#[test]
fn a_clock_that_stood_when_it_was_seen_first_is_not_believed() {
    let site = Site::new();
    let server = site.serve();
    let relay_path = site.socket().with_extension("relay");
    let relay = UnixListener::bind(&relay_path).unwrap();
    let mut writer = site.connect(PATIENCE);
    writer.put(b"endless", b"value").unwrap();
    let ending = Ending::put(&mut writer, b"ending".to_vec(), Duration::from_millis(500));
    let over = ending.latest + 2 * BOUND;
    thread::scope(|scope| {
        let relayed = scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            let (to_client, _) = relay.accept().unwrap();
            let to_server = UnixStream::connect(site.socket()).unwrap();
            for socket in [&to_client, &to_server] {
                socket.set_nonblocking(true).unwrap();
            }
            let hello = receive_hello(&to_client, 0, deadline).unwrap();
            send_hello(&to_server, &hello.bytes, &[], deadline).unwrap();
            let answer = receive_hello(&to_server, WELCOME_DESCRIPTORS, deadline).unwrap();
            server.freeze();
            thread::sleep(over.saturating_duration_since(Instant::now()));
            let descriptors: Vec<_> = answer.descriptors.iter().map(AsFd::as_fd).collect();
            send_hello(&to_client, &answer.bytes, &descriptors, deadline).unwrap();
            (to_client, to_server)
        });
        let options = Options { timeout: Duration::from_secs(3), ..Options::default() };
        let mut client =
            Client::connect_with(&format!("kv+shm://{}", relay_path.display()), &options).unwrap();
        let _sockets = relayed.join().unwrap();
        // What has no end needs no clock; nobody can say whether the other one's has come.
        assert_eq!(client.get(b"endless").unwrap().unwrap().bytes, b"value");
        let answer = client.get(b"ending");
        assert!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
        server.thaw();
        assert_eq!(client.get(b"ending"), Ok(None));
    });
}
