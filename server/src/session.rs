//! One client: who it is, and the link that carries its requests and replies.

use std::os::fd::{AsFd, BorrowedFd};

use kv_common::region::Words;
use kv_common::transport::shm::spin::Spin;
use kv_common::wire::{Malformed, Refusal, Reply, Request, Status};

use crate::link::{End, Link, Next};
use crate::peer::Peer;
use crate::poller::Watch;
use crate::shared::ClientSlot;
use crate::table;

/// Requests of one client, READs included where the server answers them, that are served before others have their turn.
const REQUESTS_PER_TURN: usize = 16;

/// A client's session. Dropping it closes its socket, which the client notices, and frees its memory.
pub(crate) struct Session {
    pub(crate) number: u64,
    pub(crate) peer: Peer,
    pub(crate) spin: Spin,
    link: Link,
    /// The link's, in a view of its own: replies go out by the link while the table looks at it.
    staging: Words,
    /// A request that waits for room. None is taken before it is answered.
    parked: Option<Parked>,
    _slot: ClientSlot,
}

struct Parked {
    message: Vec<u8>,
    waiting: table::Waiting,
}

/// What a turn with a client came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It asked for nothing.
    Nothing,
    /// So many requests were served, not counting READs; there may be more.
    Served(usize),
    /// It has not read all of its replies, or its request waits for room: its next request is not taken before.
    Stalled {
        /// It has read some.
        has_progress: bool,
    },
    /// It is over.
    Ended(End),
}

/// Whether requests are done or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Serve,
    /// The server drains.
    Refuse,
}

impl Session {
    pub(crate) fn new(number: u64, peer: Peer, link: Link, slot: ClientSlot) -> Session {
        let staging = link.staging().clone();
        Session { number, peer, spin: link.spin(), link, staging, parked: None, _slot: slot }
    }

    /// Serves a few requests, if replies before them could be handed over. `message` is room for a request.
    pub(crate) fn turn(&mut self, table: &mut table::Worker, message: &mut Vec<u8>, mode: Mode) -> Turn {
        let turn = self.serve(table, message, mode).unwrap_or_else(Turn::Ended);
        if let Turn::Ended(end) = turn {
            if let Some(reason) = end.complaint() {
                self.link.push(&refused(0, Refusal::Malformed { reason }));
            }
            self.link.close();
            return turn;
        }
        match self.link.end_turn() {
            Ok(()) => turn,
            Err(end) => Turn::Ended(end),
        }
    }

    fn serve(&mut self, table: &mut table::Worker, message: &mut Vec<u8>, mode: Mode) -> Result<Turn, End> {
        let (mut requests, mut others) = (0, 0);
        let has_progress = self.link.flush()?;
        if let Some(mut parked) = self.parked.take_if(|_| self.link.has_room())
            && !self.answer(table, &parked.message, &mut parked.waiting, mode).map_err(End::Malformed)?
        {
            self.parked = Some(parked);
        }
        while self.parked.is_none() && self.link.has_room() && requests + others < REQUESTS_PER_TURN {
            match self.link.next(message, |request| table.landing(self.number, request))? {
                Next::Request => {
                    let mut waiting = table::Waiting::default();
                    if self.answer(table, message, &mut waiting, mode).map_err(End::Malformed)? {
                        requests += 1;
                    } else {
                        self.parked = Some(Parked { message: message.clone(), waiting });
                    }
                }
                Next::Served => others += 1,
                Next::Nothing if requests + others == 0 => return Ok(Turn::Nothing),
                Next::Nothing => return Ok(Turn::Served(requests)),
            }
        }
        Ok(if requests + others == 0 { Turn::Stalled { has_progress } } else { Turn::Served(requests) })
    }

    /// Answers one request; false if it waits for room. A message that is none is an error after it was answered: who sends
    /// such things cannot be trusted with what follows.
    fn answer(
        &mut self,
        table: &mut table::Worker,
        message: &[u8],
        waiting: &mut table::Waiting,
        mode: Mode,
    ) -> Result<bool, Malformed> {
        let mut malformed = None;
        let link = &mut self.link;
        let mut sink = |reply: &Reply<'_>| {
            if let Status::Refused(Refusal::Malformed { reason }) = reply.status {
                malformed = Some(reason);
            }
            link.push(reply);
        };
        let is_answered = match mode {
            Mode::Serve => {
                table.handle_or_wait(self.number, message, Some(&self.staging), waiting, &mut sink)
            }
            Mode::Refuse => {
                sink(&refusal_while_draining(message));
                true
            }
        };
        malformed.map_or(Ok(is_answered), Err)
    }

    /// Ends it; what it has begun in the table and not ended is given up.
    pub(crate) fn end(self, table: &mut table::Worker) {
        if let Some(parked) = &self.parked {
            table.end_wait(&parked.waiting);
        }
        let run = table.abandon(self.number);
        self.link.end(run);
    }

    /// Takes what made the descriptor ready, if that is not a request itself.
    pub(crate) fn woken(&mut self) -> Result<(), End> {
        self.link.woken()
    }

    /// True if looking for requests is not worth the time any more, whatever the budget.
    pub(crate) fn is_idle_long(&self) -> bool {
        self.link.is_idle_long()
    }

    /// True if a request has come that cannot be answered yet.
    pub(crate) fn is_fetching(&self) -> bool {
        self.link.is_fetching()
    }

    /// Announces that nobody looks at the requests any more. False if there is one.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.link.fall_asleep()
    }

    /// Takes that back.
    pub(crate) fn wake_up(&mut self) {
        self.link.wake_up();
    }

    /// The token by which its worker knows it.
    pub(crate) fn admitted(&mut self, token: u64) {
        self.link.admitted(token);
    }

    /// How the descriptor is to be watched.
    pub(crate) fn watch(&self) -> Watch {
        self.link.watch()
    }

    /// True if all replies were handed over.
    pub(crate) fn has_delivered(&self) -> bool {
        self.link.has_delivered()
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
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
