//! A client that is killed in the middle of its PUTs leaves nothing behind but what it was acknowledged.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kv_client::{Client, Completion, Options, Outcome, Ticket};

use crate::live::helper::{Helper, told};
use crate::live::server::{Needs, Site, Transport};
use crate::live::{PATIENCE, Random, value_of};

const ROUNDS: u64 = 25;
const KEYS: u64 = 8;
/// PUTs under way at once, each to another key.
const DEPTH: usize = 6;
/// Inline, staged and in parts, in place and moved.
const LENGTHS: [usize; 7] = [0, 8, 100, 3000, 9000, 100_000, 1_200_000];

fn key_of(round: u64, key: u64) -> Vec<u8> {
    format!("round {round} key {key}").into_bytes()
}

/// The value of a write proves which write it was.
fn value(round: u64, number: u64) -> Vec<u8> {
    let len_bytes = LENGTHS[Random::new(round << 32 | number).below(LENGTHS.len() as u64) as usize];
    [&number.to_le_bytes()[..], &value_of(round << 32 | number, len_bytes)].concat()
}

fn connect(url: &str) -> Client {
    Client::connect_with(url, &Options { timeout: PATIENCE, ..Options::default() }).unwrap()
}

/// Not a test of its own: puts until it is killed, and says what it begins and what was acknowledged.
#[test]
#[ignore = "run by another test, which kills it"]
fn helper_puts() {
    let Some(word) = told() else { return };
    let (round, url) = word.split_once(' ').unwrap();
    let round: u64 = round.parse().unwrap();
    let mut client = connect(url);
    let mut under_way: HashMap<Ticket, u64> = HashMap::new();
    for number in 1.. {
        while under_way.len() >= DEPTH {
            let Completion { ticket, outcome } = client.wait().unwrap().unwrap();
            let Outcome::Put(Ok(version)) = outcome else { panic!("{outcome:?}") };
            println!("@ack {} {version}", under_way.remove(&ticket).unwrap());
        }
        println!("@begin {number} 0");
        let ticket = client.submit_put(&key_of(round, number % KEYS), &value(round, number)).unwrap();
        under_way.insert(ticket, number);
    }
}

/// What is known of a key of a killed client.
#[derive(Clone, Copy, Default)]
struct Known {
    begun: u64,
    acknowledged: u64,
    version: u64,
}

/// Lets a client run until it has said `lines` lines, kills it, and returns what it had said by then.
fn run_and_kill(url: &str, round: u64, lines: u64) -> [Known; KEYS as usize] {
    let mut helper = Helper::start("killed_client::helper_puts", &format!("{round} {url}"));
    let mut known = [Known::default(); KEYS as usize];
    let mut hear = |helper: &mut Helper| {
        let Some(line) = helper.next_line() else { return false };
        let words: Vec<&str> = line.split(' ').collect();
        let (number, version): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        let key = &mut known[(number % KEYS) as usize];
        match words[0] {
            "begin" => key.begun = number,
            _ => (key.acknowledged, key.version) = (number, version),
        }
        true
    };
    for _ in 0..lines {
        assert!(hear(&mut helper), "the client runs until it is killed");
    }
    helper.child.kill().unwrap();
    while hear(&mut helper) {}
    known
}

fn clients_killed_in_the_middle_of_puts_leave_nothing_but_what_was_acknowledged(transport: Transport) {
    // What happens to the queue pairs is the same, whoever connects them.
    let rounds = if transport == Transport::VerbsCm { 8 } else { ROUNDS };
    let site = Site::over(transport);
    let server = site.serve_with(Needs { memory: "128MiB", workers: 2, ..Needs::default() }, &[]);
    let mut client = site.connect(PATIENCE);
    client.put(b"other", b"value").unwrap();
    let before = server.footprint_of_one(&mut client);
    let block_bytes_before = client.server_stat().unwrap().counters["block_bytes"];
    kill_clients(&site.url(), &mut client, 0..rounds);
    // The session of a client ends before its keys are deleted: nothing of it is done afterwards.
    server.wait_for_footprint(before, &mut client);
    delete_what_they_wrote(&mut client, 0..rounds);
    let counters = client.server_stat().unwrap().counters;
    assert_eq!((counters["keys"], counters["block_bytes"]), (1, block_bytes_before));
}

/// Kills a client in each of these rounds, and checks what it leaves, beside someone who must not notice.
pub(crate) fn kill_clients(url: &str, client: &mut Client, rounds: Range<u64>) {
    let is_over = AtomicBool::new(false);
    let mut random = Random::new(7 + rounds.start);
    thread::scope(|scope| {
        let bystander = scope.spawn(|| {
            let mut client = connect(url);
            let mut written = 0;
            while !is_over.load(Ordering::Relaxed) || written == 0 {
                let value = value(u64::MAX >> 32, written);
                client.put(b"bystander", &value).unwrap();
                assert!(client.get(b"bystander").unwrap().unwrap().bytes == value);
                written += 1;
            }
            client.delete(b"bystander").unwrap();
        });
        for round in rounds {
            let known = run_and_kill(url, round, 1 + random.below(150));
            check(client, round, &known);
        }
        is_over.store(true, Ordering::Relaxed);
        bystander.join().unwrap();
    });
}

pub(crate) fn delete_what_they_wrote(client: &mut Client, rounds: Range<u64>) {
    for round in rounds {
        for key in 0..KEYS {
            client.delete(&key_of(round, key)).unwrap();
        }
    }
}

fn check(client: &mut Client, round: u64, known: &[Known; KEYS as usize]) {
    for (key, known) in known.iter().enumerate() {
        let found = client.get(&key_of(round, key as u64)).unwrap();
        let Some(found) = found else {
            assert_eq!(known.acknowledged, 0, "round {round} key {key}: lost");
            continue;
        };
        let number = u64::from_le_bytes(found.bytes[..8].try_into().unwrap());
        assert!(found.bytes == value(round, number), "round {round} key {key}: not the value that was put");
        // A write that was begun and not acknowledged may be there or not.
        assert!((known.acknowledged..=known.begun).contains(&number), "round {round} key {key}: {number}");
        let is_acknowledged = number == known.acknowledged;
        assert!(if is_acknowledged { found.version == known.version } else { found.version > known.version });
    }
}

over_each_transport!(clients_killed_in_the_middle_of_puts_leave_nothing_but_what_was_acknowledged);
