//! As many messages in flight as were asked for.

use std::time::{Duration, Instant};

use super::control::Control;
use super::error::RawError;
use super::kinds::Measured;
use super::lane::Lanes;
use super::plan::Operation;
use super::taker::Patience;
use crate::clock::{Clock, SystemClock};

/// How many times of a full queue a completion is asked for. perftest asks for one in 100 requests, and so lets a queue of
/// 128 run nearly empty each time.
const COMPLETIONS_PER_DEPTH: u32 = 4;
/// Most requests that one completion stands for.
const REQUESTS_PER_COMPLETION_MAX: u32 = 100;
/// After the sender is done, messages may still be on their way for this long.
const STRAGGLERS: Duration = Duration::from_millis(20);
/// Receives that are posted again with one doorbell.
const RECEIVES_PER_POST: u32 = 16;

/// When each message was posted, and known to be complete, in ns.
pub(super) struct Times {
    pub(super) posted_ns: Vec<u64>,
    pub(super) completed_ns: Vec<u64>,
}

/// A queue pair's messages so far.
#[derive(Clone, Copy, Default)]
struct Progress {
    posted: u32,
    completed: u32,
}

/// Sends, writes or reads all messages of the test.
pub(super) fn measure<K: Measured>(lanes: &mut Lanes<K>, clock: &SystemClock) -> Result<Times, RawError> {
    let (iterations, depth) = (lanes.test.iterations, lanes.test.depth);
    let every = (depth / COMPLETIONS_PER_DEPTH).clamp(1, REQUESTS_PER_COMPLETION_MAX);
    let all = usize::try_from(lanes.test.messages()).unwrap_or(usize::MAX);
    let (mut posted, mut completed) = (Vec::with_capacity(all), Vec::with_capacity(all));
    let mut progress = vec![Progress::default(); lanes.lanes.len()];
    let mut patience = Patience::default();
    while completed.len() < all {
        for (lane, at) in progress.iter_mut().enumerate() {
            while at.posted < iterations && at.posted - at.completed < depth {
                let next = at.posted + 1;
                let signalled = next % every == 0 || next == iterations;
                posted.push(clock.begin());
                // The id says which queue pair, and how many of its messages are complete with this one.
                lanes.post(lane, (lane as u64) << 32 | u64::from(next), signalled)?;
                at.posted = next;
            }
        }
        let before = completed.len();
        lanes.sends.poll(|id, _| {
            let at = &mut progress[(id >> 32) as usize];
            let now = clock.end();
            let until = id as u32;
            completed.extend((at.completed..until).map(|_| now));
            at.completed = until;
        })?;
        if completed.len() == before {
            patience.wait("the completion of a request")?;
        } else {
            patience.renew();
        }
    }
    let begun = posted.first().copied().unwrap_or(0);
    let ns = |times: Vec<u64>| times.into_iter().map(|at| clock.ns(at.saturating_sub(begun))).collect();
    Ok(Times { posted_ns: ns(posted), completed_ns: ns(completed) })
}

/// The other side: takes SENDs until all are here, or until the sender is done, or has ended, and no more come. How many
/// came. READ and WRITE need nobody here.
pub(super) fn receive<K: Measured>(lanes: &mut Lanes<K>, control: &Control) -> Result<u64, RawError> {
    let all = lanes.test.messages();
    if lanes.test.operation != Operation::Send {
        return Ok(0);
    }
    let mut received = 0;
    let mut used = vec![0; lanes.lanes.len()];
    let mut patience = Patience::default();
    let mut ends_at = None;
    while received < all && ends_at.is_none_or(|end| Instant::now() < end) {
        let count = lanes.receives.poll(|lane, _| used[lane as usize] += 1)?;
        received += count as u64;
        for (lane, used) in used.iter_mut().enumerate() {
            if *used >= RECEIVES_PER_POST {
                lanes.post_receives(lane, *used)?;
                *used = 0;
            }
        }
        if count > 0 {
            patience.renew();
            ends_at = None;
        } else if patience.wait("a SEND")? && ends_at.is_none() && control.has_message() {
            ends_at = Some(Instant::now() + STRAGGLERS);
        }
    }
    Ok(received)
}
