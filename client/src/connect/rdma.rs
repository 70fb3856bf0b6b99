//! Connecting by RDMA; the hello goes by TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Instant;

use kv_common::endpoint::{Address, ConnectBy, RdmaOptions};
use kv_common::hello::Wanted;
use kv_common::transport::tcp::socket;
use kv_common::transport::verbs::connect::{self, ConnectError};
use kv_common::transport::verbs::port::PortWish;
use kv_common::verbs::LocalPort;
use kv_common::verbs::cm::Resolved;

use super::{Connected, NoConnection, is_here, say_hello, welcome};
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

fn try_connect(address: &Address, options: &RdmaOptions, deadline: Instant) -> Result<Attempt, NoConnection> {
    // Before the server waits for this side: looking at devices takes long.
    let guess = ends_towards(address);
    let mut plan = Plan::make(options, guess, deadline)?;
    let stream = socket::connect(address, deadline)?;
    socket::tune(&stream)?;
    let ends = Ends { own: stream.local_addr()?, server: stream.peer_addr()? };
    if guess.is_none_or(|guess| !guess.are_hosts_of(&ends)) {
        plan = Plan::make(options, Some(ends), deadline)?;
    }
    let Plan { by, port, why } = plan;
    let port = port.expect("the ends are known");
    let wanted = if by == ConnectBy::Rdma { Wanted::RdmaCm } else { Wanted::Rdma };
    let said_hello = Instant::now();
    let (answer, _) = say_hello(&stream, wanted, 0, deadline)?;
    let mut welcome = welcome(answer)?;
    if !is_here(&stream)? {
        // The number means nothing here.
        welcome.server_pid = 0;
    }
    Ok(connect::connect(stream, &welcome, port, by, deadline).map(|transport| {
        let transport = AnyTransport::Verbs(OfThisProcess::new(transport));
        (Connected { welcome, transport, said_hello }, why)
    }))
}

/// Addresses of both ends of the control connection.
#[derive(Clone, Copy)]
struct Ends {
    own: SocketAddr,
    server: SocketAddr,
}

impl Ends {
    fn are_hosts_of(&self, other: &Ends) -> bool {
        (self.own.ip(), self.server.ip()) == (other.own.ip(), other.server.ip())
    }
}

/// What connects the queue pairs, from which port, and why so.
struct Plan {
    by: ConnectBy,
    /// None if it depends on ends that are not known yet.
    port: Option<LocalPort>,
    why: &'static str,
}

impl Plan {
    fn make(options: &RdmaOptions, ends: Option<Ends>, deadline: Instant) -> Result<Plan, NoConnection> {
        let wish = PortWish::new(options.device.as_deref(), options.port, options.gid_index);
        let route = || ends.map(|ends| port_of_route(&wish, ends, deadline)).transpose();
        if options.connect_by == Some(ConnectBy::Rdma) {
            let why = "queue pairs connected by rdma_cm, as asked";
            return Ok(Plan { by: ConnectBy::Rdma, port: route()?, why });
        }
        let port = wish.choose(ends.map(|ends| ends.own.ip()))?;
        match (port.context().is_iwarp(), options.connect_by) {
            (true, Some(_)) => Err(only_by_cm(&port)),
            (true, None) => {
                let why = "queue pairs connected by rdma_cm, because the device is iWARP";
                Ok(Plan { by: ConnectBy::Rdma, port: route()?, why })
            }
            (false, _) => {
                let why = "queue pairs connected over TCP";
                Ok(Plan { by: ConnectBy::Tcp, port: Some(port), why })
            }
        }
    }
}

fn only_by_cm(port: &LocalPort) -> NoConnection {
    let name = &port.context().device().name;
    NoConnection::Failed(format!(
        "{name} is an iWARP device, which only rdma_cm connects: write cm=rdma, or leave cm out"
    ))
}

/// The port by which rdma_cm reaches the server: not a matter of choice. What was wished has to be the same.
fn port_of_route(wish: &PortWish, ends: Ends, deadline: Instant) -> Result<LocalPort, NoConnection> {
    let Ends { mut own, server } = ends;
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

/// The ends of a connection to the server, as far as the system knows them before it is tried.
fn ends_towards(address: &Address) -> Option<Ends> {
    let server: SocketAddr = (address.host.as_str(), address.port).to_socket_addrs().ok()?.next()?;
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // Nothing is sent by this.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(server).ok()?;
    Some(Ends { own: socket.local_addr().ok()?, server })
}
