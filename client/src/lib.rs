//! Client library of a one-sided key-value store: GETs read the server's memory, and no CPU of the server is involved;
//! writes are requests to the server.
//!
//! ```no_run
//! # fn main() -> Result<(), kv_client::Error> {
//! let mut client = kv_client::Client::connect("kv+shm:///tmp/kv.sock")?;
//! let version = client.put(b"key", b"value")?;
//! let value = client.get(b"key")?.expect("it was just put");
//! assert_eq!((value.bytes.as_slice(), value.version), (&b"value"[..], version));
//! # Ok(())
//! # }
//! ```
//!
//! # Consistency
//! Operations are linearizable: each takes effect at one moment between its call and its return. A GET returns a value
//! that the key had at such a moment, whole, or says that the key was absent at one. A client reads its own writes,
//! also those it has submitted and not yet waited for.
//!
//! # Errors
//! No operation waits longer than [`Options::timeout`] for anything; calls that make many ([`Client::multi_get`],
//! [`Client::warm_up`]) may wait that long for each. A value above 320 KiB takes as long as it takes, if it comes further within
//! each such time, and what was submitted behind its PUT waits for it. A write that was sent and not answered ends as
//! [`Error::OutcomeUnknown`]: it may have happened. Every other error means that nothing was changed.
//!
//! When a connection breaks, the calls under way fail with [`Error::Broken`]; later ones connect again, with pauses that
//! grow while that fails ([`Options::reconnect`]). A server that was restarted has another, empty table.
//!
//! # Threads and processes
//! The library starts no threads. A [`Client`] is used by one thread at a time; give each thread its own. After a fork
//! the child must connect anew: there every call returns [`Error::UsedAfterFork`].

mod cache;
mod check;
mod clock;
mod connect;
mod driver;
mod error;
mod fetch;
mod fork;
mod get;
mod multi;
mod op;
mod reconnect;
mod registered;
mod scan;
mod stat;
mod stats;
mod transport;
mod writes;

use std::borrow::Cow;
use std::time::Duration;

pub use check::{Checked, RegionFileError, check_file};
pub use driver::WarmUp;
pub use error::Error;
pub use kv_common::check::{
    CheckFinding, CheckProgress, CheckReport, FindingDescription, SlotFault, Unjudged,
};
pub use kv_common::hello::HelloRefusal;
pub use kv_common::limits::{CLIENT_OPERATIONS_MAX, KEY_MAX_BYTES, VALUE_MAX_BYTES};
pub use kv_common::transport::Broken;
pub use kv_common::wire::Refusal;
pub use op::{
    Appended, Completion, Condition, Conditional, Count, Outcome, PutOptions, TTL_MAX, Ticket, TimeToLive,
    Value, Version,
};
pub use registered::{NotSubmitted, Registered, ValueRef};
pub use scan::{Cursor, Page};
pub use stat::ServerStat;
pub use stats::Stats;

use driver::{Driver, GetNow, InScratch};
use fork::ForkGuard;
use reconnect::Reconnect;
use transport::AnyTransport;

/// How a client behaves; the default suits most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long an operation, and the connecting, may take; of a value above 320 KiB, how long it may come no further.
    /// Default: 5 s.
    pub timeout: Duration,
    /// Bytes that the index cache may have, rounded down to a power of two; it never takes more than the index has,
    /// which is about 20 bytes per key. A GET whose place is cached takes one READ, others two. Default: 64 MiB.
    pub index_cache_bytes: usize,
    /// Who reads. Default: this client, with READs.
    pub get_mode: GetMode,
    /// Whether calls after a lost connection connect again. Default: true. Such a call may take [`Options::timeout`] twice.
    pub reconnect: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout: Duration::from_nanos(kv_common::limits::OPERATION_TIMEOUT_NS),
            index_cache_bytes: 64 << 20,
            get_mode: GetMode::OneSided,
            reconnect: true,
        }
    }
}

/// Who reads the value that a GET asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GetMode {
    /// The client, with READs of the server's memory, which take no processor of the server's. What these do not settle, the
    /// server answers.
    #[default]
    OneSided,
    /// The server, for every GET: as any other store does, to compare with.
    Server,
}

/// A connection to one server.
pub struct Client {
    driver: Driver<AnyTransport>,
    fork: ForkGuard,
    connection: Connection,
    /// None if a lost connection stays lost.
    reconnect: Option<Reconnect>,
}

// A client may be handed to another thread. (The simulated fabric of the tests stays on one.)
#[cfg(not(feature = "adversary"))]
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Client>();
};

/// What a client is connected to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `shm`: loads from a mapping of the server's region. `verbs`: READs by the device. `tcp`: READs that the server
    /// answers.
    pub transport: &'static str,
    /// The server's endpoint as a URL.
    pub url: String,
    /// Why this transport was chosen.
    pub why: String,
    /// The server's process, if it is on this host.
    pub server_pid: Option<u32>,
    /// Bytes of the server's region.
    pub region_bytes: u64,
    /// Bytes of the pages that back the region.
    pub region_page_bytes: u64,
    /// Bytes of the index cache.
    pub index_cache_bytes: u64,
    /// Which pages hold the index cache.
    pub index_cache_pages: &'static str,
    /// The table's random id.
    pub table_id: u64,
    /// Random per start of the server.
    pub incarnation: u64,
}

/// Bytes of the largest [`Client::probe`]: what one READ of a warm-up brings, too.
pub const PROBE_MAX_BYTES: usize = 64 << 10;

impl Client {
    /// Connects to the server that `url` names: `kv://host[:port]` by the best transport that both sides have;
    /// `kv+rdma://host[:port][?device=..&port=..&gid=..]` by RDMA and by nothing else; `kv+tcp://host[:port]` by TCP and by
    /// nothing else; `kv+shm:///path/of/socket`, or the path of a socket, through shared memory and by nothing else.
    ///
    /// # Errors
    /// [`Error::Url`] if the URL names nothing, [`Error::Connect`] if there is no server or it is silent,
    /// [`Error::WithoutRdma`], [`Error::NotAdmitted`] if it does not take this client (not permitted, too many clients,
    /// another protocol version), [`Error::Identity`] if what it serves is
    /// no table that this library reads.
    pub fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_with(url, &Options::default())
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_with(url: &str, options: &Options) -> Result<Client, Error> {
        connect::connect(url, options)
    }

    /// The transport: `shm`, `verbs` or `tcp`. [`Client::connection`] says why.
    pub fn transport(&self) -> &'static str {
        self.connection.transport
    }

    /// What this client is connected to.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Bytes of the largest value that the server takes, as it was when this client connected.
    pub fn value_max_bytes(&self) -> usize {
        self.driver.view().value_max_bytes
    }

    /// The value of `key`, or `None` if it is absent.
    ///
    /// # Errors
    /// [`Error::KeyEmpty`], [`Error::KeyTooLong`], [`Error::Timeout`], [`Error::Broken`], [`Error::TooManyInFlight`] (as
    /// every call, if that many were submitted and not taken).
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Value>, Error> {
        self.get_as(key, |bytes, version| Value { bytes: bytes.into_owned(), version })
    }

    /// Replaces the contents of `buffer` by the value of `key`; leaves it empty and returns `None` if the key is
    /// absent. Saves the allocation of [`Client::get`]; [`Client::get_into`] saves the copy as well.
    ///
    /// # Errors
    /// As [`Client::get`]; `buffer` is empty then.
    #[inline]
    pub fn get_to_vec(&mut self, key: &[u8], buffer: &mut Vec<u8>) -> Result<Option<Version>, Error> {
        buffer.clear();
        self.get_as(key, |bytes, version| {
            match bytes {
                Cow::Borrowed(bytes) => buffer.extend_from_slice(bytes),
                Cow::Owned(bytes) => *buffer = bytes,
            }
            version
        })
    }

    /// Lets `visit` look at the value of `key` and its version, without a copy into memory of the caller. `visit` sees
    /// private bytes that were proved to be the value; it is not called if the key is absent.
    ///
    /// # Errors
    /// As [`Client::get`].
    #[inline]
    pub fn get_with<R>(
        &mut self,
        key: &[u8],
        visit: impl FnOnce(&[u8], Version) -> R,
    ) -> Result<Option<R>, Error> {
        self.get_as(key, |bytes, version| visit(&bytes, version))
    }

    /// The value as bytes of the library's own, or given away.
    #[inline]
    fn get_as<R>(
        &mut self,
        key: &[u8],
        visit: impl FnOnce(Cow<'_, [u8]>, Version) -> R,
    ) -> Result<Option<R>, Error> {
        self.check_key(key)?;
        match self.driver.get_now(key, &mut InScratch)? {
            GetNow::Found { version, value } => {
                Ok(Some(visit(Cow::Borrowed(self.driver.found_bytes(value)), version)))
            }
            GetNow::FoundLarge { version } => Ok(Some(self.visit_large(version, visit))),
            GetNow::Absent => Ok(None),
            GetNow::Ask => self
                .live()
                .and_then(|driver| driver.submit_ask(key))
                .and_then(|ticket| self.get_submitted(ticket, visit)),
            GetNow::Submit => self
                .live()
                .and_then(|driver| driver.submit_get(key))
                .and_then(|ticket| self.get_submitted(ticket, visit)),
        }
    }

    #[cold]
    fn visit_large<R>(&mut self, version: Version, visit: impl FnOnce(Cow<'_, [u8]>, Version) -> R) -> R {
        visit(Cow::Owned(self.driver.take_large()), version)
    }

    #[cold]
    fn get_submitted<R>(
        &mut self,
        ticket: Ticket,
        visit: impl FnOnce(Cow<'_, [u8]>, Version) -> R,
    ) -> Result<Option<R>, Error> {
        let Outcome::Get(result) = self.driver.wait_for(ticket) else { unreachable!("a GET ends as a GET") };
        Ok(result?.map(|value| visit(Cow::Owned(value.bytes), value.version)))
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn exists(&mut self, key: &[u8]) -> Result<bool, Error> {
        Ok(self.get_with(key, |_, _| ())?.is_some())
    }

    /// Asks the server for an empty answer and returns how long that took.
    ///
    /// # Errors
    /// [`Error::Timeout`], [`Error::Broken`].
    pub fn ping(&mut self) -> Result<Duration, Error> {
        self.check_fork()?;
        let started = std::time::Instant::now();
        let ticket = self.live()?.submit_ping()?;
        let Outcome::Ping(result) = self.driver.wait_for(ticket) else {
            unreachable!("a ping ends as a ping")
        };
        result.map(|()| started.elapsed())
    }

    /// Starts a GET and returns at once. Its completion is taken by [`Client::poll`] or [`Client::wait`]. A GET waits
    /// for writes to its key that this client submitted before. Over a network its READ may leave only with the next call
    /// that takes completions, if other operations are in flight.
    ///
    /// # Errors
    /// [`Error::KeyEmpty`], [`Error::KeyTooLong`], [`Error::TooManyInFlight`], [`Error::Broken`].
    pub fn submit_get(&mut self, key: &[u8]) -> Result<Ticket, Error> {
        self.check_key(key)?;
        self.live()?.submit_get(key)
    }

    /// Works without waiting, and takes a completion if one is there. Every submitted operation completes once.
    ///
    /// # Errors
    /// [`Error::UsedAfterFork`].
    pub fn poll(&mut self) -> Result<Option<Completion>, Error> {
        self.check_fork()?;
        self.driver.turn();
        Ok(self.driver.take_completion())
    }

    /// Waits for a completion; `None` if nothing is in flight.
    ///
    /// # Errors
    /// [`Error::UsedAfterFork`].
    pub fn wait(&mut self) -> Result<Option<Completion>, Error> {
        self.check_fork()?;
        Ok(self.driver.wait_any())
    }

    /// Submitted operations whose completions have not been taken.
    pub fn pending(&self) -> usize {
        self.driver.pending()
    }

    /// Fills the index cache from the server's index by large READs, so that GETs take one READ from the start.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Timeout`].
    pub fn warm_up(&mut self) -> Result<WarmUp, Error> {
        self.check_fork()?;
        self.live()?.warm_up()
    }

    /// What this client counted.
    pub fn stats(&self) -> Stats {
        self.driver.stats
    }

    /// What the server publishes about itself, read one-sidedly: it answers also while the server is stopped.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::Timeout`], [`Error::Identity`].
    pub fn server_stat(&mut self) -> Result<ServerStat, Error> {
        self.check_fork()?;
        stat::read(self.live()?)
    }

    /// Times one READ of the first `bytes` bytes of the server's region, rounded up to words and at most
    /// [`PROBE_MAX_BYTES`]: what the way to the server costs, without the table.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::UsedAfterFork`].
    pub fn probe(&mut self, bytes: usize) -> Result<Duration, Error> {
        self.check_fork()?;
        let len_words = bytes.clamp(1, PROBE_MAX_BYTES).div_ceil(8);
        let started = std::time::Instant::now();
        self.live()?.read_words_blocking(0, len_words)?;
        Ok(started.elapsed())
    }

    /// One bare READ, over RDMA: `bytes` bytes, rounded up to words and at most [`PROBE_MAX_BYTES`], from byte `at_byte` of the
    /// server's region, rounded down to a word and taken modulo where such a READ can begin. It goes over the queue pair of
    /// the GETs, is waited for by polling, and its bytes are dropped: the floor under a GET, to be timed by the caller. It is
    /// in no counter. False, and nothing was done, over other transports, or while READs of operations are in flight.
    ///
    /// # Errors
    /// [`Error::Broken`], [`Error::UsedAfterFork`].
    pub fn raw_read(&mut self, at_byte: u64, bytes: usize) -> Result<bool, Error> {
        self.check_fork()?;
        let len_words = bytes.clamp(1, PROBE_MAX_BYTES).div_ceil(8);
        self.live()?.raw_read((at_byte / 8) as usize, len_words)
    }

    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        self.check_fork()?;
        if key.is_empty() {
            return Err(Error::KeyEmpty);
        }
        if key.len() > KEY_MAX_BYTES {
            return Err(Error::KeyTooLong { found_bytes: key.len() });
        }
        Ok(())
    }

    #[inline]
    fn check_fork(&self) -> Result<(), Error> {
        if self.fork.is_child() { Err(Error::UsedAfterFork) } else { Ok(()) }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("connection", &self.connection).field("stats", &self.stats()).finish()
    }
}
