//! A client over shared memory: its rings, its bell, and the replies that the ring has no room for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use kv_common::region::Words;
use kv_common::ring::{Consumer, Producer, PushError, RingError};
use kv_common::transport::shm::channel::ServerEnd;
use kv_common::transport::shm::doorbell::{Doorbell, PeerGone};
use kv_common::wire::Reply;

use super::{End, Next};

/// A client's rings and bell.
pub(crate) struct ShmLink {
    bell: Doorbell,
    requests: Consumer,
    staging: Words,
    outbox: Outbox,
}

impl ShmLink {
    pub(crate) fn new(end: ServerEnd, bell: Doorbell) -> ShmLink {
        let ServerEnd { requests, replies, staging } = end;
        let outbox = Outbox { replies, waiting: VecDeque::new(), broken: None, has_pushed: false };
        ShmLink { bell, requests, staging, outbox }
    }

    pub(super) fn next(&mut self, message: &mut Vec<u8>) -> Result<Next, End> {
        Ok(match self.requests.try_pop(message)? {
            Some(_) => Next::Request,
            None => Next::Nothing,
        })
    }

    pub(super) fn staging(&self) -> &Words {
        &self.staging
    }

    pub(super) fn push(&mut self, reply: &Reply<'_>) {
        self.outbox.push(reply);
    }

    pub(super) fn flush(&mut self) -> Result<bool, End> {
        let has_progress = self.outbox.flush();
        self.outbox.broken.map_or(Ok(has_progress), |error| Err(error.into()))
    }

    pub(super) fn has_delivered(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Wakes the client if something was pushed and it sleeps.
    pub(super) fn end_turn(&mut self) -> Result<(), End> {
        if std::mem::take(&mut self.outbox.has_pushed) && self.outbox.replies.needs_wake() {
            self.bell.ring()?;
        }
        Ok(())
    }

    /// Takes the bells that the client rang.
    pub(super) fn woken(&mut self) -> Result<(), End> {
        Ok(self.bell.clear().map(|_| ())?)
    }

    pub(super) fn fall_asleep(&mut self) -> bool {
        self.requests.prepare_sleep()
    }

    pub(super) fn wake_up(&mut self) {
        self.requests.woke();
    }
}

impl AsFd for ShmLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl From<PeerGone> for End {
    fn from(_: PeerGone) -> End {
        End::Gone
    }
}

/// Replies on their way to the client: in the ring, and behind them those that the ring has no room for. These are
/// never more than the replies to one request.
struct Outbox {
    replies: Producer,
    waiting: VecDeque<Vec<u8>>,
    broken: Option<RingError>,
    has_pushed: bool,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.broken.is_none()
    }

    fn push(&mut self, reply: &Reply<'_>) {
        let header = reply.header();
        if !self.is_empty() || !self.try_push(&[&header, reply.chunk]) {
            self.waiting.push_back([&header, reply.chunk].concat());
        }
    }

    /// Hands over what the ring has room for. True if that was anything.
    fn flush(&mut self) -> bool {
        let before = self.waiting.len();
        while let Some(message) = self.waiting.pop_front() {
            if !self.try_push(&[&message]) {
                self.waiting.push_front(message);
                break;
            }
        }
        self.waiting.len() < before
    }

    /// False if there is no room.
    fn try_push(&mut self, parts: &[&[u8]]) -> bool {
        if self.broken.is_some() {
            return true;
        }
        match self.replies.try_push(parts) {
            Ok(()) => self.has_pushed = true,
            Err(PushError::Full) => return false,
            Err(PushError::Broken(error)) => self.broken = Some(error),
            Err(error @ PushError::TooLarge { .. }) => unreachable!("a reply fits into a ring: {error}"),
        }
        true
    }
}
