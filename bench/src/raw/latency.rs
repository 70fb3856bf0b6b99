//! One message at a time.
//!
//! A READ is timed from one posting to the next, with its completion between: a whole round trip. A SEND or WRITE is
//! answered by one of the same size, and half of the time is reported. As in perftest, what is seen of a WRITE is its last
//! byte: adapters place the bytes of a message in order, as far as is known; none promises it.

use super::error::RawError;
use super::kinds::Measured;
use super::lane::Lanes;
use super::plan::Operation;
use super::taker::Patience;
use crate::clock::{Clock, SystemClock};

/// The times between the starts of messages, in ns: one less than there are messages.
pub(super) fn measure<K: Measured>(lanes: &mut Lanes<K>, clock: &SystemClock) -> Result<Vec<u64>, RawError> {
    let iterations = lanes.test.iterations;
    let mut starts = Vec::with_capacity(iterations as usize);
    match lanes.test.operation {
        Operation::Read => {
            for _ in 0..iterations {
                starts.push(clock.begin());
                lanes.post(0, 0, true)?;
                lanes.sends.wait("the completion of a READ")?;
            }
        }
        Operation::Send => {
            for _ in 0..iterations {
                starts.push(clock.begin());
                lanes.post(0, 0, true)?;
                lanes.receives.wait("the answer to a SEND")?;
                lanes.post_receives(0, 1)?;
                lanes.sends.wait("the completion of a SEND")?;
            }
        }
        Operation::Write => {
            for number in 0..iterations {
                let mark = mark_of(number);
                lanes.mark_source(mark);
                starts.push(clock.begin());
                lanes.post(0, 0, true)?;
                wait_for_mark(lanes, mark, false)?;
            }
        }
    }
    Ok(starts.windows(2).map(|pair| clock.ns(pair[1].saturating_sub(pair[0]))).collect())
}

/// The other side of a ping-pong. A READ has none.
pub(super) fn answer<K: Measured>(lanes: &mut Lanes<K>) -> Result<(), RawError> {
    let iterations = lanes.test.iterations;
    match lanes.test.operation {
        Operation::Read => (),
        Operation::Send => {
            for _ in 0..iterations {
                lanes.receives.wait("a SEND")?;
                lanes.post(0, 0, true)?;
                lanes.post_receives(0, 1)?;
                lanes.sends.wait("the completion of a SEND")?;
            }
        }
        Operation::Write => {
            for number in 0..iterations {
                let mark = mark_of(number);
                wait_for_mark(lanes, mark, true)?;
                lanes.mark_source(mark);
                lanes.post(0, 0, true)?;
                lanes.sends.wait("the completion of a WRITE")?;
            }
        }
    }
    Ok(())
}

/// Never the mark of the message before, nor what was in the memory at first.
fn mark_of(number: u32) -> u8 {
    (number % 255 + 1) as u8
}

/// Waits until the peer's WRITE is here, and, unless the own one is not posted yet, until that is complete.
#[inline]
fn wait_for_mark<K: Measured>(lanes: &mut Lanes<K>, mark: u8, own_is_complete: bool) -> Result<(), RawError> {
    let mut patience = Patience::default();
    while lanes.target_mark() != mark {
        patience.wait("a WRITE")?;
    }
    if !own_is_complete {
        lanes.sends.wait("the completion of a WRITE")?;
    }
    Ok(())
}
