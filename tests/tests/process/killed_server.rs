//! A server that was killed is noticed at once, and never mixed up with its successor.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use kv_client::{Client, Error, NotSubmitted, Options, Outcome, Registered, Value};

use crate::live::PATIENCE;
use crate::live::server::{Site, Transport};

/// Longer than any test waits: what returns before was woken.
const FOREVER: Duration = Duration::from_secs(3600);

fn gone(transport: Transport) -> Error {
    Error::Broken(transport.broken())
}

fn is_unknown<T>(result: &Result<T, Error>, transport: Transport) -> bool {
    matches!(result, Err(Error::OutcomeUnknown { cause }) if *cause == gone(transport).to_string())
}

/// GETs into memory that was registered when the server lived.
fn assert_gone_into(client: &mut Client, buffer: Registered, transport: Transport) -> Registered {
    let mut buffer = buffer;
    assert_eq!(client.get_into(b"key", &mut buffer), Err(gone(transport)));
    assert_eq!(buffer.value(), None);
    let refused = client.submit_get_into(b"key", buffer);
    let Err(NotSubmitted { error, buffer }) = refused else { panic!("{refused:?}") };
    assert_eq!(error, gone(transport));
    buffer
}

fn assert_gone(client: &mut Client, transport: Transport) {
    let gone = || gone(transport);
    assert_eq!(client.get(b"key"), Err(gone()));
    assert_eq!(client.get(b"absent"), Err(gone()));
    assert_eq!(client.exists(b"key"), Err(gone()));
    assert_eq!(client.put(b"key", b"value"), Err(gone()));
    assert_eq!(client.put(b"key", &[7; 100_000]), Err(gone()));
    assert_eq!(client.delete(b"key"), Err(gone()));
    assert_eq!(client.compare_and_set(b"key", 1, b"value"), Err(gone()));
    assert_eq!(client.ping(), Err(gone()));
    assert_eq!(client.multi_get(&[b"key", b"yek"]), [Err(gone()), Err(gone())]);
    assert_eq!(client.submit_get(b"key"), Err(gone()));
    assert_eq!(client.register(100), Err(gone()));
    assert_eq!(client.submit_put(b"key", b"value"), Err(gone()));
    assert_eq!(client.server_stat(), Err(gone()));
    assert_eq!(client.warm_up(), Err(gone()));
    assert_eq!((client.poll(), client.wait(), client.pending()), (Ok(None), Ok(None), 0));
}

fn clients_of_a_killed_server_get_errors_and_no_stale_values(transport: Transport) {
    let site = Site::over(transport);
    let mut server = site.serve();
    let mut clients: Vec<Client> = (0..2).map(|_| site.connect(FOREVER)).collect();
    clients[0].put(b"key", b"of the first server").unwrap();
    for client in &mut clients {
        assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"of the first server");
        client.warm_up().unwrap();
    }
    let first = clients[0].connection().clone();
    let mut buffers: Vec<Registered> =
        clients.iter_mut().map(|client| client.register(100).unwrap()).collect();
    for (client, buffer) in clients.iter_mut().zip(&mut buffers) {
        assert_eq!(client.get_into(b"key", buffer).unwrap().unwrap().bytes, b"of the first server");
    }
    let options = Options { timeout: FOREVER, reconnect: false, ..Options::default() };
    let mut given_up = Client::connect_with(&site.url(), &options).unwrap();
    let [idle, busy] = &mut clients[..] else { unreachable!() };
    let frozen = Barrier::new(2);
    let behind = thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut client = site.connect(FOREVER);
            frozen.wait();
            frozen.wait();
            client.put(b"key", b"waits")
        });
        frozen.wait();
        // With the server stopped, what is asked stays unanswered until the end.
        server.freeze();
        frozen.wait();
        busy.submit_put(b"key", b"in flight").unwrap();
        busy.submit_put(b"large", &[7; 100_000]).unwrap();
        busy.submit_delete(b"absent").unwrap();
        for i in 0..100_u32 {
            busy.submit_put(&i.to_le_bytes(), b"many").unwrap();
        }
        let behind = busy.submit_get(b"key").unwrap();
        busy.submit_get_into(b"key", buffers.pop().unwrap()).unwrap();
        server.kill();
        // It was sent, or the end came first.
        let result = waiting.join().unwrap();
        assert!(is_unknown(&result, transport) || result == Err(gone(transport)), "{result:?}");
        behind
    });
    let (mut unknown, mut not_sent) = (0, 0);
    while let Some(done) = busy.wait().unwrap() {
        match done.outcome {
            Outcome::Get(result) if done.ticket == behind => assert_eq!(result, Err(gone(transport))),
            Outcome::GetInto(buffer, result) => {
                assert_eq!((buffer.value(), result), (None, Err(gone(transport))));
                buffers.push(buffer);
            }
            Outcome::Put(Err(error)) | Outcome::Delete(Err(error)) if error == gone(transport) => {
                not_sent += 1
            }
            Outcome::Put(result) if is_unknown(&result, transport) => unknown += 1,
            Outcome::Delete(result) if is_unknown(&result, transport) => unknown += 1,
            outcome => panic!("{outcome:?}"),
        }
    }
    assert!(
        unknown > 3 && not_sent > 0 && unknown + not_sent == 103,
        "{unknown} unknown, {not_sent} not sent"
    );
    assert_gone(idle, transport);
    assert_gone(busy, transport);
    let buffers =
        buffers.into_iter().map(|buffer| assert_gone_into(busy, buffer, transport)).collect::<Vec<_>>();
    assert!(matches!(Client::connect(&site.url()), Err(Error::Connect { .. })));

    let successor = site.serve();
    let mut fresh = site.connect(FOREVER);
    assert_ne!(fresh.connection().incarnation, first.incarnation);
    assert_ne!(fresh.connection().table_id, first.table_id);
    assert_eq!(fresh.connection().server_pid, Some(successor.pid()));
    assert_eq!(fresh.get(b"key"), Ok(None), "it starts empty");
    fresh.put(b"key", b"of the second server").unwrap();
    assert_gone(&mut given_up, transport);
    for (old, mut buffer) in clients.iter_mut().zip(buffers) {
        assert_eq!(first_answer(old, transport).unwrap().bytes, b"of the second server");
        assert_eq!(old.connection().table_id, fresh.connection().table_id);
        assert_eq!(old.connection().incarnation, fresh.connection().incarnation);
        assert_eq!(old.stats().reconnects, 1);
        // Memory of before is as good for this connection.
        let in_place = old.stats().values_in_place;
        let found = old.get_into(b"key", &mut buffer).unwrap().map(|found| found.bytes);
        assert_eq!(found, Some(&b"of the second server"[..]));
        assert_eq!(old.stats().values_in_place, in_place + 1);
        // Tickets and counters go on; writes arrive.
        let version = old.put(b"after", b"all").unwrap();
        assert_eq!(fresh.get(b"after").unwrap().unwrap().version, version);
    }
    assert_gone(&mut given_up, transport);
}

/// Asks until there is an answer; meanwhile nothing but the error of the lost connection.
fn first_answer(client: &mut Client, transport: Transport) -> Option<Value> {
    let begun = Instant::now();
    loop {
        match client.get(b"key") {
            Ok(answer) => return answer,
            Err(error) => assert_eq!(error, gone(transport)),
        }
        assert!(begun.elapsed() < PATIENCE, "a server is there, and the client does not come back");
        thread::yield_now();
    }
}

fn a_server_killed_under_load_is_noticed_by_all_and_each_write_ends_once(transport: Transport) {
    for round in 0..5_u64 {
        let site = Site::over(transport);
        let mut server = site.serve();
        let begun = Barrier::new(3);
        thread::scope(|scope| {
            let write = |writer: u64| {
                let mut client = site.connect(FOREVER);
                let mut last = None;
                for i in 0.. {
                    if i == 20 {
                        begun.wait();
                    }
                    let len_bytes = [8, 9000, 3000][i as usize % 3];
                    match client.put(&writer.to_le_bytes(), &vec![i as u8; len_bytes]) {
                        Ok(version) => assert!(last.replace(version) < Some(version)),
                        // Sent or not sent: nothing else.
                        Err(error) => {
                            assert!(
                                error == gone(transport) || is_unknown::<()>(&Err(error.clone()), transport),
                                "{error}"
                            );
                            break;
                        }
                    }
                }
                assert_gone(&mut client, transport);
            };
            scope.spawn(move || write(1));
            scope.spawn(move || write(2));
            begun.wait();
            // Somewhere in what they do by now.
            thread::sleep(Duration::from_micros(300 * round));
            server.kill();
        });
    }
}

over_each_transport!(
    clients_of_a_killed_server_get_errors_and_no_stale_values,
    a_server_killed_under_load_is_noticed_by_all_and_each_write_ends_once
);
