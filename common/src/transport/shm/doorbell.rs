//! Waking a peer that sleeps, and noticing one that is gone.
//!
//! After the hellos the Unix socket carries nothing but bells: bytes without meaning, each of which says "look at your
//! ring". It is used for that, and not an eventfd, because an eventfd is one file for both peers: a hostile one could
//! switch it to blocking and fill it, and the other would hang in its `write`. The two ends of a socket are two files,
//! `MSG_DONTWAIT` holds whatever the peer does, and the end of the peer shows on the very descriptor that is waited on.
//!
//! A bell that does not fit into the socket's buffer is not needed: the peer has unread ones.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Bells that are taken from the socket at once.
const BELLS_AT_ONCE: usize = 256;

/// The peer closed the connection or died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer is gone")]
pub struct PeerGone;

/// The bells of one connection, both ways.
pub struct Doorbell {
    socket: UnixStream,
}

impl Doorbell {
    /// The bells of a connection whose hellos are done.
    pub fn new(socket: UnixStream) -> Doorbell {
        Doorbell { socket }
    }

    /// Wakes the peer, now or when it looks. Never blocks.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn ring(&self) -> Result<(), PeerGone> {
        loop {
            match send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                // Also when the kernel has no memory for it: then the connection is given up rather than left asleep.
                Err(errno) if errno != Errno::INTR => return Err(PeerGone),
                Err(_) => {}
            }
        }
    }

    /// Takes the bells that rang; true if there were any. Never blocks, and takes a bounded number: a descriptor that is
    /// polled level-triggered stays ready while there are more.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn clear(&self) -> Result<bool, PeerGone> {
        let mut bells = [0; BELLS_AT_ONCE];
        loop {
            // Without room for control messages: descriptors that a peer may send are closed by the kernel.
            match recv(&self.socket, &mut bells, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(PeerGone),
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(_) => return Err(PeerGone),
            }
        }
    }

    /// Sleeps until a bell rings, a signal comes, or `timeout` has passed, and takes the bells. True if any rang.
    ///
    /// Look at the ring afterwards in any case.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn wait(&self, timeout: Duration) -> Result<bool, PeerGone> {
        // A time beyond what the kernel can count is forever.
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => Ok(false),
            Ok(_) => self.clear(),
            Err(_) => Err(PeerGone),
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
