//! The threads that keep the table in order. Each sleeps while there is nothing to do, and ends with the server.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::shared::Shared;
use crate::table::{Signal, SpaceKeeper, Table, Upkeep};

/// Homes after which the one that splits lets others have the processor, if they want it: some 50 microseconds.
const HOMES_PER_TURN: u64 = 64;

/// Splits index segments that want to be split.
pub(crate) fn split(shared: &Shared, table: &Table) {
    run(shared, table.growth_signal(), || table.grow(&mut |home| !home.is_multiple_of(HOMES_PER_TURN)));
}

/// Empties segments while too few are free.
pub(crate) fn make_space(shared: &Shared, table: &Arc<Table>) {
    let mut keeper = SpaceKeeper::new(table);
    run(shared, table.space_signal(), || keeper.step());
}

fn run(shared: &Shared, signal: &Signal, mut step: impl FnMut() -> Upkeep) {
    while !shared.is_stopping() {
        match step() {
            Upkeep::Busy => thread::yield_now(),
            Upkeep::WaitNs(wait_ns) => signal.wait(Some(Duration::from_nanos(wait_ns))),
            Upkeep::Idle => signal.wait(None),
        }
    }
}
