//! Connecting by RDMA; the hello goes by TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Instant;

use kv_common::endpoint::{Address, ConnectBy, RdmaOptions};
use kv_common::hello::Wanted;
use kv_common::transport::tcp::socket;
use kv_common::transport::verbs::connect::{self, ConnectError};
use kv_common::transport::verbs::port::PortWish;
use kv_common::verbs::LocalPort;
use kv_common::verbs::cm::Resolved;

use super::{Connected, NoConnection, say_hello, welcome};
use crate::transport::{AnyTransport, OfThisProcess};

/// How often connecting by rdma_cm begins anew, if what failed may pass.
const TRIES_MAX: u32 = 3;

/// Hello, answer, exchange, and READs that show that it works. Also says what connected the queue pairs, and why that.
pub(super) fn connect(
    address: &Address,
    options: &RdmaOptions,
    deadline: Instant,
) -> Result<(Connected, &'static str), NoConnection> {
    let mut tries = 1;
    loop {
        match try_connect(address, options, deadline)? {
            Ok(done) => return Ok(done),
            Err(error) if error.is_passing() && tries < TRIES_MAX && Instant::now() < deadline => {
                tracing::info!(%error, tries, "connecting by RDMA begins anew");
                tries += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

type Attempt = Result<(Connected, &'static str), ConnectError>;

fn try_connect(
    address: &Address,
    options: &RdmaOptions,
    deadline: Instant,
) -> Result<Attempt, NoConnection> {
    let wish = PortWish::new(options.device.as_deref(), options.port, options.gid_index);
    // Before the server waits for this side.
    let guess = local_address(address);
    let first = match options.connect_by {
        Some(ConnectBy::Rdma) => None,
        _ => Some(wish.choose(guess)?),
    };
    let is_iwarp = first.as_ref().is_some_and(|port| port.context().is_iwarp());
    let stream = socket::connect(address, deadline)?;
    socket::tune(&stream)?;
    let reaching = stream.local_addr()?.ip();
    let (by, port, why) = match (first, options.connect_by) {
        (Some(port), Some(ConnectBy::Tcp)) if is_iwarp => return Err(only_by_cm(&port)),
        (Some(port), _) if !is_iwarp => {
            let is_right = guess.is_none_or(|guess| guess == reaching);
            let port = if is_right { port } else { wish.choose(Some(reaching))? };
            (ConnectBy::Tcp, port, "queue pairs connected over TCP")
        }
        (_, asked) => {
            let why = match asked {
                Some(_) => "queue pairs connected by rdma_cm, as asked",
                None => "queue pairs connected by rdma_cm, because the device is iWARP",
            };
            (ConnectBy::Rdma, port_of_route(&wish, &stream, deadline)?, why)
        }
    };
    let is_here = stream.peer_addr()?.ip().is_loopback();
    let wanted = if by == ConnectBy::Rdma { Wanted::RdmaCm } else { Wanted::Rdma };
    let (answer, _) = say_hello(&stream, wanted, 0, deadline)?;
    let mut welcome = welcome(answer)?;
    if !is_here {
        // The number means nothing here.
        welcome.server_pid = 0;
    }
    Ok(connect::connect(stream, &welcome, port, by, deadline).map(|transport| {
        let transport = AnyTransport::Verbs(OfThisProcess::new(transport));
        ((welcome, transport), why)
    }))
}

fn only_by_cm(port: &LocalPort) -> NoConnection {
    let name = &port.context().device().name;
    NoConnection::Failed(format!(
        "{name} is an iWARP device, which only rdma_cm connects: write cm=rdma, or leave cm out"
    ))
}

/// The port by which rdma_cm reaches the server: not a matter of choice. What was wished has to be the same.
fn port_of_route(wish: &PortWish, stream: &TcpStream, deadline: Instant) -> Result<LocalPort, NoConnection> {
    let (server, mut own) = (stream.peer_addr()?, stream.local_addr()?);
    own.set_port(0);
    if let Some(index) = wish.gid_index {
        return Err(NoConnection::Failed(format!(
            "gid={index} cannot be had with cm=rdma, where the GID is that of the address by which the server is reached; \
             leave it out, or write cm=tcp"
        )));
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let resolved = Resolved::resolve(server, Some(own), left)?;
    let (device, port) = (resolved.device().to_owned(), resolved.port());
    let is_device = wish.device.as_ref().is_none_or(|name| *name == device);
    if !is_device || wish.port.is_some_and(|number| number != port) {
        return Err(NoConnection::Failed(format!(
            "rdma_cm reaches {server} through {device}:{port}, which is not what the URL names; write an address of the \
             server to which that device leads, or leave device and port out, or write cm=tcp"
        )));
    }
    let found = PortWish { device: Some(device), port: Some(port), gid_index: None };
    Ok(found.choose(Some(own.ip()))?)
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
