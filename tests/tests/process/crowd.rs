//! Many clients, busy and idle.

use std::collections::HashMap;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use kv_client::{Client, Error, Options, Outcome};
use rustix::time::{ClockId, clock_gettime};

use crate::live::procfs::at_rest;
use crate::live::server::{Needs, Site, Transport};
use crate::live::{PATIENCE, procfs, value_of, wait_for};

/// A small client: three hundred full index caches are not what this is about.
fn connect(site: &Site) -> Client {
    let options = Options { timeout: PATIENCE, index_cache_bytes: 64 << 10, ..Options::default() };
    Client::connect_with(&site.url(), &options).unwrap()
}

fn many_clients_work_at_once_and_leave_nothing(transport: Transport) {
    const THREADS: u64 = 4;
    // Three hundred in all; fewer where each takes megabytes of registered memory.
    let clients_per_thread: u64 = if transport.is_rdma() { 10 } else { 75 };
    let site = Site::over(transport);
    let server = site.serve_with(Needs { memory: "64MiB", workers: 2, ..Needs::default() }, &[]);
    let mut client = site.connect(PATIENCE);
    let before = server.footprint_of_one(&mut client);
    let together = Barrier::new(THREADS as usize + 1);
    let work = |thread: u64| {
        let mut clients: Vec<Client> = (0..clients_per_thread).map(|_| connect(&site)).collect();
        together.wait();
        for round in 0..3 {
            for (i, client) in clients.iter_mut().enumerate() {
                submit(client, thread * clients_per_thread + i as u64, round);
            }
            for client in &mut clients {
                while let Some(done) = client.wait().unwrap() {
                    assert!(matches!(done.outcome, Outcome::Put(Ok(_))), "{:?}", done.outcome);
                }
            }
            // All have written when anybody reads what others wrote.
            together.wait();
            for (i, client) in clients.iter_mut().enumerate() {
                let other = thread * clients_per_thread + i as u64 + 100;
                check(client, other % (THREADS * clients_per_thread), round);
            }
            together.wait();
        }
    };
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
        together.wait();
        let all = (THREADS * clients_per_thread) as usize;
        wait_for("all are connected", || {
            (server.footprint(&mut client).sessions == all as u64 + 1).then_some(())
        });
        let now = server.footprint(&mut client);
        let channels = if transport == Transport::Shm { all } else { 0 };
        assert!(now.descriptors >= before.descriptors + all && now.channels >= before.channels + channels);
        for _ in 0..3 {
            together.wait();
            together.wait();
        }
    });
    server.wait_for_footprint(before, &mut client);
}

fn submit(client: &mut Client, number: u64, round: u64) {
    for key in 0..5 {
        let value = value_of(number * 10 + round, 100 * key as usize);
        client.submit_put(&[number.to_le_bytes(), u64::to_le_bytes(key)].concat(), &value).unwrap();
    }
}

fn check(client: &mut Client, number: u64, round: u64) {
    for key in 0..5 {
        let found = client.get(&[number.to_le_bytes(), u64::to_le_bytes(key)].concat()).unwrap().unwrap();
        assert!(
            found.bytes == value_of(number * 10 + round, 100 * key as usize),
            "client {number} key {key}"
        );
    }
}

fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

fn idle_servers_idle_clients_and_waiting_clients_sleep(transport: Transport) {
    const WINDOW: Duration = Duration::from_secs(1);
    let site = Site::over(transport);
    let server = site.serve_with(Needs { workers: 2, ..Needs::default() }, &[]);
    let clients = if transport.is_rdma() { 20 } else { 100 };
    let mut clients: Vec<Client> = (0..clients).map(|_| connect(&site)).collect();
    for (i, client) in clients.iter_mut().enumerate() {
        client.put(&[i as u8], b"value").unwrap();
    }
    // The window ends with the deadline of a PUT to a server that is stopped.
    let other = Site::over(transport);
    let stopped = other.serve();
    let mut waiting = other.connect(WINDOW);
    stopped.freeze();

    let before = at_rest(server.pid());
    let cpu_before = thread_cpu_time();
    let result = waiting.put(b"key", b"value");
    let cpu_used = thread_cpu_time() - cpu_before;
    let after = procfs::threads(server.pid());
    assert!(matches!(result, Err(Error::OutcomeUnknown { .. })), "{result:?}");
    // It looks for an answer for less than a millisecond, then it sleeps. What does not sleep takes the whole window; an
    // emulated processor's time is its host's, too, which may have other things to do.
    let some = if transport.is_rdma() { WINDOW / 3 } else { WINDOW / 20 };
    assert!(cpu_used < 2 * some, "{cpu_used:?} of processor time while waiting for {WINDOW:?}");

    let run: HashMap<&str, Duration> = before
        .iter()
        .zip(&after)
        .map(|(before, after)| (after.name.as_str(), after.run - before.run))
        .collect();
    let workers: Vec<_> = run.iter().filter(|(name, _)| name.starts_with("kv-worker")).collect();
    assert_eq!(workers.len(), 2);
    assert!(workers.iter().all(|(_, run)| run.is_zero()), "{run:?}");
    // The accept thread sets the clock 50 times a second.
    let total: Duration = run.values().sum();
    assert!(total < some, "{total:?} in {WINDOW:?}: {run:?}");
    for client in &mut clients {
        client.ping().unwrap();
    }
}

over_each_transport!(many_clients_work_at_once_and_leave_nothing);

over_quiet_transports!(idle_servers_idle_clients_and_waiting_clients_sleep);
