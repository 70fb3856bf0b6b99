//! Peers that have not said hello yet.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use kv_common::hello::{Answer, HelloRefusal};
use kv_common::limits::HANDSHAKE_TIMEOUT_NS;
use kv_common::transport::handshake::{OutgoingHello, PendingHello};
use kv_common::transport::tcp::stream::drop_received;

use crate::peer::{Origin, Peer};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_nanos(HANDSHAKE_TIMEOUT_NS);

/// Someone who has not said hello yet.
pub(super) struct Newcomer {
    pub(super) socket: Socket,
    pub(super) peer: Peer,
    pub(super) pending: PendingHello,
    pub(super) since: Instant,
    /// It was welcomed to RDMA, and its half of the connection is what it says next.
    #[cfg(feature = "verbs")]
    pub(super) invited: Option<super::invited::Invited>,
}

/// A connection as it was accepted.
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Newcomer {
    pub(super) fn new(socket: Socket, peer: Peer) -> Newcomer {
        Newcomer {
            socket,
            peer,
            pending: PendingHello::new(0),
            since: Instant::now(),
            #[cfg(feature = "verbs")]
            invited: None,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.since + HANDSHAKE_TIMEOUT
    }
}

impl Socket {
    /// Says why, if the socket takes it at once.
    pub(super) fn refuse(&self, refusal: HelloRefusal) {
        say(self, &Answer::Refused(refusal));
        if let Socket::Tcp(stream) = self {
            say_no_more(stream);
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}

/// True if the socket took the answer at once.
pub(super) fn say(socket: &impl AsFd, answer: &Answer) -> bool {
    let mut answer = OutgoingHello::new(&answer.encode()).expect("an answer has a hello's length");
    matches!(answer.feed(socket.as_fd(), &[]), Ok(true))
}

/// Ends a connection so that what was said last arrives: a socket that is closed with unread bytes takes it back.
pub(super) fn say_no_more(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Write);
    drop_received(stream);
}

/// Of the origin with the most of the `pending` tokens, each with its origin and the oldest first, the oldest.
pub(super) fn least_deserving(pending: impl Iterator<Item = (u64, Origin)> + Clone) -> Option<u64> {
    let mut counts: HashMap<Origin, usize> = HashMap::new();
    for (_, origin) in pending.clone() {
        *counts.entry(origin).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    pending.into_iter().find(|(_, origin)| counts[origin] == most).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_with_the_most_silent_peers_loses_the_oldest() {
        let loser = |pending: &[(u64, u32)]| {
            least_deserving(pending.iter().map(|&(token, uid)| (token, Origin::User(uid))))
        };
        assert_eq!(loser(&[]), None);
        assert_eq!(loser(&[(3, 7), (4, 7)]), Some(3));
        assert_eq!(loser(&[(2, 0), (3, 7), (4, 0), (5, 7), (6, 7)]), Some(3));
        assert_eq!(loser(&[(2, 7), (3, 0), (5, 0), (6, 7)]), Some(2), "as many each: the oldest of all");
    }
}
