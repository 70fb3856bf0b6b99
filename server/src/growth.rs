//! The thread that splits index segments.

use std::thread;
use std::time::Duration;

use crate::shared::Shared;
use crate::table::{Growing, Table};

/// Homes after which it lets others have the processor, if they want it: some 100 microseconds.
const HOMES_PER_TURN: u64 = 128;

/// Splits what wants to be split, until the server stops. Sleeps while there is nothing to do.
pub(crate) fn run(shared: &Shared, table: &Table) {
    while !shared.is_stopping() {
        match table.grow(&mut |home| !home.is_multiple_of(HOMES_PER_TURN)) {
            Growing::Busy => thread::yield_now(),
            Growing::WaitNs(wait_ns) => table.growth_signal().wait(Some(Duration::from_nanos(wait_ns))),
            Growing::Idle => table.growth_signal().wait(None),
        }
    }
}
