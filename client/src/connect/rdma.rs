//! Connecting by RDMA; the hello goes by TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Instant;

use kv_common::endpoint::{Address, ConnectBy, RdmaOptions};
use kv_common::hello::Wanted;
use kv_common::transport::tcp::socket;
use kv_common::transport::verbs::connect;
use kv_common::transport::verbs::port::PortWish;

use super::{Connected, NoConnection, say_hello, welcome};
use crate::transport::{AnyTransport, OfThisProcess};

/// Hello, answer, exchange, and READs that show that it works.
pub(super) fn connect(
    address: &Address,
    options: &RdmaOptions,
    deadline: Instant,
) -> Result<Connected, NoConnection> {
    if options.connect_by == ConnectBy::Rdma {
        return Err(NoConnection::Failed(
            "connecting by the RDMA connection manager (cm=rdma) is not possible; leave it out".to_owned(),
        ));
    }
    let wish = PortWish::new(options.device.as_deref(), options.port, options.gid_index);
    // Before the server waits for this side.
    let guess = local_address(address);
    let mut port = wish.choose(guess)?;
    let stream = socket::connect(address, deadline)?;
    let reaching = stream.local_addr()?.ip();
    if guess.is_some_and(|guess| guess != reaching) {
        port = wish.choose(Some(reaching))?;
    }
    socket::tune(&stream)?;
    let is_here = stream.peer_addr()?.ip().is_loopback();
    let (answer, _) = say_hello(&stream, Wanted::Rdma, 0, deadline)?;
    let mut welcome = welcome(answer)?;
    if !is_here {
        // The number means nothing here.
        welcome.server_pid = 0;
    }
    let transport = connect::connect(stream, &welcome, port, deadline)?;
    Ok((welcome, AnyTransport::Verbs(OfThisProcess::new(transport))))
}

/// The address of this host from which the server is reached, as far as the system knows before it is tried.
fn local_address(address: &Address) -> Option<IpAddr> {
    let server: SocketAddr = (address.host.as_str(), address.port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent by this.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(server).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
