//! One client: its rings, its bell, and the replies that it has not read yet.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use kv_common::region::Words;
use kv_common::ring::{Consumer, Producer, PushError, RingError};
use kv_common::transport::shm::channel::ServerEnd;
use kv_common::transport::shm::credentials::PeerCredentials;
use kv_common::transport::shm::doorbell::{Doorbell, PeerGone};
use kv_common::transport::shm::spin::Spin;
use kv_common::wire::{Malformed, Refusal, Reply, Request, Status};

use crate::shared::ClientSlot;
use crate::table;

/// Requests of one client that are served before others have their turn.
const REQUESTS_PER_TURN: usize = 16;

/// A client's session. Dropping it closes its socket, which the client notices, and frees its memory.
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) peer: PeerCredentials,
    pub(crate) spin: Spin,
    bell: Doorbell,
    requests: Consumer,
    staging: Words,
    outbox: Outbox,
    _slot: ClientSlot,
}

/// What a turn with a client came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It asked for nothing.
    Nothing,
    /// So many requests were served; there may be more.
    Served(usize),
    /// It has not read all of its replies: its next request is not taken before it has.
    Stalled {
        /// It has read some.
        has_progress: bool,
    },
    /// It is over.
    Ended(End),
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum End {
    #[error("the client is gone")]
    Gone(#[from] PeerGone),
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("malformed request: {0}")]
    Malformed(Malformed),
}

/// Whether requests are done or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Serve,
    /// The server drains.
    Refuse,
}

impl Session {
    pub(crate) fn new(
        number: u64,
        peer: PeerCredentials,
        end: ServerEnd,
        bell: Doorbell,
        slot: ClientSlot,
    ) -> Session {
        let ServerEnd { requests, replies, staging } = end;
        let outbox = Outbox { replies, waiting: VecDeque::new(), broken: None, has_pushed: false };
        Session { number, peer, spin: Spin::default(), bell, requests, staging, outbox, _slot: slot }
    }

    /// Serves a few requests, if replies before them could be handed over. `message` is room for a request.
    pub(crate) fn turn(&mut self, table: &mut table::Worker, message: &mut Vec<u8>, mode: Mode) -> Turn {
        let turn = self.serve(table, message, mode);
        if let Turn::Ended(End::Ring(_)) = turn {
            self.outbox.push(&refused(0, Refusal::Malformed { reason: Malformed::Ring }));
        }
        match self.wake_client() {
            Ok(()) => turn,
            Err(gone) => Turn::Ended(gone.into()),
        }
    }

    fn serve(&mut self, table: &mut table::Worker, message: &mut Vec<u8>, mode: Mode) -> Turn {
        let mut served = 0;
        let has_progress = self.outbox.flush();
        while self.outbox.is_empty() && served < REQUESTS_PER_TURN {
            match self.requests.try_pop(message) {
                Ok(Some(_)) => {}
                Ok(None) if served == 0 => return Turn::Nothing,
                Ok(None) => return Turn::Served(served),
                Err(error) => return Turn::Ended(error.into()),
            }
            if let Err(reason) = self.answer(table, message, mode) {
                return Turn::Ended(End::Malformed(reason));
            }
            served += 1;
        }
        match self.outbox.broken {
            Some(error) => Turn::Ended(error.into()),
            None if served == 0 => Turn::Stalled { has_progress },
            None => Turn::Served(served),
        }
    }

    /// Answers one request. A message that is none is an error after it was answered: who sends such things cannot be
    /// trusted with what follows.
    fn answer(&mut self, table: &mut table::Worker, message: &[u8], mode: Mode) -> Result<(), Malformed> {
        let mut malformed = None;
        let outbox = &mut self.outbox;
        let mut sink = |reply: &Reply<'_>| {
            if let Status::Refused(Refusal::Malformed { reason }) = reply.status {
                malformed = Some(reason);
            }
            outbox.push(reply);
        };
        match mode {
            Mode::Serve => table.handle(self.number, message, Some(&self.staging), &mut sink),
            Mode::Refuse => sink(&refusal_while_draining(message)),
        }
        malformed.map_or(Ok(()), Err)
    }

    fn wake_client(&mut self) -> Result<(), PeerGone> {
        if std::mem::take(&mut self.outbox.has_pushed) && self.outbox.replies.needs_wake() {
            self.bell.ring()?;
        }
        Ok(())
    }

    /// Takes the bells that the client rang.
    pub(crate) fn take_bells(&mut self) -> Result<(), PeerGone> {
        self.bell.clear().map(|_| ())
    }

    /// Announces that nobody looks at the requests any more. False if there is one.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.requests.prepare_sleep()
    }

    /// Takes that back.
    pub(crate) fn wake_up(&mut self) {
        self.requests.woke();
    }

    /// True if all replies were handed over.
    pub(crate) fn has_delivered(&self) -> bool {
        self.outbox.is_empty()
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

fn refused(seq: u64, refusal: Refusal) -> Reply<'static> {
    Reply::new(seq, Status::Refused(refusal), 0)
}

fn refusal_while_draining(message: &[u8]) -> Reply<'static> {
    match Request::decode(message) {
        Ok(request) => refused(request.seq, Refusal::ShuttingDown),
        Err((seq, refusal)) => refused(seq.unwrap_or(0), refusal),
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
