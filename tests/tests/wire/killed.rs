//! Either side is killed at random moments, and the other is usable.

use std::time::{Duration, Instant};

use kv_client::{Client, Options};

use super::hand::on_two_machines;
use super::world::{World, all_errors};
use crate::killed_client::{delete_what_they_wrote, kill_clients};
use crate::live::{PATIENCE, Random, try_wait_for};

const SERVERS_KILLED: u64 = 6;
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];

#[test]
#[ignore = "needs two machines with RDMA devices"]
fn a_server_killed_under_load_leaves_clients_that_come_back_and_never_mix_up_its_table_with_the_next() {
    on_two_machines("server-killed", |hand| {
        let world = World::new(format!("kv+rdma://{}", hand.serve()), TIMEOUTS.len());
        let mut random = Random::new(11);
        let mut killed = Vec::new();
        let reports = world.play(&TIMEOUTS, |world| {
            for _ in 0..SERVERS_KILLED {
                world.wait_for_operations(1 + random.below(40));
                let began = Instant::now();
                hand.kill();
                hand.serve();
                killed.push((began, Instant::now()));
            }
            world.wait_for_operations(30);
        });
        let checked = world.judge();
        assert_eq!(world.tables() as u64, 1 + SERVERS_KILLED);
        println!("{SERVERS_KILLED} servers killed: {checked:?}, {:?}", all_errors(&reports));
        for report in &reports {
            assert_eq!(report.stats.reconnects, SERVERS_KILLED, "{report:?}");
            let after = |outage: &super::load::Outage| {
                let ready = killed
                    .iter()
                    .rev()
                    .find(|(began, _)| *began < outage.first_error)
                    .map(|(_, ready)| ready);
                ready.map(|ready| outage.back.saturating_duration_since(*ready))
            };
            let back: Vec<Duration> = report.outages.iter().filter_map(after).collect();
            println!(
                "timeout {:?}: back after the next was ready by {back:?}, {:?}",
                report.timeout, report.errors
            );
        }
    });
}

#[test]
#[ignore = "needs two machines with RDMA devices"]
fn clients_killed_at_random_moments_leave_nothing_on_the_server() {
    on_two_machines("clients-killed", |hand| {
        let url = format!("kv+rdma://{}", hand.serve());
        let options = Options { timeout: PATIENCE, ..Options::default() };
        let mut client = Client::connect_with(&url, &options).unwrap();
        // The first ones make what stays.
        kill_clients(&url, &mut client, 0..4);
        delete_what_they_wrote(&mut client, 0..4);
        alone(&mut client);
        let (before, blocks) = (hand.held(), client.server_stat().unwrap().counters["block_bytes"]);
        kill_clients(&url, &mut client, 4..20);
        alone(&mut client);
        let mut now = None;
        let is_as_before = || {
            let held = *now.insert(hand.held());
            let kinds =
                |held: super::hand::Held| (held.descriptors, held.queue_pairs, held.completion_queues);
            (kinds(held) <= kinds(before)).then_some(held)
        };
        let Some(after) = try_wait_for(is_as_before) else { panic!("{now:?} now, {before:?} before") };
        delete_what_they_wrote(&mut client, 4..20);
        let counters = client.server_stat().unwrap().counters;
        assert_eq!((counters["keys"], counters["block_bytes"]), (0, blocks));
        println!("20 clients killed, the last 16 of them counted: {before:?} before, {after:?} after");
    });
}

/// Waits until nobody else is connected.
fn alone(client: &mut Client) {
    let one = || (client.server_stat().unwrap().counters["sessions"] == 1).then_some(());
    try_wait_for(one).expect("sessions of killed clients end");
}
