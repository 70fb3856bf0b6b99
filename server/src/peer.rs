//! Who is at the other end of a connection.

use kv_common::transport::shm::credentials::PeerCredentials;

/// Whoever connected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// A process of this host, by the Unix socket.
    Local(PeerCredentials),
}

impl Peer {
    /// Its process, if it is on this host and visible.
    pub(crate) fn pid(&self) -> Option<u32> {
        let Peer::Local(credentials) = self;
        credentials.pid
    }

    /// Its user, as the kernel says.
    pub(crate) fn uid(&self) -> Option<u32> {
        let Peer::Local(credentials) = self;
        Some(credentials.uid)
    }
}
