//! Connecting: from a URL to a client whose server was seen to serve a table.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use kv_common::endpoint::{self, Endpoint};
use kv_common::hello::{Answer, Descriptor, Hello, HelloRefusal, WELCOME_DESCRIPTORS, Wanted, Welcome};
use kv_common::layout::superblock;
use kv_common::limits::TIMEOUT_MAX_NS;
use kv_common::transport::shm::channel::ChannelLayout;
use kv_common::transport::shm::client::ShmTransport;
use kv_common::transport::shm::credentials::PeerCredentials;
use kv_common::transport::shm::doorbell::Doorbell;
use kv_common::transport::shm::{mapping, socket};
use kv_common::transport::{Transport, handshake};

use crate::driver::{Driver, DriverOptions};
use crate::error::Error;
use crate::fork::ForkGuard;
use crate::transport::AnyTransport;
use crate::{Client, Connection, Options};

pub(crate) fn connect(url: &str, options: &Options) -> Result<Client, Error> {
    let endpoint = Endpoint::parse(url)
        .map_err(|error| Error::Url { url: url.to_owned(), reason: error.to_string() })?;
    let Endpoint::Shm { socket } = &endpoint;
    let (welcome, transport) = connect_shm(socket, options).map_err(|why| match why {
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
        why: "the URL names a Unix socket".into(),
    };
    let client = open(AnyTransport::Shm(transport), promise, options)?;
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

/// Hello, answer, and the memory that came with it.
fn connect_shm(path: &Path, options: &Options) -> Result<(Welcome, ShmTransport), NoConnection> {
    let deadline = Instant::now() + options.timeout.min(Duration::from_nanos(TIMEOUT_MAX_NS));
    let stream = socket::connect(path, deadline)?;
    check_default_socket(path, &stream)?;
    let hello = Hello::ours(Wanted::Shm).encode();
    // A server that does not want this client may answer and close before it was asked: its reason counts for more
    // than the failure to send.
    let sent = handshake::send_hello(&stream, &hello, &[], deadline);
    let answer = match (handshake::receive_hello(&stream, WELCOME_DESCRIPTORS, deadline), sent) {
        (Ok(answer), _) => answer,
        (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error.into()),
    };
    let welcome = match Answer::decode(&answer.bytes) {
        Ok(Answer::Welcome(welcome)) => welcome,
        Ok(Answer::Refused(refusal)) => return Err(NoConnection::Refused(refusal)),
        Ok(Answer::Offer(_)) => return Err(NoConnection::Failed("the server made an offer, unasked".into())),
        Err(error) => return Err(error.into()),
    };
    let descriptors = answer.descriptors;
    if descriptors.len() != WELCOME_DESCRIPTORS {
        let found = descriptors.len();
        let reason = format!("the server sent {found} descriptors, {WELCOME_DESCRIPTORS} are needed");
        return Err(NoConnection::Failed(reason));
    }
    let region = descriptors[Descriptor::Region as usize].as_fd();
    let region = mapping::map_region(region, welcome.region_bytes)?;
    let layout = ChannelLayout::new(welcome.ring_bytes, welcome.staging_bytes)?;
    let channel = descriptors[Descriptor::Channel as usize].as_fd();
    let channel = mapping::map_channel(channel, layout.len_bytes())?;
    Ok((welcome, ShmTransport::new(region, layout.client_end(&channel), Doorbell::new(stream))))
}

/// The default socket may lie in a directory where anybody can put one: keys and values are for a server of this user,
/// or of root. Who names a socket is taken at their word.
fn check_default_socket(path: &Path, stream: &UnixStream) -> Result<(), NoConnection> {
    if path != endpoint::default_socket() {
        return Ok(());
    }
    let (own, found) = (rustix::process::geteuid().as_raw(), PeerCredentials::of(stream.as_fd())?.uid);
    if found == own || found == 0 {
        return Ok(());
    }
    let path = path.display();
    Err(NoConnection::Failed(format!(
        "the default socket {path} is served by user {found}, not by this user ({own}) or root; name the socket in the \
         URL if that is meant"
    )))
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
}

/// Reads superblock and directory; what the superblock says must be what the hello said.
fn open(transport: AnyTransport, promise: Promise, options: &Options) -> Result<Client, Error> {
    let name = transport.name();
    let driver_options = DriverOptions {
        session: promise.session,
        requests_in_flight: promise.requests_in_flight,
        timeout_ns: u64::try_from(options.timeout.as_nanos()).unwrap_or(u64::MAX).min(TIMEOUT_MAX_NS),
        index_cache_bytes: options.index_cache_bytes,
    };
    let mut driver = Driver::new(transport, promise.region_words, &driver_options)?;
    let found = (driver.view().table_id, driver.view().incarnation);
    let failed = |reason| Error::Connect { endpoint: promise.url.clone(), reason };
    if let Some(promised) = promise.table.filter(|&promised| promised != found) {
        return Err(failed(format!(
            "the region is table {:016x} of start {:016x}, the server said {:016x} and {:016x}: it was replaced \
             meanwhile; connect again",
            found.0, found.1, promised.0, promised.1
        )));
    }
    let page_bytes = driver.read_words_blocking(superblock::PAGE_BYTES, 1)?[0];
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
    Ok(Client { driver, fork, connection })
}

#[cfg(feature = "adversary")]
impl Client {
    /// A client over a simulated transport.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn over(
        transport: Box<dyn Transport + Send>,
        session: u64,
        region_words: usize,
        options: &Options,
    ) -> Result<Client, Error> {
        let (url, why) = ("sim".to_owned(), "simulated".to_owned());
        let requests_in_flight = kv_common::limits::REQUESTS_IN_FLIGHT_MAX;
        let promise =
            Promise { session, region_words, requests_in_flight, table: None, server_pid: None, url, why };
        open(AnyTransport::Sim(transport), promise, options)
    }
}
