//! Who the two sides are: this process and another, or this process alone.

use std::sync::Arc;

use kv_common::verbs::Context;

use super::args::RawArgs;
use super::control::{Control, listen};
use super::error::{BetweenError, RawError};
use super::plan::Test;
use super::report::{RawJson, Row, SCHEMA};
use super::session::{measure_all, serve_all};
use super::side::{Side, open};
use crate::clock::SystemClock;
use crate::report::sink::tell;

pub(super) fn measure(args: &RawArgs, tests: &[Test]) -> Result<Option<RawJson>, RawError> {
    let context = open(args)?;
    if let Some(address) = &args.listen {
        return serve(args, &context, address).map(|()| None);
    }
    let (side, peer, rows) = match &args.connect {
        Some(address) => {
            let mut control = Control::connect(address)?;
            let side = Side::new(args, context, control.local_ip())?;
            let rows = measure_all(&side, &mut control, tests, show)?;
            (side, address.clone(), rows)
        }
        None => {
            let side = Side::new(args, context, None)?;
            let rows = measure_here(&side, tests)?;
            (side, "this process".into(), rows)
        }
    };
    let clock: &SystemClock = &side.clock;
    Ok(Some(RawJson { schema: SCHEMA, port: side.describe(), peer, clock: clock.source(), results: rows }))
}

/// Both sides in this process, each in a thread.
fn measure_here(side: &Side, tests: &[Test]) -> Result<Vec<Row>, RawError> {
    let (mut control, mut other) = Control::pair()?;
    std::thread::scope(|scope| {
        // It tells the side that measures why it fails, if it does.
        let served = scope.spawn(move || serve_all(side, &mut other, &mut 0));
        let rows = measure_all(side, &mut control, tests, show);
        drop(control);
        let _ = served.join();
        rows
    })
}

/// Serves one peer. A connection that is none is refused, and the next one awaited.
fn serve(args: &RawArgs, context: &Arc<Context>, address: &str) -> Result<(), RawError> {
    let listener = listen(address)?;
    let local = listener.local_addr().map_err(BetweenError::Control)?;
    tell(format_args!("kv-bench raw: waiting at {local} for the side that measures"));
    loop {
        let (stream, peer) = listener.accept().map_err(BetweenError::Control)?;
        let mut control = Control::over(stream).map_err(BetweenError::Control)?;
        let side = Side::new(args, Arc::clone(context), control.local_ip())?;
        let mut served = 0;
        match serve_all(&side, &mut control, &mut served) {
            Ok(()) => {
                tell(format_args!("kv-bench raw: {served} measurement(s) for {peer}"));
                return Ok(());
            }
            Err(RawError::Between(error)) if served == 0 && is_of_a_stranger(&error) => {
                tell(format_args!("kv-bench raw: {peer}: {error}; still waiting"));
            }
            Err(error) => return Err(error),
        }
    }
}

/// True if whoever connected did not get as far as to measure anything.
fn is_of_a_stranger(error: &BetweenError) -> bool {
    !matches!(error, BetweenError::Completion(_) | BetweenError::Stalled { .. })
}

/// A line of progress.
fn show(row: &Row) {
    tell(format_args!(
        "raw: {} {} {:?}, {} bytes",
        row.operation.name(),
        row.connection.name(),
        row.measure,
        row.bytes
    ));
}
