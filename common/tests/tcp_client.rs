//! The client's side of tcp against a server made by hand, which can do what `kv-server` never does.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use kv_common::limits::{READ_MAX_WORDS, TCP_UNSENT_MAX_BYTES};
use kv_common::region::bytes_of;
use kv_common::transport::tcp::client::TcpTransport;
use kv_common::transport::{Broken, Event, ReadBuffer, ReadNow, SendError, Transport, UserMemory};
use proptest::prelude::*;

const STAGING_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn pair() -> (TcpTransport, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.set_nodelay(true).unwrap();
    (TcpTransport::new(client, STAGING_BYTES).unwrap(), server)
}

fn frame(kind: u32, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], &kind.to_le_bytes(), body].concat()
}

fn read_reply(token: u64, words: &[u64]) -> Vec<u8> {
    frame(4, &[&token.to_le_bytes()[..], bytes_of(words)].concat())
}

/// The next event, or the break, waited for as a client does.
fn next(transport: &mut TcpTransport) -> Result<Event, Broken> {
    let until_ns = transport.now_ns() + PATIENCE.as_nanos() as u64;
    loop {
        if let Some(event) = transport.poll()? {
            return Ok(event);
        }
        assert!(transport.now_ns() < until_ns, "waited in vain");
        transport.wait(until_ns);
    }
}

fn received(server: &mut TcpStream, len_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes];
    server.read_exact(&mut bytes).unwrap();
    bytes
}

#[test]
fn reads_complete_in_order_however_their_words_are_cut() {
    let (mut transport, mut server) = pair();
    assert!(!transport.reads_are_loads());
    assert_eq!(transport.read_now(0, &mut [0]), Ok(ReadNow::Post));
    assert!(transport.poll().unwrap().is_none());
    let lens = [1, 2, 16, 5000, READ_MAX_WORDS, 3];
    let words =
        move |i: usize| -> Vec<u64> { (0..lens[i] as u64).map(|word| word << 8 | i as u64).collect() };
    for (i, &len) in lens.iter().enumerate() {
        transport.post_read(i as u64 + 100, i, vec![0; len].into());
    }
    transport.flush();
    for (i, &len) in lens.iter().enumerate() {
        let body = bytes_of(&[i as u64 + 100, i as u64, len as u64]).to_vec();
        assert_eq!(received(&mut server, 32), frame(1, &body));
    }
    let writer = std::thread::spawn(move || {
        let mut all = frame(5, b"between");
        (0..lens.len()).for_each(|i| all.extend(read_reply(i as u64 + 100, &words(i))));
        for piece in all.chunks(12_345) {
            server.write_all(piece).unwrap();
        }
        server
    });
    assert!(matches!(next(&mut transport).unwrap(), Event::Message(message) if message == b"between"));
    for (i, &len) in lens.iter().enumerate() {
        let Event::Read { token, buffer, result } = next(&mut transport).unwrap() else { panic!("a READ") };
        assert_eq!((token, buffer.len(), result), (i as u64 + 100, len, Ok(())));
        assert!(buffer.iter().enumerate().all(|(word, &found)| found == (word as u64) << 8 | i as u64));
    }
    drop(writer.join().unwrap());
    assert!(matches!(next(&mut transport), Err(Broken::Closed)));
}

#[test]
fn after_a_break_each_read_completes_once_with_an_error_and_then_nothing() {
    for cut in [0, 3, 8, 16, 20] {
        let (mut transport, mut server) = pair();
        for token in 1..=5 {
            transport.post_read(token, 0, vec![0; 4].into());
        }
        transport.flush();
        received(&mut server, 5 * 32);
        server.write_all(&read_reply(1, &[1, 2, 3, 4])).unwrap();
        server.write_all(&read_reply(2, &[1, 2, 3, 4])[..cut]).unwrap();
        drop(server);
        let Ok(Event::Read { token: 1, result: Ok(()), .. }) = next(&mut transport) else {
            panic!("the first")
        };
        for expected in 2..=5 {
            match next(&mut transport) {
                Ok(Event::Read { token, buffer, result: Err(Broken::Closed) }) => {
                    assert_eq!((token, buffer.len()), (expected, 4));
                }
                event => panic!("{event:?}"),
            }
        }
        assert!(matches!(transport.poll(), Err(Broken::Closed)));
        // Also one that is posted afterwards.
        transport.post_read(6, 0, vec![0; 1].into());
        assert!(matches!(transport.poll(), Ok(Some(Event::Read { token: 6, result: Err(_), .. }))));
        assert!(matches!(transport.poll(), Err(Broken::Closed)));
        assert!(matches!(transport.send(&[b"late"]), Err(SendError::Broken(Broken::Closed))));
        assert!(matches!(transport.stage(0, 1), Err(SendError::Broken(Broken::Closed))));
    }
}

#[test]
fn memory_that_was_taken_back_gets_nothing_more_and_the_connection_goes_on() {
    const WORDS: usize = 512;
    let words: Vec<u64> = (1..=WORDS as u64).collect();
    // Before the answer, and at several places in it.
    for cut in [0, 16, 16 + 800, 16 + 4000] {
        let (mut transport, mut server) = pair();
        let mut memory = Box::new(UserMemory::new(WORDS * 8).unwrap());
        assert_eq!(transport.register(&mut memory), Ok(()));
        transport.post_read(7, 0, ReadBuffer::User { memory, len_words: WORDS });
        transport.flush();
        received(&mut server, 32);
        let reply = read_reply(7, &words);
        server.write_all(&reply[..cut]).unwrap();
        for _ in 0..1000 {
            assert!(transport.poll().unwrap().is_none());
        }
        assert!(transport.take_back(8).is_none(), "no such READ is under way");
        let memory = transport.take_back(7).unwrap();
        assert!(transport.take_back(7).is_none(), "once");
        let landed = memory.words().to_vec();
        server.write_all(&reply[cut..]).unwrap();
        let Ok(Event::Read { token: 7, buffer, result: Ok(()) }) = next(&mut transport) else {
            panic!("the first READ")
        };
        assert_eq!(buffer.into_user().unwrap_err().len(), WORDS);
        assert_eq!(memory.words(), landed, "cut at {cut}");
        transport.post_read(8, 0, ReadBuffer::User { memory, len_words: WORDS });
        transport.flush();
        server.write_all(&read_reply(8, &words)).unwrap();
        let Ok(Event::Read { token: 8, buffer, result: Ok(()) }) = next(&mut transport) else {
            panic!("the second READ")
        };
        assert_eq!(buffer.into_user().unwrap().words(), words);
    }
}

#[test]
fn servers_that_break_the_protocol_are_named() {
    let forged: [(&str, Vec<u8>); 11] = [
        ("kind 0", frame(0, &[])),
        ("kind 1", frame(1, &[0; 24])),
        ("kind 3", frame(3, &[0; 40])),
        ("ReadReply of 4294967288 bytes", [&(u32::MAX - 7).to_le_bytes()[..], &[4, 0, 0, 0]].concat()),
        ("ReadReply of 8 bytes", frame(4, &[7; 8])),
        ("Reply of 4294967295 bytes", [&u32::MAX.to_le_bytes()[..], &[5, 0, 0, 0]].concat()),
        ("READ 0x8, but 0x7 is due", read_reply(8, &[1, 2])),
        ("READ 0x7, but 0x7 is due", read_reply(7, &[1, 2, 3])),
        ("Stage of 1 words from word 131072", frame(2, bytes_of(&[1 << 17, 1]))),
        ("Stage of 1 words from word 18446744073709551615", frame(2, bytes_of(&[u64::MAX, 1]))),
        ("is none that this peer may send", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ];
    for (name, bytes) in forged {
        let (mut transport, mut server) = pair();
        transport.post_read(7, 0, vec![0; 2].into());
        transport.flush();
        server.write_all(&bytes).unwrap();
        match next(&mut transport) {
            Ok(Event::Read { token: 7, result: Err(Broken::Protocol { what }), .. }) => {
                assert!(what.contains(name), "{name}: {what}");
            }
            event => panic!("{name}: {event:?}"),
        }
    }
    // Words for nobody.
    let (mut transport, mut server) = pair();
    server.write_all(&read_reply(7, &[1])).unwrap();
    assert!(matches!(next(&mut transport), Err(Broken::Protocol { .. })));
}

#[test]
fn staged_words_go_before_the_message_that_names_them() {
    let (mut transport, mut server) = pair();
    let words: Vec<u64> = (0..10_000).collect();
    transport.staging().copy_in(5, &words);
    transport.stage(5, words.len()).unwrap();
    // More than may be kept is kept already, and still this one is taken.
    transport.send(&[b"names ", b"them"]).unwrap();
    let reader = std::thread::spawn(move || {
        let mut found = Vec::new();
        loop {
            let head = received(&mut server, 8);
            let body_bytes = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
            let body = received(&mut server, body_bytes);
            if head[4] != 2 {
                assert_eq!((head[4], body.as_slice()), (3, &b"names them"[..]));
                return found;
            }
            assert_eq!(body[..8], (5 + found.len() as u64 / 8).to_le_bytes());
            found.extend_from_slice(&body[8..]);
        }
    });
    let until_ns = transport.now_ns() + PATIENCE.as_nanos() as u64;
    while !reader.is_finished() && transport.now_ns() < until_ns {
        transport.flush();
        transport.wait(transport.now_ns() + 1_000_000);
    }
    assert!(reader.join().unwrap() == bytes_of(&words));
    // And the other way.
    let (mut transport, mut server) = pair();
    server.write_all(&[frame(2, bytes_of(&[9, 77])), frame(5, b"names it")].concat()).unwrap();
    assert!(matches!(next(&mut transport).unwrap(), Event::Message(message) if message == b"names it"));
    assert_eq!(transport.staging().load(9), 77);
}

#[test]
fn a_server_that_reads_nothing_is_sent_a_bounded_amount() {
    let (mut transport, server) = pair();
    let message = [7; 8000];
    let mut taken_bytes = 0;
    let full = loop {
        match transport.send(&[&message]) {
            Ok(()) => taken_bytes += message.len(),
            Err(error) => break error,
        }
        // Beyond all buffers that a system gives a connection.
        assert!(taken_bytes < 256 << 20);
    };
    assert_eq!(full, SendError::Full);
    assert_eq!(transport.stage(0, 1), Err(SendError::Full));
    assert!(taken_bytes > TCP_UNSENT_MAX_BYTES / 2);
    drop(server);
    assert!(matches!(next(&mut transport), Err(Broken::Closed)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() })]

    /// Whatever comes, each READ completes once, and the connection ends.
    #[test]
    fn arbitrary_bytes_from_a_server_end_in_events_or_a_break(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        kind in 0u32..7,
        is_framed: bool,
    ) {
        let (mut transport, mut server) = pair();
        for token in 0..3 {
            transport.post_read(token, 0, vec![0; 2].into());
        }
        let bytes = if is_framed { frame(kind, &bytes) } else { bytes };
        server.write_all(&bytes).unwrap();
        drop(server);
        let mut completed = Vec::new();
        while let Ok(event) = next(&mut transport) {
            if let Event::Read { token, .. } = event {
                completed.push(token);
            }
        }
        prop_assert_eq!(completed, [0, 1, 2]);
    }
}
