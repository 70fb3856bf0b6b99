//! What was submitted to a server that is stopped.

use std::collections::HashMap;
use std::time::Duration;

use kv_client::{Error, Outcome, Ticket};

use crate::live::server::{Site, Transport};
use crate::live::wait_for;

/// Short, because the test waits for it; nothing depends on how short. By an emulated device it takes a while to connect.
fn timeout(transport: Transport) -> Duration {
    Duration::from_millis(if transport.is_rdma() { 4000 } else { 300 })
}

fn what_was_submitted_to_a_stopped_server_ends_once_each_sent_or_not(transport: Transport) {
    let site = Site::over(transport);
    let server = site.serve();
    let mut client = site.connect(timeout(transport));
    client.put(b"old", b"value").unwrap();
    server.freeze();
    let mut tickets: HashMap<Ticket, u64> =
        (0..200).map(|i: u64| (client.submit_put(&i.to_le_bytes(), &i.to_le_bytes()).unwrap(), i)).collect();
    let behind = client.submit_get(&7_u64.to_le_bytes()).unwrap();
    let aside = client.submit_get(b"old").unwrap();
    let (mut unknown, mut not_sent) = (Vec::new(), Vec::new());
    while let Some(done) = client.wait().unwrap() {
        match done.outcome {
            Outcome::Put(Err(Error::OutcomeUnknown { .. })) => {
                unknown.push(tickets.remove(&done.ticket).unwrap())
            }
            Outcome::Put(Err(Error::Timeout { .. })) => not_sent.push(tickets.remove(&done.ticket).unwrap()),
            Outcome::Get(result) if done.ticket == aside => match transport {
                Transport::Shm | Transport::Verbs | Transport::VerbsCm => {
                    assert_eq!(result.unwrap().unwrap().bytes, b"value")
                }
                Transport::Tcp => assert!(matches!(result, Err(Error::Timeout { .. })), "{result:?}"),
            },
            // It waited for the PUT before it, in vain or until that had ended.
            Outcome::Get(result) if done.ticket == behind => {
                assert!(matches!(result, Err(Error::Timeout { .. }) | Ok(None)), "{result:?}");
            }
            outcome => panic!("{outcome:?}"),
        }
    }
    assert!(tickets.is_empty() && !unknown.is_empty() && !not_sent.is_empty());
    server.thaw();
    wait_for("an answer", || client.put(b"last", b"value").ok());
    // On a busy machine one may take longer than the short timeout.
    let mut get = |i: u64| wait_for("an answer", || client.get(&i.to_le_bytes()).ok());
    for i in unknown {
        assert_eq!(get(i).unwrap().bytes, i.to_le_bytes());
    }
    for i in not_sent {
        assert_eq!(get(i), None, "key {i} was not sent");
    }
}

over_each_transport!(what_was_submitted_to_a_stopped_server_ends_once_each_sent_or_not);
