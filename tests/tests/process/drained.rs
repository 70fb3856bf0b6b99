//! A server that is told to stop answers what was asked.

use std::thread;

use kv_client::{Broken, Error, Outcome, Refusal};
use rustix::process::Signal;

use crate::live::server::{Needs, Site, Transport};
use crate::live::{PATIENCE, value_of};

fn requests_in_flight_are_answered_and_the_server_ends_with_code_0(transport: Transport) {
    let site = Site::over(transport);
    let mut server = site.serve();
    let mut client = site.connect(PATIENCE);
    client.put(b"key", b"value").unwrap();
    // While it is stopped nothing is answered: all of it is in flight when the signal comes. By RDMA that is 32 at most.
    let small: u64 = if transport.is_rdma() { 31 } else { 60 };
    server.freeze();
    for i in 0..small {
        client.submit_put(&i.to_le_bytes(), &value_of(i, i as usize % 4 * 200)).unwrap();
    }
    client.submit_put(b"large", &value_of(1, 100_000)).unwrap();
    server.signal(Signal::TERM);
    server.thaw();
    let mut done = 0;
    while let Some(completion) = client.wait().unwrap() {
        match completion.outcome {
            Outcome::Put(Ok(_)) => done += 1,
            Outcome::Put(Err(Error::Refused(Refusal::ShuttingDown))) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
    assert_eq!(done, small + 1, "what was on its way is done");
    assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    assert_eq!(client.get(b"key"), Err(Error::Broken(transport.broken())));
    assert_eq!(client.put(b"key", b"value"), Err(Error::Broken(transport.broken())));
}

fn clients_that_go_on_asking_are_refused_and_then_told_that_it_has_ended(transport: Transport) {
    let site = Site::over(transport);
    let mut server = site.serve_with(Needs { workers: 2, ..Needs::default() }, &[]);
    let begun = std::sync::Barrier::new(4);
    thread::scope(|scope| {
        for writer in 0..3_u64 {
            let (site, begun) = (&site, &begun);
            scope.spawn(move || {
                let mut client = site.connect(PATIENCE);
                let mut is_refused = false;
                let error = loop {
                    match client.put(&writer.to_le_bytes(), b"value") {
                        Ok(_) if is_refused => panic!("once refused, always refused"),
                        Ok(_) => {}
                        Err(Error::Refused(Refusal::ShuttingDown)) => is_refused = true,
                        Err(error) => break error,
                    }
                    if client.stats().writes == 20 {
                        begun.wait();
                    }
                };
                // Before it is sent, or when nothing answers any more.
                let is_gone = matches!(error, Error::Broken(Broken::ServerGone | Broken::Closed));
                assert!(is_gone || matches!(error, Error::OutcomeUnknown { .. }), "{error}");
            });
        }
        begun.wait();
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0), "{}", server.log());
    });
}

over_each_transport!(
    requests_in_flight_are_answered_and_the_server_ends_with_code_0,
    clients_that_go_on_asking_are_refused_and_then_told_that_it_has_ended
);
