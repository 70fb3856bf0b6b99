//! A wire that is cut: for a moment, which nobody notices, and for longer, which ends in errors and then in a connection.

use std::time::{Duration, Instant};

use super::hand::{Hand, on_two_machines};
use super::link::Link;
use super::load::Report;
use super::world::{World, all_errors};
use crate::live::{PATIENCE, not_run, wait_for};

/// A device gives a peer up after 470 ms at least.
const SHORT: Duration = Duration::from_millis(100);
const SHORT_ENOUGH: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3);
/// Shorter than the cut, about as long, and the default.
const TIMEOUTS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(5)];
/// What a machine that does other things, too, may add to a deadline.
const LATE_MAX: Duration = Duration::from_secs(5);

#[test]
#[ignore = "needs two machines with RDMA devices"]
fn a_short_cut_is_not_noticed() {
    on_two_machines("short-cut", |hand| {
        let world = World::new(format!("kv+rdma://{}", hand.serve()), 3);
        let mut link = Link::new();
        let mut cuts = Vec::new();
        world.play(&[PATIENCE; 3], |world| {
            world.wait_for_operations(50);
            // A busy machine may cut for longer than it was told to: then the connections may be lost.
            for _ in 0..10 {
                let errors = world.errors();
                let cut = link.cut_for(SHORT);
                world.wait_for_operations(30);
                if cut.at_most < SHORT_ENOUGH {
                    assert_eq!(world.errors(), errors, "{cut:?}");
                    cuts.push(cut);
                }
                if cuts.len() == 3 {
                    break;
                }
            }
        });
        world.judge();
        assert!(cuts.iter().all(|cut| cut.dropped > 0), "{cuts:?}");
        if cuts.is_empty() {
            return not_run("a short cut", "this machine is too busy to cut so shortly");
        }
        println!("no errors by {cuts:?}");
    });
}

#[test]
#[ignore = "needs two machines with RDMA devices"]
fn a_cut_of_three_seconds_ends_in_typed_errors_and_then_in_new_connections() {
    on_two_machines("cut", |hand| {
        let world = World::new(format!("kv+rdma://{}", hand.serve()), TIMEOUTS.len());
        let before = hand.held();
        let mut times = None;
        let reports = world.play(&TIMEOUTS, |world| {
            world.wait_for_operations(50);
            times = Some(cut(hand));
            world.wait_for_operations(50);
        });
        let (began, ended) = times.expect("the wire was cut");
        let checked = world.judge();
        println!("cut for {:?}: {checked:?}, {:?}", ended - began, all_errors(&reports));
        for report in &reports {
            judge(report, began, ended);
        }
        // Of the connections that were lost the server has nothing any more.
        wait_for("queue pairs are gone", || (hand.held().queue_pairs <= before.queue_pairs).then_some(()));
    });
}

/// Both ends at once; when it began and when it had ended.
fn cut(hand: &mut Hand) -> (Instant, Instant) {
    let (mut link, began) = (Link::new(), Instant::now());
    let there = hand.cut_for(LONG);
    let here = link.cut_for(LONG);
    let there = hand.healed(there);
    let ended = Instant::now();
    // What never arrives is not answered: there may be nothing to lose there.
    assert!(here.dropped > 0, "{here:?} {there:?}");
    println!("cut here {here:?}, there {there:?}");
    (began, ended)
}

fn judge(report: &Report, began: Instant, ended: Instant) {
    let outage = report.outages.iter().find(|outage| outage.back > ended).expect("it lost its connection");
    println!(
        "timeout {:?}: first error {:?} after the cut, back {:?} after its end, longest call {:?}, {:?}, {} reconnects",
        report.timeout,
        outage.first_error - began,
        outage.back - ended,
        report.longest,
        report.errors,
        report.stats.reconnects,
    );
    assert!(outage.first_error > began && outage.first_error < ended, "{report:?}");
    assert!(report.stats.reconnects > 0, "{report:?}");
    // The call that connects anew may take the time twice.
    assert!(report.longest < 2 * report.timeout + LATE_MAX, "{report:?}");
}
