//! What carries one client's requests and replies: the only part of a session that differs between transports.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | what a session and its worker ask of a link |
//! | `shm.rs` | rings in shared memory, and a bell |
//! | `tcp.rs` | frames over a TCP connection, READs among them |
//! | `verbs.rs` | SENDs over a queue pair |
//!
//! A link never waits. What it cannot hand over stays with it, and the session takes no further request until the
//! client has taken that: so a client that does not read its replies stalls only itself, and costs at most the replies
//! to one request.

mod shm;
mod tcp;
#[cfg(feature = "verbs")]
mod verbs;

use std::os::fd::{AsFd, BorrowedFd};

use kv_common::region::Words;
use kv_common::ring::RingError;
use kv_common::transport::shm::spin::Spin;
use kv_common::transport::tcp::frame::FrameError;
use kv_common::wire::{Malformed, Reply, Request};

use crate::poller::Watch;
use crate::table::{AbandonedRun, Landing};

pub(crate) use shm::ShmLink;
pub(crate) use tcp::TcpLink;
#[cfg(feature = "verbs")]
pub(crate) use verbs::VerbsLink;

/// What a link came up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A request, in the caller's buffer; the bytes that it names in the staging area are there.
    Request,
    /// Something that the link has served by itself.
    Served,
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
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("malformed request: {0}")]
    Malformed(Malformed),
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Rdma(crate::rdma::Fault),
}

impl End {
    /// What the client is told about a fault of its own that no request can be blamed for.
    pub(crate) fn complaint(self) -> Option<Malformed> {
        match self {
            End::Ring(_) => Some(Malformed::Ring),
            End::Frame(_) => Some(Malformed::Frame),
            // A malformed request was answered.
            End::Gone | End::Malformed(_) => None,
            // Nothing can be sent any more.
            #[cfg(feature = "verbs")]
            End::Rdma(_) => None,
        }
    }
}

/// One client's requests and replies.
pub(crate) enum Link {
    Shm(ShmLink),
    Tcp(TcpLink),
    #[cfg(feature = "verbs")]
    Verbs(Box<VerbsLink>),
}

macro_rules! each {
    ($self:expr, $link:ident => $call:expr) => {
        match $self {
            Link::Shm($link) => $call,
            Link::Tcp($link) => $call,
            #[cfg(feature = "verbs")]
            Link::Verbs($link) => $call,
        }
    };
}

impl Link {
    /// What it is, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Link::Shm(_) => "shm",
            Link::Tcp(_) => "tcp",
            #[cfg(feature = "verbs")]
            Link::Verbs(_) => "verbs",
        }
    }

    /// How long to look for requests before sleeping.
    pub(crate) fn spin(&self) -> Spin {
        match self {
            Link::Shm(_) => Spin::default(),
            Link::Tcp(_) => TcpLink::spin(),
            #[cfg(feature = "verbs")]
            Link::Verbs(_) => VerbsLink::spin(),
        }
    }

    /// How the descriptor is to be watched. One that stays ready while a request waits, which a stalled client's does, is
    /// watched for what is new.
    pub(crate) fn watch(&self) -> Watch {
        match self {
            Link::Shm(_) => Watch::Bells,
            Link::Tcp(_) => Watch::News,
            #[cfg(feature = "verbs")]
            Link::Verbs(_) => Watch::Bells,
        }
    }

    /// The token by which its worker knows it.
    pub(crate) fn admitted(&mut self, _token: u64) {
        #[cfg(feature = "verbs")]
        if let Link::Verbs(link) = self {
            link.admitted(_token);
        }
    }

    /// The next request, copied into `message`. To be called only if there is room for what comes of it.
    /// A device may store a staged value where `_landing` says, instead of in the staging area's mirror.
    pub(crate) fn next(
        &mut self,
        message: &mut Vec<u8>,
        _landing: impl FnOnce(&Request<'_>) -> Option<Landing>,
    ) -> Result<Next, End> {
        match self {
            Link::Shm(link) => link.next(message),
            Link::Tcp(link) => link.next(message),
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.next(message, _landing),
        }
    }

    /// Ends it. The run is kept as long as a device may still store to it.
    pub(crate) fn end(self, run: Option<AbandonedRun>) {
        match self {
            Link::Shm(_) | Link::Tcp(_) => drop(run),
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.end(run),
        }
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

    /// True if so little is kept that another request may be taken.
    pub(crate) fn has_room(&self) -> bool {
        match self {
            Link::Shm(link) => link.has_delivered(),
            Link::Tcp(link) => link.has_room(),
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.has_room(),
        }
    }

    /// True if nothing is kept.
    pub(crate) fn has_delivered(&self) -> bool {
        each!(self, link => link.has_delivered())
    }

    /// Ends a turn in which replies may have been pushed: a client that waits for them learns of them.
    pub(crate) fn end_turn(&mut self) -> Result<(), End> {
        match self {
            Link::Shm(link) => link.end_turn(),
            Link::Tcp(link) => link.flush().map(|_| ()),
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.end_turn(),
        }
    }

    /// Hands over what was pushed last to a client that broke the protocol: it may hear why its session ends.
    pub(crate) fn close(&mut self) {
        match self {
            Link::Shm(link) => drop(link.end_turn()),
            Link::Tcp(link) => link.close(),
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => drop(link.end_turn()),
        }
    }

    /// Takes what made the descriptor ready, if that is not a request itself.
    pub(crate) fn woken(&mut self) -> Result<(), End> {
        match self {
            Link::Shm(link) => link.woken(),
            Link::Tcp(_) => Ok(()),
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.woken(),
        }
    }

    /// True if the client has asked for nothing for so long that looking on is not worth the time, whatever the budget.
    pub(crate) fn is_idle_long(&self) -> bool {
        match self {
            Link::Shm(_) | Link::Tcp(_) => false,
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.is_idle_long(),
        }
    }

    /// True if a request has come whose staged value is still on its way.
    pub(crate) fn is_fetching(&self) -> bool {
        match self {
            Link::Shm(_) | Link::Tcp(_) => false,
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.is_fetching(),
        }
    }

    /// Announces that nobody looks at the requests any more: from now on the descriptor becomes ready with the next.
    /// False if there is one already.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        each!(self, link => link.fall_asleep())
    }

    /// Takes that back.
    pub(crate) fn wake_up(&mut self) {
        match self {
            Link::Shm(link) => link.wake_up(),
            Link::Tcp(_) => {}
            #[cfg(feature = "verbs")]
            Link::Verbs(link) => link.wake_up(),
        }
    }
}

/// The descriptor to watch.
impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, link => link.as_fd())
    }
}
