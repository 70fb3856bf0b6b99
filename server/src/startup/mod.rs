//! From a configuration to a running server, stage by stage.

mod rdma;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use kv_common::hello::{Offer, SocketFile, Welcome};
use kv_common::layout::{SEGMENT_BYTES, superblock};
use kv_common::limits::{GRACE_NS, KEY_MAX_BYTES, REQUESTS_IN_FLIGHT_MAX};
use kv_common::transport::shm::channel::ChannelLayout;
use kv_common::transport::shm::mapping::{CreateError, HUGEPAGE_BYTES, Pages, RegionMemory, create_region};
use kv_common::transport::shm::owner::{OwnerError, OwnerKeeper};
use kv_common::transport::shm::socket::{BindError, Listener};
use kv_common::transport::tcp;
use rustix::rand::{GetRandomFlags, getrandom};
use tracing::{info, warn};

use crate::accept::{Acceptor, Admission, Listeners};
use crate::clock::server_clock_ns;
use crate::config::{Allow, Config, OnFull, format_size, on_full_name};
use crate::descriptors::{TooFewDescriptors, make_room};
use crate::running::{Running, ThreadEnd};
use crate::shared::Shared;
use crate::table::{Table, TableConfig, TableError};
use crate::upkeep;
use crate::worker::Worker;

/// How often the progress of a long stage is logged.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It cannot listen on its socket.
    #[error("cannot listen: {0}")]
    Bind(#[from] BindError),
    /// It cannot listen for TCP connections.
    #[error("cannot listen: {0}")]
    BindTcp(#[from] tcp::socket::BindError),
    /// The region's memory cannot be had.
    #[error("no memory for the region: {0}")]
    Memory(#[from] CreateError),
    /// The region cannot hold the table that was asked for.
    #[error("cannot make the table: {0}")]
    Table(#[from] TableError),
    /// Clients could not notice its end.
    #[error("cannot mark the region: {0}")]
    Owner(#[from] OwnerError),
    /// RDMA was asked for and cannot be had.
    #[error("cannot serve RDMA: {reason}; --rdma off does without")]
    Rdma {
        /// Why, and the remedy.
        reason: String,
    },
    /// It may have too few descriptors.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The system refused something else.
    #[error("cannot {step}: {source}")]
    Os {
        /// What was tried.
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn os(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError::Os { step, source }
}

/// Starts a server. When this returns, clients can connect.
///
/// # Errors
/// [`StartError`]; nothing is left behind then.
pub fn start(config: Config) -> Result<Running, StartError> {
    let began = Instant::now();
    let clients_max = make_room(config.max_clients)?;
    // First what fails fast: somebody else may be there. Who connects before all is ready waits.
    let listeners = Listeners {
        unix: Listener::bind(&config.socket, socket_mode(&config.allow))?,
        tcp: config.listen.as_ref().map(tcp::socket::Listener::bind).transpose()?,
    };
    let listen_address = listeners.tcp.as_ref().map(tcp::socket::Listener::address);
    let memory = map_region(&config)?;
    let table = make_table(&config, &memory)?;
    let owner = OwnerKeeper::start(&memory.words, superblock::OWNER * 8)?;
    let shared = Arc::new(Shared::new(config.workers, clients_max, &table).map_err(os("make an eventfd"))?);
    let rdma = rdma::start(&config, listen_address, &shared, &table)?;
    log_block(&config, listen_address, clients_max, &memory, &table, began.elapsed());
    let admission = admission(&config, memory, &table, rdma.is_some())?;
    let (report, ended) = mpsc::channel();
    let running = Running::new(config, listen_address, Arc::clone(&shared), Arc::clone(&table), owner, ended);
    start_threads(running, listeners, admission, rdma.as_ref(), &report)
}

/// Who may connect must be able to open the socket; SO_PEERCRED decides the rest.
fn socket_mode(allow: &Allow) -> u32 {
    match allow {
        Allow::Users(users) if users.is_empty() => 0o600,
        _ => 0o666,
    }
}

fn map_region(config: &Config) -> Result<RegionMemory, StartError> {
    let began = Instant::now();
    info!(memory_bytes = config.memory_bytes, "mapping the region and making all its pages");
    let mut last = began;
    let memory = create_region(config.memory_bytes, config.hugepages, &mut |progress| {
        if last.elapsed() >= PROGRESS_INTERVAL && progress.done_bytes < progress.total_bytes {
            last = Instant::now();
            let percent = progress.done_bytes * 100 / progress.total_bytes;
            info!(percent, done_bytes = progress.done_bytes, "making pages");
        }
    })?;
    if let Some(shortfall) = &memory.shortfall {
        warn!("ordinary pages instead of hugepages, GETs are slower: {shortfall}");
    }
    info!(milliseconds = began.elapsed().as_millis() as u64, pages = %memory.pages, "region mapped and sealed");
    Ok(memory)
}

fn make_table(config: &Config, memory: &RegionMemory) -> Result<Arc<Table>, StartError> {
    let began = Instant::now();
    let mut random = [0u64; 3];
    fill_random(&mut random).map_err(os("get random numbers"))?;
    let [table_id, hash_seed, incarnation] = random;
    let table_config = TableConfig {
        workers: config.workers,
        expected_keys: config.expected_keys,
        grace_ns: GRACE_NS,
        value_max_bytes: config.value_max_bytes,
        page_bytes: page_bytes(memory.pages),
        table_id,
        hash_seed,
        incarnation,
        first_version: 1,
        clock_ns: server_clock_ns,
        evicts: config.on_full == OnFull::Evict,
    };
    let table = Table::create(memory.words.clone(), &table_config)?;
    info!(milliseconds = began.elapsed().as_millis() as u64, "table made");
    Ok(table)
}

fn fill_random(words: &mut [u64]) -> io::Result<()> {
    // The kernel gives up to 256 bytes whole once it is seeded.
    let bytes = kv_common::region::bytes_of_mut(words);
    let wanted = bytes.len();
    let got = getrandom(bytes, GetRandomFlags::empty())?;
    assert!(got == wanted, "getrandom(2) gives up to 256 bytes whole");
    Ok(())
}

fn page_bytes(pages: Pages) -> u64 {
    match pages {
        Pages::Huge => HUGEPAGE_BYTES,
        Pages::Ordinary { .. } => rustix::param::page_size() as u64,
    }
}

fn admission(
    config: &Config,
    memory: RegionMemory,
    table: &Table,
    has_rdma: bool,
) -> Result<Admission, StartError> {
    let channel = ChannelLayout::default();
    let region = table.region();
    let welcome = Welcome {
        session: 0,
        table_id: region.load(superblock::TABLE_ID),
        incarnation: region.load(superblock::INCARNATION),
        region_bytes: region.len_words() as u64 * 8,
        page_bytes: page_bytes(memory.pages),
        ring_bytes: channel.ring_bytes(),
        staging_bytes: channel.staging_bytes(),
        requests_in_flight: REQUESTS_IN_FLIGHT_MAX as u32,
        server_pid: std::process::id(),
    };
    let own_uid = rustix::process::geteuid().as_raw();
    let socket = SocketFile::at(&config.socket).map_err(os("look at the socket"))?;
    let offer = Offer { socket, has_rdma };
    Ok(Admission { welcome, offer, channel, region: memory.fd, allow: config.allow.clone(), own_uid })
}

fn start_threads(
    mut running: Running,
    listeners: Listeners,
    admission: Admission,
    rdma: Option<&rdma::Handle>,
    report: &mpsc::Sender<ThreadEnd>,
) -> Result<Running, StartError> {
    for index in 0..running.shared.mailboxes.len() {
        // Made on its thread, where it stays: it holds that thread's epoch.
        let (shared, table) = (Arc::clone(&running.shared), Arc::clone(&running.table));
        let rdma = rdma.cloned();
        let (made, was_made) = mpsc::channel();
        running.threads.push(spawn(format!("kv-worker-{index}"), report, move || {
            let worker = Worker::new(&shared, &table, index);
            match worker.and_then(|worker| rdma::serve(worker, rdma.as_ref(), index)) {
                Ok(worker) => {
                    let _ = made.send(Ok(()));
                    worker.run();
                }
                Err(error) => drop(made.send(Err(error))),
            }
        })?);
        let broken = |gone| io::Error::other(gone);
        was_made.recv().unwrap_or_else(|gone| Err(broken(gone))).map_err(os("start a worker"))?;
    }
    let acceptor = Acceptor::new(&running.shared, &running.table, listeners, admission)
        .and_then(|acceptor| rdma::accept(acceptor, rdma))
        .map_err(os("watch the sockets"))?;
    running.threads.push(spawn("kv-accept".to_owned(), report, move || acceptor.run())?);
    let (shared, table) = (Arc::clone(&running.shared), Arc::clone(&running.table));
    running.threads.push(spawn("kv-growth".to_owned(), report, move || upkeep::split(&shared, &table))?);
    let (shared, table) = (Arc::clone(&running.shared), Arc::clone(&running.table));
    running.threads.push(spawn("kv-space".to_owned(), report, move || upkeep::make_space(&shared, &table))?);
    Ok(running)
}

fn spawn(
    name: String,
    report: &mpsc::Sender<ThreadEnd>,
    body: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, StartError> {
    let end = ThreadEnd::reporter(name.clone(), report.clone());
    let body = move || {
        let _end = end;
        body();
    };
    thread::Builder::new().name(name).spawn(body).map_err(os("start a thread"))
}

/// What a person wants to see when a server has started.
fn log_block(
    config: &Config,
    listen_address: Option<SocketAddr>,
    clients_max: usize,
    memory: &RegionMemory,
    table: &Table,
    took: Duration,
) {
    let region_bytes = table.region().len_words() as u64 * 8;
    info!(version = env!("CARGO_PKG_VERSION"), pid = std::process::id(), "kv-server");
    info!(
        region_bytes,
        size = %format_size(region_bytes),
        segments = region_bytes / SEGMENT_BYTES,
        pages = %memory.pages,
        "region"
    );
    info!(
        index_segments = table.index_segments(),
        keys_before_growth = keys_planned(table),
        free_segments = table.free_segments(),
        "index"
    );
    let on_full = on_full_name(config.on_full);
    info!(on_full, "full");
    info!(socket = %config.socket.display(), workers = config.workers, clients_max, who = %who(&config.allow), "clients");
    log_tcp(listen_address);
    info!(key_max_bytes = KEY_MAX_BYTES, value_max_bytes = config.value_max_bytes, "limits");
    info!(milliseconds = took.as_millis() as u64, "started");
}

fn log_tcp(listen_address: Option<SocketAddr>) {
    match listen_address {
        None => info!("no tcp: --listen is none"),
        Some(address) if address.ip().is_loopback() => {
            info!(%address, who = "everybody on this host", "tcp");
        }
        Some(address) => {
            info!(%address, who = "everybody who reaches it", "tcp");
            warn!(
                %address,
                "other hosts may connect, and nobody is asked who they are: there is no authentication yet; let a \
                 firewall or a private network decide who reaches this address"
            );
        }
    }
}

/// Keys that the index holds before it begins to grow, at least.
fn keys_planned(table: &Table) -> u64 {
    table.index_segments() * table.keys_before_split()
}

fn who(allow: &Allow) -> String {
    let own_uid = rustix::process::geteuid().as_raw();
    match allow {
        Allow::Any => "everybody".to_owned(),
        Allow::Users(users) => {
            let mut users: Vec<u32> = users.iter().copied().chain([0, own_uid]).collect();
            users.sort_unstable();
            users.dedup();
            let users: Vec<String> = users.iter().map(u32::to_string).collect();
            format!("users {}", users.join(", "))
        }
    }
}
