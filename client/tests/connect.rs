//! Servers that are none, or not the right ones: each is an error that says what was wrong, by the deadline.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kv_client::{Broken, Client, Error, Options, Outcome, Refusal};
use kv_common::hello::{Answer, HelloRefusal, Welcome};
use kv_common::layout::superblock;
use kv_common::limits::VALUE_MAX_DEFAULT_BYTES;
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::shm::channel::{ChannelLayout, ServerEnd};
use kv_common::transport::shm::mapping::{
    ChannelMemory, PagePolicy, RegionMemory, create_channel, create_region,
};
use kv_common::transport::shm::owner::OwnerKeeper;
use kv_common::wire::{Reply, Status};
use kv_server::table::{Table, TableConfig};

const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to a server that is played by `serve`, and returns what that led to.
fn connect_to<R: Send>(
    serve: impl FnOnce(UnixStream) + Send,
    options: &Options,
    use_client: impl FnOnce(Result<Client, Error>) -> R,
) -> R {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kv.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || serve(listener.accept().unwrap().0));
        use_client(Client::connect_with(socket.to_str().unwrap(), options))
    })
}

fn error_from(serve: impl FnOnce(UnixStream) + Send) -> String {
    let options = Options { timeout: PATIENCE, ..Options::default() };
    connect_to(serve, &options, |client| match client {
        Err(error @ (Error::Connect { .. } | Error::NotAdmitted { .. } | Error::Identity(_))) => {
            error.to_string()
        }
        other => panic!("{other:?}"),
    })
}

fn deadline() -> std::time::Instant {
    std::time::Instant::now() + PATIENCE
}

fn hear_hello(stream: &UnixStream) {
    stream.set_nonblocking(true).unwrap();
    receive_hello(stream, 0, deadline()).unwrap();
}

fn answer(stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    send_hello(stream, bytes, descriptors, deadline()).unwrap();
}

/// Memory as a server has it, with a table in it.
struct Backing {
    region: RegionMemory,
    channel: ChannelMemory,
    layout: ChannelLayout,
    _owner: OwnerKeeper,
    _table: Arc<Table>,
}

impl Backing {
    fn new() -> Backing {
        let region = create_region(16 << 20, PagePolicy::Off, &mut |_| ()).unwrap();
        let config = TableConfig {
            workers: 1,
            expected_keys: None,
            grace_ns: kv_common::limits::GRACE_NS,
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
            page_bytes: 4096,
            table_id: 5,
            hash_seed: 6,
            incarnation: 7,
            first_version: 1,
            clock_ns: || 1,
            evicts: false,
        };
        let table = Table::create(region.words.clone(), &config).unwrap();
        let owner = OwnerKeeper::start(&region.words, superblock::OWNER * 8).unwrap();
        let layout = ChannelLayout::default();
        let channel = create_channel(layout.len_bytes()).unwrap();
        Backing { region, channel, layout, _owner: owner, _table: table }
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            session: 9,
            table_id: 5,
            incarnation: 7,
            region_bytes: 16 << 20,
            page_bytes: 4096,
            ring_bytes: self.layout.ring_bytes(),
            staging_bytes: self.layout.staging_bytes(),
            requests_in_flight: 8,
            server_pid: std::process::id(),
        }
    }

    fn admit(&self, stream: &UnixStream, welcome: Welcome) {
        hear_hello(stream);
        let descriptors = [self.region.fd.as_fd(), self.channel.fd.as_fd()];
        answer(stream, &Answer::Welcome(welcome).encode(), &descriptors);
    }
}

#[test]
fn what_is_no_server_is_said_to_be_none() {
    for (what, reason) in [
        (&b""[..], "closed"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no connection"),
        (&[8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], "no connection"),
        (&[8, 0, 0, 0, 1, 2], "closed"),
        (&[0xff; 100], "no connection"),
    ] {
        let error = error_from(|mut stream| {
            hear_hello(&stream);
            stream.write_all(what).unwrap();
        });
        assert!(error.contains(reason), "{what:?}: {error}");
    }
    let error = error_from(|stream| {
        hear_hello(&stream);
        let refusal = HelloRefusal::WrongVersion { server: 7, client: 1 };
        answer(&stream, &Answer::Refused(refusal).encode(), &[]);
    });
    assert!(error.contains("the server speaks protocol version 7, the client 1"), "{error}");
}

#[test]
fn a_silent_server_is_given_up_at_the_deadline() {
    let timeout = Duration::from_millis(200);
    let began = std::time::Instant::now();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    connect_to(
        move |stream| {
            hear_hello(&stream);
            // Until the client has given up.
            let _ = is_done.recv();
        },
        &Options { timeout, ..Options::default() },
        |client| {
            drop(done);
            assert!(matches!(client, Err(Error::Connect { .. })), "{client:?}");
        },
    );
    assert!(began.elapsed() >= timeout);
}

#[test]
fn memory_that_is_not_what_the_server_promised_is_not_used() {
    let backing = Backing::new();
    let (region, channel) = (backing.region.fd.as_fd(), backing.channel.fd.as_fd());
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let unsealed =
        File::from(rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap());
    unsealed.set_len(16 << 20).unwrap();
    let promise = backing.welcome();
    let cases: [(&str, Welcome, &[BorrowedFd<'_>], &str); 8] = [
        ("no descriptors", promise, &[], "2 are needed"),
        ("one descriptor", promise, &[region], "2 are needed"),
        ("no memory", promise, &[null.as_fd(), channel], "no sealed memory file"),
        ("not sealed", promise, &[unsealed.as_fd(), channel], "lacks the seals"),
        ("the wrong way round", promise, &[channel, region], "lacks the seals"),
        (
            "too small",
            Welcome { region_bytes: 1 << 30, ..promise },
            &[region, channel],
            "promised 1073741824",
        ),
        ("too large a ring", Welcome { ring_bytes: 1 << 40, ..promise }, &[region, channel], "no connection"),
        ("another table", Welcome { table_id: 50, ..promise }, &[region, channel], "it was replaced"),
    ];
    for (name, welcome, descriptors, reason) in cases {
        let error = error_from(|stream| {
            hear_hello(&stream);
            answer(&stream, &Answer::Welcome(welcome).encode(), descriptors);
        });
        assert!(error.contains(reason), "{name}: {error}");
    }
}

#[test]
fn a_superblock_that_no_server_writes_is_refused() {
    for (word, value, reason) in [
        (superblock::MAGIC, 0, "not a table"),
        (superblock::LAYOUT_VERSION, 99, "layout version 99"),
        (superblock::REGION_BYTES, 32 << 20, "region size"),
        (superblock::DIRECTORY_SEGMENT, 1 << 40, "directory segment"),
        (superblock::DIRECTORY_DEPTH, 64, "is 64"),
        (superblock::GRACE_NS, 0, "GRACE"),
        (superblock::LEASE_NS, u64::MAX, "LEASE"),
        (superblock::INCARNATION, 70, "it was replaced"),
    ] {
        let backing = Backing::new();
        backing.region.words.store(word, value);
        let error = error_from(|stream| backing.admit(&stream, backing.welcome()));
        assert!(error.contains(reason), "word {word}: {error}");
    }
}

fn pop(end: &mut ServerEnd) {
    while end.requests.try_pop(&mut Vec::new()).unwrap().is_none() {
        thread::yield_now();
    }
}

#[test]
fn a_get_waits_for_the_writes_before_it_and_not_for_those_behind() {
    let backing = &Backing::new();
    let (done, is_done) = std::sync::mpsc::channel::<()>();
    connect_to(
        move |mut stream| {
            backing.admit(&stream, backing.welcome());
            let mut end = backing.layout.server_end(&backing.channel.words);
            pop(&mut end);
            pop(&mut end);
            // The second PUT is never answered.
            push(&mut end, &Reply::new(1, Status::Done, 1));
            let _ = stream.write(&[0]);
            let _ = is_done.recv();
        },
        &Options { timeout: Duration::from_secs(5), ..Options::default() },
        |client| {
            let mut client = client.unwrap();
            let first = client.submit_put(b"key", b"first").unwrap();
            let get = client.submit_get(b"key").unwrap();
            client.submit_put(b"key", b"second").unwrap();
            assert_eq!(client.wait().unwrap().unwrap().ticket, first);
            let read = client.wait().unwrap().unwrap();
            // What is played here stores nothing.
            assert_eq!((read.ticket, read.outcome), (get, Outcome::Get(Ok(None))));
            drop(done);
        },
    );
}

/// What a server says to the first request, in place of an answer.
type Nonsense = fn(&mut ServerEnd);

const NONSENSE: [(&str, &str, Nonsense); 5] = [
    ("nothing in a message", "malformed reply", |end| end.replies.try_push(&[b""]).unwrap()),
    ("garbage", "malformed reply", |end| end.replies.try_push(&[&[0xff; 200]]).unwrap()),
    ("a reply to nobody", "not in flight", |end| push(end, &Reply::new(77, Status::Done, 1))),
    ("an answer of another kind", "cannot have it", |end| push(end, &Reply::new(1, Status::NotFound, 1))),
    ("twice the same", "not in flight", |end| {
        push(end, &Reply::new(1, Status::Refused(Refusal::KeyEmpty), 0));
        push(end, &Reply::new(1, Status::Refused(Refusal::KeyEmpty), 0));
    }),
];

fn push(end: &mut ServerEnd, reply: &Reply<'_>) {
    end.replies.try_push(&[&reply.header(), reply.chunk]).unwrap();
}

#[test]
fn nonsense_from_a_server_breaks_the_connection_and_nothing_else() {
    for (name, reason, nonsense) in NONSENSE {
        let backing = &Backing::new();
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        connect_to(
            move |mut stream| {
                backing.admit(&stream, backing.welcome());
                let mut end = backing.layout.server_end(&backing.channel.words);
                pop(&mut end);
                nonsense(&mut end);
                // The client may sleep by now.
                let _ = stream.write(&[0]);
                let _ = is_done.recv();
            },
            &Options { timeout: PATIENCE, reconnect: false, ..Options::default() },
            |client| {
                let mut client = client.unwrap();
                assert_eq!(client.get(b"key"), Ok(None));
                let first = client.put(b"key", b"value").unwrap_err();
                let second = client.put(b"key", b"value").unwrap_err();
                drop(done);
                if name == "twice the same" {
                    assert_eq!(first, Error::Refused(Refusal::KeyEmpty));
                } else {
                    let is_unknown =
                        matches!(&first, Error::OutcomeUnknown { cause } if cause.contains(reason));
                    assert!(is_unknown, "{name}: {first}");
                }
                let broken = match second {
                    Error::Broken(Broken::Protocol { what }) | Error::OutcomeUnknown { cause: what } => what,
                    error => panic!("{name}: {error}"),
                };
                assert!(broken.contains(reason), "{name}: {broken}");
                assert!(matches!(client.get(b"key"), Err(Error::Broken(Broken::Protocol { .. }))), "{name}");
            },
        );
    }
}
