//! Waiting for completions, by polling, for a bounded time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::verbs::{Completed, CompletionQueue, Completions};

use super::error::{BetweenError, RawError};

/// How long nothing may come while something must.
const STALL_LIMIT: Duration = Duration::from_secs(10);
/// Polls that find nothing between two looks at the clock.
const POLLS_PER_LOOK: u32 = 1024;
/// Completions that one poll takes.
const ROOM: usize = 32;

/// A completion queue, and room for what is taken from it.
pub(super) struct Taker {
    queue: Arc<CompletionQueue>,
    room: Completions,
}

impl Taker {
    pub(super) fn new(queue: Arc<CompletionQueue>) -> Self {
        Self { queue, room: Completions::with_capacity(ROOM) }
    }

    /// Takes what is there; gives each one's id and what it was to `on`, and how many there were.
    #[inline]
    pub(super) fn poll(&mut self, mut on: impl FnMut(u64, Completed)) -> Result<usize, RawError> {
        let taken = self.queue.poll(&mut self.room)?;
        let count = taken.len();
        for completion in taken {
            on(completion.id(), completion.result()?);
        }
        Ok(count)
    }

    /// Takes completions until at least one was there; how many. Of a ping-pong it is always one.
    #[inline]
    pub(super) fn wait(&mut self, awaited: &'static str) -> Result<usize, RawError> {
        let mut patience = Patience::default();
        loop {
            let count = self.poll(|_, _| ())?;
            if count > 0 {
                return Ok(count);
            }
            patience.wait(awaited)?;
        }
    }
}

/// Counts how long nothing has come.
#[derive(Default)]
pub(super) struct Patience {
    polls: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Something has come.
    pub(super) fn renew(&mut self) {
        *self = Self::default();
    }

    /// Nothing has come: true each time that the clock was looked at.
    ///
    /// # Errors
    /// If that has been so for too long.
    #[inline]
    pub(super) fn wait(&mut self, awaited: &'static str) -> Result<bool, BetweenError> {
        self.polls += 1;
        std::hint::spin_loop();
        if self.polls < POLLS_PER_LOOK {
            return Ok(false);
        }
        self.look(awaited).map(|()| true)
    }

    #[cold]
    fn look(&mut self, awaited: &'static str) -> Result<(), BetweenError> {
        self.polls = 0;
        // The other side, or the device's own thread, may need this processor.
        std::thread::yield_now();
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > STALL_LIMIT {
            return Err(BetweenError::Stalled { awaited, waited_s: STALL_LIMIT.as_secs() });
        }
        Ok(())
    }
}
