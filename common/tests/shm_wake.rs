//! Rings, sleep flags and bells together: hundreds of clients and one server that sleeps whenever it may, with no wake-up
//! lost. A lost one shows as a wait that ends by its timeout, long after any machine would have answered.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use kv_common::transport::shm::channel::{ChannelLayout, ClientEnd, ServerEnd};
use kv_common::transport::shm::doorbell::{Doorbell, PeerGone};
use kv_common::transport::shm::mapping::{create_channel, map_channel};
use rustix::event::{Timespec, epoll};
use std::os::fd::AsFd;

const PATIENCE: Duration = Duration::from_secs(60);

struct Client {
    end: ClientEnd,
    bell: Doorbell,
    number: u64,
    out: Vec<u8>,
}

struct Served {
    end: ServerEnd,
    bell: Doorbell,
    gone: bool,
}

fn pair(number: u64) -> (Client, Served) {
    let layout = ChannelLayout::default();
    let channel = create_channel(layout.len_bytes()).unwrap();
    let peer = map_channel(channel.fd.as_fd(), layout.len_bytes()).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    let client = Client { end: layout.client_end(&peer), bell: Doorbell::new(near), number, out: Vec::new() };
    let served = Served { end: layout.server_end(&channel.words), bell: Doorbell::new(far), gone: false };
    (client, served)
}

impl Client {
    /// One request and its reply, sleeping for the reply at once.
    fn ask(&mut self, request: u64) {
        let message = [self.number.to_le_bytes(), request.to_le_bytes()].concat();
        self.end.requests.try_push(&[&message]).unwrap();
        if self.end.requests.needs_wake() {
            self.bell.ring().unwrap();
        }
        while self.end.replies.try_pop(&mut self.out).unwrap().is_none() {
            if self.end.replies.prepare_sleep() {
                let rang = self.bell.wait(PATIENCE).unwrap();
                self.end.replies.woke();
                assert!(rang, "client {}: no bell for the reply to {request}", self.number);
            }
        }
        assert_eq!(self.out, message);
    }
}

/// Answers every request of one client with itself; true if there was one.
fn answer(served: &mut Served, out: &mut Vec<u8>) -> bool {
    let mut answered = false;
    while served.end.requests.try_pop(out).unwrap().is_some() {
        served.end.replies.try_push(&[out]).unwrap();
        answered = true;
    }
    if answered && served.end.replies.needs_wake() {
        // A client that is gone shows at its bell.
        let _ = served.bell.ring();
    }
    answered
}

/// Serves all until all are gone, with one thread and one epoll, sleeping whenever no ring holds anything.
fn serve(clients: &mut [Served]) {
    let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    for (number, client) in clients.iter().enumerate() {
        epoll::add(&waiting, &client.bell, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)
            .unwrap();
    }
    let mut out = Vec::new();
    while clients.iter().any(|client| !client.gone) {
        let mut may_sleep = true;
        for client in clients.iter_mut() {
            may_sleep &= !answer(client, &mut out);
        }
        for client in clients.iter_mut() {
            may_sleep &= client.end.requests.prepare_sleep();
        }
        if may_sleep {
            sleep(&waiting, clients);
        }
        for client in clients.iter_mut() {
            client.end.requests.woke();
        }
    }
}

fn sleep(waiting: impl AsFd, clients: &mut [Served]) {
    let mut events = Vec::with_capacity(64);
    let timeout = Timespec::try_from(PATIENCE).unwrap();
    epoll::wait(&waiting, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).unwrap();
    assert!(!events.is_empty(), "the server slept through a request, or the clients ended without a trace");
    for event in events {
        let client = &mut clients[event.data.u64() as usize];
        if client.bell.clear() == Err(PeerGone) {
            client.gone = true;
            epoll::delete(&waiting, &client.bell).unwrap();
        }
    }
}

#[test]
fn one_client_and_a_server_that_both_sleep_at_once_lose_nothing() {
    let (mut client, served) = pair(0);
    std::thread::scope(|scope| {
        scope.spawn(move || serve(&mut [served]));
        for request in 0..20_000 {
            client.ask(request);
        }
        drop(client);
    });
}

#[test]
fn hundreds_of_clients_are_served_by_one_sleeping_thread() {
    let (clients, mut served): (Vec<_>, Vec<_>) = (0..300).map(pair).unzip();
    std::thread::scope(|scope| {
        let mut clients = clients.into_iter();
        for _ in 0..6 {
            let mut some: Vec<_> = clients.by_ref().take(50).collect();
            scope.spawn(move || {
                for request in 0..40 {
                    some.iter_mut().for_each(|client| client.ask(request));
                }
            });
        }
        serve(&mut served);
    });
}
