//! Who is at the other end of a connection.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use kv_common::transport::shm::credentials::PeerCredentials;

/// Whoever connected.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// A process of this host, by the Unix socket.
    Local(PeerCredentials),
    /// Somebody, by TCP.
    Remote(SocketAddr),
}

/// Those who share the places of peers that have not said hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// A user of this host.
    User(u32),
    /// A host, or whoever has all the numbers of one IPv6 network.
    Host(IpAddr),
}

impl Peer {
    pub(crate) fn origin(&self) -> Origin {
        match self {
            Peer::Local(credentials) => Origin::User(credentials.uid),
            Peer::Remote(address) => Origin::Host(match address.ip().to_canonical() {
                // A host can have any number of its network, which has 64 bits.
                IpAddr::V6(number) => Ipv6Addr::from_bits(number.to_bits() >> 64 << 64).into(),
                number => number,
            }),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Local(PeerCredentials { pid: Some(pid), uid, .. }) => {
                write!(f, "process {pid} of user {uid}")
            }
            Peer::Local(PeerCredentials { uid, .. }) => write!(f, "a process of user {uid}"),
            Peer::Remote(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_one_host_or_network_have_one_origin() {
        let origin = |text: &str| Peer::Remote(text.parse().unwrap()).origin();
        assert_eq!(origin("10.0.0.1:1"), origin("10.0.0.1:2"));
        assert_eq!(origin("10.0.0.1:1"), origin("[::ffff:10.0.0.1]:2"));
        assert_ne!(origin("10.0.0.1:1"), origin("10.0.0.2:1"));
        assert_eq!(origin("[2001:db8::1]:1"), origin("[2001:db8::ffff:1:2:3]:1"));
        assert_ne!(origin("[2001:db8::1]:1"), origin("[2001:db8:0:1::1]:1"));
    }
}
