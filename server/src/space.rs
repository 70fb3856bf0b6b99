//! The thread that makes segments free.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::shared::Shared;
use crate::table::{Keeping, SpaceKeeper, Table};

/// Empties segments while too few are free, until the server stops. Sleeps while there is nothing to do.
pub(crate) fn run(shared: &Shared, table: &Arc<Table>) {
    let mut keeper = SpaceKeeper::new(table);
    while !shared.is_stopping() {
        match keeper.step() {
            Keeping::Busy => thread::yield_now(),
            Keeping::WaitNs(wait_ns) => table.space_signal().wait(Some(Duration::from_nanos(wait_ns))),
            Keeping::Idle => table.space_signal().wait(None),
        }
    }
}
