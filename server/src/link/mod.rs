//! What carries one client's requests and replies: the only part of a session that differs between transports.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what a session and its worker ask of a link |
//! | `shm.rs` | rings in shared memory, and a bell |
//!
//! A link never waits. What it cannot hand over stays with it, and the session takes no further request until the
//! client has taken that: so a client that does not read its replies stalls only itself, and costs at most the replies
//! to one request.

mod shm;

use std::os::fd::{AsFd, BorrowedFd};

use kv_common::region::Words;
use kv_common::ring::RingError;
use kv_common::wire::{Malformed, Reply};

pub(crate) use shm::ShmLink;

/// What a link came up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A request, in the caller's buffer; the bytes that it names in the staging area are there.
    Request,
    /// The client asks for nothing now.
    Nothing,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum End {
    #[error("the client is gone")]
    Gone,
    #[error(transparent)]
    Ring(#[from] RingError),
    #[error("malformed request: {0}")]
    Malformed(Malformed),
}

impl End {
    /// What the client is told about a fault of its own that no request can be blamed for.
    pub(crate) fn complaint(self) -> Option<Malformed> {
        match self {
            End::Ring(_) => Some(Malformed::Ring),
            // A malformed request was answered.
            End::Gone | End::Malformed(_) => None,
        }
    }
}

/// One client's requests and replies.
pub(crate) enum Link {
    Shm(ShmLink),
}

macro_rules! each {
    ($self:expr, $link:ident => $call:expr) => {
        match $self {
            Link::Shm($link) => $call,
        }
    };
}

impl Link {
    /// The next request, copied into `message`. To be called only if everything was delivered.
    pub(crate) fn next(&mut self, message: &mut Vec<u8>) -> Result<Next, End> {
        each!(self, link => link.next(message))
    }

    /// The memory that the client lends to the server, or the mirror of it.
    pub(crate) fn staging(&self) -> &Words {
        each!(self, link => link.staging())
    }

    /// Takes a reply; hands it over if there is room for it, or else keeps it.
    pub(crate) fn push(&mut self, reply: &Reply<'_>) {
        each!(self, link => link.push(reply));
    }

    /// Hands over what was kept and has room now. True if that was anything.
    pub(crate) fn flush(&mut self) -> Result<bool, End> {
        each!(self, link => link.flush())
    }

    /// True if nothing is kept.
    pub(crate) fn has_delivered(&self) -> bool {
        each!(self, link => link.has_delivered())
    }

    /// Ends a turn in which replies may have been pushed: a client that waits for them learns of them.
    pub(crate) fn end_turn(&mut self) -> Result<(), End> {
        each!(self, link => link.end_turn())
    }

    /// Takes what made the descriptor ready, if that is not a request itself.
    pub(crate) fn woken(&mut self) -> Result<(), End> {
        each!(self, link => link.woken())
    }

    /// Announces that nobody looks at the requests any more: from now on the descriptor becomes ready with the next.
    /// False if there is one already.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        each!(self, link => link.fall_asleep())
    }

    /// Takes that back.
    pub(crate) fn wake_up(&mut self) {
        each!(self, link => link.wake_up());
    }
}

/// The descriptor to watch.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, link => link.as_fd())
    }
}
