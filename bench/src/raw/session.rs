//! Both sides' course through one test after the other.
//!
//! | the side that measures | | the other side |
//! |---|---|---|
//! | makes queue pairs | setup → | makes queue pairs |
//! | connects, posts receives | ← ready | connects, posts receives |
//! | | connected → ← connected | |
//! | measures | | answers, or receives |
//! | | done → ← done | |
//!
//! and in the end bye →. Whoever cannot go on tells the other why, as far as it still listens.

use std::time::Duration;

use kv_common::verbs::{Rc, Uc, Ud};

use super::control::{ANSWER_LIMIT, Control, unexpected};
use super::error::{BetweenError, HereError, RawError};
use super::kinds::Measured;
use super::lane::{Lanes, Unconnected};
use super::plan::{Connection, Measure, Operation, Test};
use super::report::Row;
use super::side::Side;
use super::wire::{Ends, Message};
use super::{bandwidth, latency, statistics};

/// A test that takes longer for each message than this is given up by the side that only waits for its end.
const MESSAGE_LIMIT: Duration = Duration::from_millis(50);

/// Measures all tests against the side behind `control`; tells each result to `on_row`.
pub(super) fn measure_all(
    side: &Side,
    control: &mut Control,
    tests: &[Test],
    mut on_row: impl FnMut(&Row),
) -> Result<Vec<Row>, RawError> {
    let mut rows = Vec::new();
    for test in tests {
        let measured = match test.connection {
            Connection::Rc => measure::<Rc>(side, control, test),
            Connection::Uc => measure::<Uc>(side, control, test),
            Connection::Ud => measure::<Ud>(side, control, test),
        };
        let row = measured.map_err(|error| told(control, error))?;
        on_row(&row);
        rows.push(row);
    }
    control.send(&Message::Bye)?;
    Ok(rows)
}

/// Serves what the side behind `control` measures, until it says that there is no more; counts the tests that
/// were carried out in `served`.
pub(super) fn serve_all(side: &Side, control: &mut Control, served: &mut u64) -> Result<(), RawError> {
    loop {
        let (test, ends) =
            match control.receive("setup", ANSWER_LIMIT).map_err(|error| told(control, error))? {
                Message::Setup(test, ends) => (test, ends),
                Message::Bye => return Ok(()),
                other => return Err(told(control, unexpected("setup", &other))),
            };
        let done = match test.connection {
            Connection::Rc => serve::<Rc>(side, control, &test, &ends),
            Connection::Uc => serve::<Uc>(side, control, &test, &ends),
            Connection::Ud => serve::<Ud>(side, control, &test, &ends),
        };
        done.map_err(|error| told(control, error))?;
        *served += 1;
    }
}

/// Tells the other side why this one gives up, unless it is the other one that did.
fn told(control: &mut Control, error: RawError) -> RawError {
    match &error {
        RawError::Refused(_) | RawError::Between(BetweenError::Closed) => (),
        RawError::Between(BetweenError::Stalled { .. } | BetweenError::Completion(_))
            if control.has_message() =>
        {
            // It may have said why nothing comes any more; that explains more than the silence does.
            if let Err(refused @ RawError::Refused(_)) = control.receive("refused", ANSWER_LIMIT) {
                return refused;
            }
        }
        // If it does not listen any more, it knows already.
        _ => drop(control.send(&Message::Refused(error.to_string()))),
    }
    error
}

fn measure<K: Measured>(side: &Side, control: &mut Control, test: &Test) -> Result<Row, RawError> {
    test.check_mtu(side.port.attributes().active_mtu.bytes())?;
    let fresh = Unconnected::<K>::create(side, test)?;
    control.send(&Message::Setup(*test, fresh.ends()))?;
    let peer = control.receive_ready()?;
    if peer.endpoints.len() != test.queue_pairs as usize {
        return Err(unexpected("as many endpoints as it got", &Message::Ready(peer)));
    }
    let mut lanes = fresh.connect(side, &peer)?;
    control.send(&Message::Connected)?;
    control.receive_connected()?;
    let mut row = Row::new(*test, lanes.mtu_bytes);
    match test.measure {
        Measure::Latency => {
            let times = latency::measure(&mut lanes, &side.clock)?;
            row.latency_ns = statistics::latency(times, if test.halves() { 2 } else { 1 });
        }
        Measure::Bandwidth => {
            let times = bandwidth::measure(&mut lanes, &side.clock)?;
            row.bandwidth = statistics::bandwidth(&times.posted_ns, &times.completed_ns, test.size_bytes);
        }
    }
    control.send(&Message::Done(test.messages()))?;
    let arrived = control.receive_done(ANSWER_LIMIT)?;
    if (test.operation, test.measure) == (Operation::Send, Measure::Bandwidth) {
        row.lost = Some(test.messages().saturating_sub(arrived));
    }
    if row.latency_ns.is_none() && row.bandwidth.is_none() {
        return Err(HereError::NoTimes.into());
    }
    Ok(row)
}

fn serve<K: Measured>(side: &Side, control: &mut Control, test: &Test, peer: &Ends) -> Result<(), RawError> {
    let fresh = Unconnected::<K>::create(side, test)?;
    let ends = fresh.ends();
    let mut lanes: Lanes<K> = fresh.connect(side, peer)?;
    control.send(&Message::Ready(ends))?;
    control.receive_connected()?;
    control.send(&Message::Connected)?;
    let arrived = match test.measure {
        Measure::Latency => latency::answer(&mut lanes).map(|()| test.messages())?,
        Measure::Bandwidth => bandwidth::receive(&mut lanes, control)?,
    };
    let limit = MESSAGE_LIMIT.saturating_mul(u32::try_from(test.messages()).unwrap_or(u32::MAX));
    control.receive_done(ANSWER_LIMIT + limit)?;
    control.send(&Message::Done(arrived))
}
