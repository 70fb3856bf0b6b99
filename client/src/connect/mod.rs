//! Connecting: from a URL to a client whose server was seen to serve a table.

mod choose;
#[cfg(feature = "verbs")]
mod rdma;
mod shm;
mod tcp;

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kv_common::endpoint::Endpoint;
use kv_common::hello::{Answer, Hello, HelloRefusal, Wanted, Welcome};
use kv_common::layout::superblock;
use kv_common::limits::TIMEOUT_MAX_NS;
use kv_common::transport::{Transport, handshake};

use crate::driver::{Driver, DriverOptions};
use crate::error::Error;
use crate::fork::ForkGuard;
use crate::reconnect::Reconnect;
use crate::transport::AnyTransport;
use crate::{Client, Connection, Options};

/// A connection whose hellos are done.
struct Connected {
    welcome: Welcome,
    transport: AnyTransport,
    /// Before the hello was sent: the server ran after that.
    said_hello: Instant,
}

pub(crate) fn connect(url: &str, options: &Options) -> Result<Client, Error> {
    let endpoint = Endpoint::parse(url)
        .map_err(|error| Error::Url { url: url.to_owned(), reason: error.to_string() })?;
    let deadline = Instant::now() + options.timeout.min(Duration::from_nanos(TIMEOUT_MAX_NS));
    let named = |why: &str| format!("the URL names {why}");
    let connected = match &endpoint {
        Endpoint::Shm { socket } => shm::connect(socket, deadline).map(|done| (done, named("a Unix socket"))),
        Endpoint::Tcp { address } => tcp::connect(address, deadline).map(|done| (done, named("tcp"))),
        Endpoint::Best { address } => choose::connect(address, deadline),
        #[cfg(feature = "verbs")]
        Endpoint::Rdma { address, options } => {
            let connected = rdma::connect(address, options, deadline);
            connected.map(|(done, how)| (done, format!("{}; {how}", named("RDMA"))))
        }
        #[cfg(not(feature = "verbs"))]
        Endpoint::Rdma { .. } => return Err(Error::WithoutRdma { endpoint: endpoint.to_string() }),
    };
    let (Connected { welcome, transport, said_hello }, why) = connected.map_err(|why| match why {
        NoConnection::Failed(reason) => Error::Connect { endpoint: endpoint.to_string(), reason },
        NoConnection::Refused(refusal) => Error::NotAdmitted { endpoint: endpoint.to_string(), refusal },
    })?;
    let promise = Promise {
        session: welcome.session,
        region_words: (welcome.region_bytes / 8) as usize,
        requests_in_flight: welcome.requests_in_flight as usize,
        table: Some((welcome.table_id, welcome.incarnation)),
        server_pid: Some(welcome.server_pid).filter(|&pid| pid != 0),
        url: endpoint.to_string(),
        why,
        hello_ago: said_hello.elapsed(),
    };
    let mut client = open(transport, promise, options)?;
    client.reconnect = options.reconnect.then(|| Reconnect::new(url, options));
    tracing::info!(transport = client.connection.transport, why = client.connection.why, url, "connected");
    Ok(client)
}

enum NoConnection {
    Failed(String),
    Refused(HelloRefusal),
}

impl<E: std::error::Error> From<E> for NoConnection {
    fn from(error: E) -> NoConnection {
        NoConnection::Failed(error.to_string())
    }
}

/// Hello and answer, and the descriptors that came with it.
fn say_hello(
    socket: &impl AsFd,
    wanted: Wanted,
    descriptors: usize,
    deadline: Instant,
) -> Result<(Answer, Vec<OwnedFd>), NoConnection> {
    // A server that does not want this client may answer and close before it was asked: its reason counts for more
    // than the failure to send.
    let sent = handshake::send_hello(socket, &Hello::ours(wanted).encode(), &[], deadline);
    let answer = match (handshake::receive_hello(socket, descriptors, deadline), sent) {
        (Ok(answer), _) => answer,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error.into()),
    };
    Ok((Answer::decode(&answer.bytes)?, answer.descriptors))
}

/// True if a connection does not leave this host, as far as its addresses tell.
fn is_here(stream: &TcpStream) -> std::io::Result<bool> {
    let (own, peer) = (stream.local_addr()?.ip(), stream.peer_addr()?.ip());
    Ok(peer.is_loopback() || peer == own)
}

fn welcome(answer: Answer) -> Result<Welcome, NoConnection> {
    match answer {
        Answer::Welcome(welcome) => Ok(welcome),
        Answer::Refused(refusal) => Err(NoConnection::Refused(refusal)),
        Answer::Offer(_) => Err(NoConnection::Failed("the server made an offer, unasked".into())),
    }
}

/// What is known of a connection before anything was read over it.
struct Promise {
    session: u64,
    region_words: usize,
    requests_in_flight: usize,
    /// Table id and incarnation, if the server named them in its hello.
    table: Option<(u64, u64)>,
    server_pid: Option<u32>,
    url: String,
    why: String,
    hello_ago: Duration,
}

/// Reads superblock and directory; what the superblock says must be what the hello said.
fn open(transport: AnyTransport, promise: Promise, options: &Options) -> Result<Client, Error> {
    let name = transport.name();
    let driver_options = DriverOptions {
        session: promise.session,
        requests_in_flight: promise.requests_in_flight,
        timeout_ns: u64::try_from(options.timeout.as_nanos()).unwrap_or(u64::MAX).min(TIMEOUT_MAX_NS),
        index_cache_bytes: options.index_cache_bytes,
        get_mode: options.get_mode,
        hello_ago_ns: u64::try_from(promise.hello_ago.as_nanos()).unwrap_or(u64::MAX),
    };
    let failed = |reason| Error::Connect { endpoint: promise.url.clone(), reason };
    // It is not up yet: what ends or is silent now was never a connection.
    let never_up = |error: Error| match error {
        Error::Broken(_) | Error::Timeout { .. } => failed(error.to_string()),
        error => error,
    };
    let mut driver = Driver::new(transport, promise.region_words, &driver_options).map_err(never_up)?;
    let found = (driver.view().table_id, driver.view().incarnation);
    if let Some(promised) = promise.table.filter(|&promised| promised != found) {
        return Err(failed(format!(
            "the region is table {:016x} of start {:016x}, the server said {:016x} and {:016x}: it was replaced \
             meanwhile; connect again",
            found.0, found.1, promised.0, promised.1
        )));
    }
    let page_bytes = driver.read_words_blocking(superblock::PAGE_BYTES, 1).map_err(never_up)?[0];
    let fork = ForkGuard::new().map_err(|error| failed(format!("no page to notice a fork by: {error}")))?;
    let connection = Connection {
        transport: name,
        url: promise.url,
        why: promise.why,
        server_pid: promise.server_pid,
        region_bytes: promise.region_words as u64 * 8,
        region_page_bytes: page_bytes,
        index_cache_bytes: driver.cache.bytes(),
        index_cache_pages: driver.cache.pages(),
        table_id: found.0,
        incarnation: found.1,
    };
    Ok(Client { driver, fork, connection, reconnect: None })
}

#[cfg(feature = "adversary")]
impl Client {
    /// A client over a simulated transport, so long after a hello that the server has answered.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn over(
        transport: Box<dyn Transport + Send>,
        session: u64,
        region_words: usize,
        hello_ago: Duration,
        options: &Options,
    ) -> Result<Client, Error> {
        let (url, why) = ("sim".to_owned(), "simulated".to_owned());
        let requests_in_flight = kv_common::limits::REQUESTS_IN_FLIGHT_MAX;
        let promise = Promise {
            session,
            region_words,
            requests_in_flight,
            table: None,
            server_pid: None,
            url,
            why,
            hello_ago,
        };
        open(AnyTransport::Sim(transport), promise, options)
    }
}
