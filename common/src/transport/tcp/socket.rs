//! Listening and connecting.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use crate::endpoint::Address;
use crate::limits::{TCP_GONE_SECONDS, TCP_SILENCE_SECONDS};

/// How often a silent host is asked again.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// Why a server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The host's name has no address.
    #[error("{address} has no address: {source}; check the name, or write the number")]
    NoAddress {
        /// What was asked for.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody listens there.
    #[error(
        "{address} is taken, perhaps by another kv-server; stop it, or choose with --listen HOST:PORT another port, or \
         none to do without"
    )]
    Taken {
        /// What was asked for.
        address: Address,
    },
    /// The system refused.
    #[error("{address}: {source}; --listen wants an address of this host")]
    Os {
        /// What was asked for.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
}

/// Why a client cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host's name has no address.
    #[error("{host:?} has no address: {source}; check the name")]
    NoAddress {
        /// The name.
        host: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody listens.
    #[error(
        "no server at {address}: nobody listens there; start kv-server with --listen, or check host and port"
    )]
    NoServer {
        /// Where.
        address: SocketAddr,
    },
    /// Nobody answers.
    #[error("{address} does not answer: it is down, or a firewall drops what is sent to it")]
    Timeout {
        /// Where.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("cannot connect to {address}: {source}")]
    Os {
        /// Where.
        address: SocketAddr,
        /// What it said.
        source: io::Error,
    },
}

/// A socket that clients connect to.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Listens on the first address that `address` stands for and that can be had.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(address: &Address) -> Result<Listener, BindError> {
        let named = || address.clone();
        let found: Vec<SocketAddr> = (address.host.as_str(), address.port)
            .to_socket_addrs()
            .map_err(|source| BindError::NoAddress { address: named(), source })?
            .collect();
        let os = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::Taken { address: named() },
            _ => BindError::Os { address: named(), source },
        };
        let socket = TcpListener::bind(&found[..]).map_err(os)?;
        socket.set_nonblocking(true).map_err(os)?;
        let address = socket.local_addr().map_err(os)?;
        Ok(Listener { socket, address })
    }

    /// Where it listens; the port that the system chose if it was asked for 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection, without waiting. It does not block.
    ///
    /// # Errors
    /// What the system said; peers that were gone before they were accepted are passed over.
    pub fn accept(&self) -> io::Result<Option<(TcpStream, SocketAddr)>> {
        loop {
            match self.socket.accept() {
                Ok((stream, peer)) => {
                    stream.set_nonblocking(true)?;
                    return Ok(Some((stream, peer)));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(None),
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    _ => return Err(error),
                },
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects to the first of a host's addresses that answers, until `deadline`. Looking up a name is the system's affair
/// and takes as long as it takes there.
///
/// # Errors
/// [`ConnectError`] of the last address that was tried.
pub fn connect(address: &Address, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let no_address = |source| ConnectError::NoAddress { host: address.host.clone(), source };
    let mut found = (address.host.as_str(), address.port).to_socket_addrs().map_err(no_address)?;
    let mut result = match found.next() {
        Some(first) => connect_one(first, share(deadline, 1 + found.len())),
        None => return Err(no_address(io::Error::other("the name is known and has none"))),
    };
    while let (Err(_), Some(next)) = (&result, found.next()) {
        result = connect_one(next, share(deadline, 1 + found.len()));
    }
    result
}

/// One of `parts` shares of the time that is left; never 0, which the system takes for an error.
fn share(deadline: Instant, parts: usize) -> Duration {
    let left = deadline.saturating_duration_since(Instant::now());
    (left / parts as u32).max(Duration::from_millis(1))
}

fn connect_one(address: SocketAddr, timeout: Duration) -> Result<TcpStream, ConnectError> {
    TcpStream::connect_timeout(&address, timeout).map_err(|source| match source.kind() {
        io::ErrorKind::ConnectionRefused => ConnectError::NoServer { address },
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => ConnectError::Timeout { address },
        _ => ConnectError::Os { address, source },
    })
}

/// What every connection of ours has: small frames go at once, and a host that vanished without a word is noticed.
///
/// # Errors
/// What the system said.
pub fn tune(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(TCP_SILENCE_SECONDS))?;
    sockopt::set_tcp_keepintvl(socket, PROBE_INTERVAL)?;
    // It also decides when silence has lasted too long (tcp(7)).
    sockopt::set_tcp_user_timeout(socket, TCP_GONE_SECONDS as u32 * 1000)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn numbers_and_names_of_both_families_are_listened_on_and_connected_to() {
        for host in ["127.0.0.1", "[::1]", "localhost"] {
            let listener = match Listener::bind(&address(&format!("{host}:0"))) {
                Err(BindError::Os { .. }) if host == "[::1]" => continue,
                listener => listener.unwrap(),
            };
            assert!(listener.address().ip().is_loopback() && listener.address().port() != 0);
            assert!(listener.accept().unwrap().is_none());
            let stream = connect(&address(&format!("{host}:{}", listener.address().port())), soon()).unwrap();
            let (_, peer) = listener.accept().unwrap().expect("it was connected");
            assert_eq!(peer, stream.local_addr().unwrap());
        }
    }

    #[test]
    fn what_cannot_be_says_why() {
        let listener = Listener::bind(&address("127.0.0.1:0")).unwrap();
        let taken = address(&listener.address().to_string());
        assert!(matches!(Listener::bind(&taken), Err(BindError::Taken { .. })));
        drop(listener);
        assert!(matches!(connect(&taken, soon()), Err(ConnectError::NoServer { .. })));
        let nowhere = address("kv.invalid:1");
        assert!(matches!(Listener::bind(&nowhere), Err(BindError::NoAddress { .. })));
        assert!(matches!(connect(&nowhere, soon()), Err(ConnectError::NoAddress { .. })));
        // TEST-NET-1 (RFC 5737) is nobody's address.
        assert!(matches!(Listener::bind(&address("192.0.2.1:0")), Err(BindError::Os { .. })));
    }
}
