//! Waiting for descriptors: epoll, and a bell that threads of this process ring for each other.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Events that one look brings at most; what is left comes with the next.
const EVENTS_PER_LOOK: usize = 128;

/// What a descriptor is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watch {
    /// Bytes to read, and the peer's end: as long as they are there.
    Bells,
    /// Each time that bytes come, room to write becomes free again, or the peer ends.
    News,
}

/// An epoll instance whose descriptors are named by numbers of the caller's choice.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        Ok(Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches `source` for bytes to read, and for its end, until it is closed or removed.
    pub(crate) fn add(&self, source: impl AsFd, token: u64) -> io::Result<()> {
        self.add_for(source, token, Watch::Bells)
    }

    /// Watches `source`, until it is closed or removed.
    pub(crate) fn add_for(&self, source: impl AsFd, token: u64, watch: Watch) -> io::Result<()> {
        let bells = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let interest = match watch {
            Watch::Bells => bells,
            Watch::News => bells | epoll::EventFlags::OUT | epoll::EventFlags::ET,
        };
        Ok(epoll::add(&self.epoll, source, epoll::EventData::new_u64(token), interest)?)
    }

    pub(crate) fn remove(&self, source: impl AsFd) {
        // It fails only if `source` is not watched, which is what is wanted.
        let _ = epoll::delete(&self.epoll, source);
    }

    /// Waits until a descriptor is ready, at most `timeout` (`None`: for good), and appends the tokens of those that are
    /// to `tokens`. A signal ends the wait early.
    pub(crate) fn wait(&self, timeout: Option<Duration>, tokens: &mut Vec<u64>) -> io::Result<()> {
        // What the kernel cannot count is forever.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_LOOK];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => tokens.extend(events.iter().map(|event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }
}

/// Wakes a thread that waits in a [`Poller`].
pub(crate) struct Waker(OwnedFd);

impl Waker {
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    pub(crate) fn wake(&self) {
        // It fails only if the count is full: then the thread has been woken often enough.
        let _ = rustix::io::write(&self.0, &1u64.to_le_bytes());
    }

    pub(crate) fn clear(&self) {
        // It fails only if nobody rang.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
