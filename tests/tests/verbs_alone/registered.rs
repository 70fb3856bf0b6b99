//! Memory of the user is never in two hands: the device's and the user's.

use std::io::copy;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use kv_client::{Broken, Client, Error, Options, Outcome};
use kv_common::endpoint::{Address, ConnectBy};
use kv_common::hello::{Answer, Hello, Wanted};
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::tcp::socket;
use kv_common::transport::verbs::client::VerbsTransport;
use kv_common::transport::verbs::connect::connect;
use kv_common::transport::verbs::port::PortWish;
use kv_common::transport::{ReadBuffer, Transport as _, UserMemory};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::live::device;
use crate::live::helper::{Helper, told};
use crate::live::server::{Site, Transport};
use crate::live::{PATIENCE, deadline, not_run, value_of, wait_for};

/// Shorter than any device tries a READ (half a second), and long enough to connect.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Passes the control connections of clients on to `server`, and does not close them when the server does.
fn deaf_relay(server: &Address) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (url, server) = (format!("kv+rdma://{}", listener.local_addr().unwrap()), server.clone());
    thread::spawn(move || {
        // Kept to the end of the process.
        let mut clients = Vec::new();
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = socket::connect(&server, deadline()) else { continue };
            for (mut from, mut to) in [(&client, &server), (&server, &client)]
                .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
            {
                thread::spawn(move || copy(&mut from, &mut to));
            }
            clients.push(client);
        }
    });
    url
}

fn count(name: &str) -> Option<u64> {
    device::objects()?.into_iter().find_map(|(found, count)| (found == name).then_some(count))
}

/// The server's queue pair is gone, and nothing says so: the READ is never answered. The device gives it up much later.
#[test]
#[ignore = "needs an RDMA device"]
fn a_deadline_gives_memory_back_after_the_device_has_let_go_of_it() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let mut server = site.serve();
    let url = deaf_relay(&site.listen);
    let options = Options { timeout: TIMEOUT, ..Options::default() };
    let mut client = wait_for("a connection", || Client::connect_with(&url, &options).ok());
    client.put(b"key", b"value").unwrap();
    let mut buffer = client.register(1000).unwrap();
    assert_eq!(client.get_into(b"key", &mut buffer).unwrap().unwrap().bytes, b"value");
    server.kill();
    let [pairs, regions] = ["qp", "mr"].map(count);
    let result = client.get_into(b"key", &mut buffer);
    assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}");
    // The client is still there, and the device has neither its queue pair nor this memory any more.
    if pairs.is_none() {
        not_run("objects of the device after a deadline", "there is no `rdma resource`");
    }
    assert_eq!(["qp", "mr"].map(count), [pairs, regions].map(|before| before.map(|count| count - 1)));
    assert_eq!(buffer.value(), None);
    let lost = client.get_into(b"key", &mut buffer);
    let Err(Error::Broken(Broken::Rdma { what })) = lost else { panic!("{lost:?}") };
    assert!(what.contains("deadline"), "{what}");

    let mut server = site.serve();
    let version = wait_for("a connection again", || client.put(b"key", b"of another").ok());
    let found = wait_for("an answer", || {
        client.get_into(b"key", &mut buffer).ok().map(|found| found.unwrap().version)
    });
    assert_eq!((found, buffer.value().unwrap().bytes), (version, &b"of another"[..]));
    assert_eq!(client.stats().values_in_place, 2);

    // The same of those that were submitted; what else was in flight fails once, too.
    server.kill();
    let other = client.register(1000).unwrap();
    let into = [buffer, other].map(|buffer| client.submit_get_into(b"key", buffer).unwrap());
    let get = client.submit_get(b"key").unwrap();
    let mut ended = Vec::new();
    while let Some(done) = client.wait().unwrap() {
        match done.outcome {
            Outcome::GetInto(buffer, Err(Error::Timeout { .. } | Error::Broken(_))) => {
                assert_eq!(buffer.value(), None)
            }
            Outcome::Get(Err(Error::Timeout { .. } | Error::Broken(_))) => {}
            outcome => panic!("{outcome:?}"),
        }
        ended.push(done.ticket);
    }
    ended.sort_unstable();
    assert_eq!(ended, [into[0], into[1], get]);
    assert!(client.stats().timeouts >= 2);
}

fn transport(site: &Site) -> VerbsTransport {
    let control: TcpStream = socket::connect(&site.listen, deadline()).unwrap();
    let port = PortWish::default().choose(None).unwrap();
    send_hello(&control, &Hello::ours(Wanted::Rdma).encode(), &[], deadline()).unwrap();
    let answer = receive_hello(&control, 0, deadline()).unwrap().bytes;
    let Answer::Welcome(welcome) = Answer::decode(&answer).unwrap() else { panic!("not welcome") };
    connect(control, &welcome, port, ConnectBy::Tcp, deadline()).unwrap()
}

#[test]
#[ignore = "needs an RDMA device"]
fn nothing_lands_in_memory_that_was_taken_back_from_a_read() {
    /// In no region.
    const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;
    const WORDS: usize = 1 << 17;
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    let mut bystander = site.connect(PATIENCE);
    bystander.put(b"key", &value_of(1, 1 << 20)).unwrap();
    let mut memory = Box::new(UserMemory::new(WORDS * 8).unwrap());
    let (mut none, mut part, mut all) = (0, 0, 0);
    for round in 0..16 {
        let mut transport = transport(&site);
        memory.words_mut().fill(UNTOUCHED);
        transport.register(&mut memory).unwrap();
        transport.post_read(7, 0, ReadBuffer::User { memory, len_words: WORDS });
        transport.flush();
        // Earlier and later in the READ.
        let looks = if round % 4 == 0 { 0 } else { 1 << round };
        (0..looks).for_each(|_| std::hint::spin_loop());
        memory = transport.take_back(7).expect("a READ that is under way, or done and not taken");
        let landed = memory.words().to_vec();
        // What was under way would be there after as many READs of others.
        for _ in 0..3 {
            assert_eq!(bystander.get(b"key").unwrap().unwrap().bytes.len(), 1 << 20);
        }
        assert!(memory.words() == landed, "the device wrote to memory that was given back, round {round}");
        match landed.iter().filter(|&&word| word != UNTOUCHED).count() {
            0 => none += 1,
            WORDS => all += 1,
            _ => part += 1,
        }
    }
    println!("taken back with nothing landed: {none}, a part: {part}, everything: {all}");
}

/// Not a test of its own: it takes rights away from itself.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn helper_may_not_lock_memory() {
    let Some(url) = told() else { return };
    // First: the device takes requests only from who opened it.
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum }).unwrap();
    let mut client = Client::connect(&url).unwrap();
    client.put(b"key", b"value").unwrap();
    let mut buffer = client.register(100).unwrap();
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), maximum }).unwrap();
    let refused = client.register(1 << 20);
    let Err(Error::NotRegistered { bytes, reason }) = refused else { panic!("{refused:?}") };
    assert!(bytes > 1 << 20, "{bytes}");
    for part in ["65536 bytes", "ulimit -l", "LimitMEMLOCK=infinity"] {
        assert!(reason.contains(part), "{part:?} is missing in {reason:?}");
    }
    // Nothing else has changed.
    assert_eq!(client.get_into(b"key", &mut buffer).unwrap().unwrap().bytes, b"value");
    println!("@done");
}

#[test]
#[ignore = "needs an RDMA device"]
fn memory_that_may_not_be_locked_is_refused_with_the_remedy() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    assert_eq!(Helper::start("registered::helper_may_not_lock_memory", &site.url()).finish(), ["done"]);
}

/// A connection made anew may be of another kind: memory follows.
#[test]
#[ignore = "needs an RDMA device"]
fn memory_goes_from_transport_to_transport() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let _server = site.serve();
    let urls =
        [site.url(), site.socket().display().to_string(), format!("kv+tcp://{}", site.listen), site.url()];
    let mut clients = urls.map(|url| Client::connect(&url).unwrap());
    assert_eq!(clients.each_ref().map(Client::transport), ["verbs", "shm", "tcp", "verbs"]);
    let mut buffer = clients[0].register(5000).unwrap();
    for round in 0..3 {
        for (i, client) in clients.iter_mut().enumerate() {
            let bytes = value_of(round, 1000 * i + 70);
            let version = client.put(b"key", &bytes).unwrap();
            let found = client.get_into(b"key", &mut buffer).unwrap().unwrap();
            assert_eq!((found.bytes, found.version), (&bytes[..], version));
            assert_eq!(client.stats().values_in_place, round + 1);
        }
    }
}
