//! A wire that loses packets is slower, and nothing else.

use std::time::Instant;

use super::hand::on_two_machines;
use super::link::{self, Link};
use super::world::{World, all_errors};
use crate::live::PATIENCE;

const PERCENT: u64 = 2;
const OPERATIONS: u64 = 400;

#[test]
#[ignore = "needs two machines with RDMA devices"]
fn lost_packets_in_both_directions_change_no_result() {
    on_two_machines("loss", |hand| {
        let world = World::new(format!("kv+rdma://{}", hand.serve()), 3);
        let (repeats, mut link) = (link::repeats() + hand.repeats(), Link::new());
        hand.lose(PERCENT);
        link.lose(PERCENT);
        let began = Instant::now();
        let reports = world.play(&[PATIENCE; 3], |world| world.wait_for_operations(OPERATIONS));
        let (took, lost) = (began.elapsed(), [link.lose(0), hand.lose(0)]);
        let repeats = link::repeats() + hand.repeats() - repeats;
        let checked = world.judge();
        assert!(all_errors(&reports).is_empty(), "{reports:?}");
        assert!(reports.iter().all(|report| report.stats.reconnects == 0), "{reports:?}");
        assert!(lost.iter().all(|&lost| lost > 0), "{lost:?} packets were lost");
        assert!(repeats > 0, "nothing had to be sent again");
        let longest = reports.iter().map(|report| report.longest).max();
        println!(
            "{PERCENT} % lost both ways: {} operations of 3 clients in {took:?}, {lost:?} packets lost, {repeats} seen \
             twice, out of order or sent again, 0 errors, longest call {longest:?}",
            checked.operations
        );
    });
}
