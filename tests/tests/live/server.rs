//! Starting and ending servers.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

use kv_client::{Broken, Client, Options};
use kv_common::endpoint::Address;
use kv_server::config::{Config, OnFull, PagePolicy, parse_size};
use rustix::process::{Pid, Signal, kill_process};

use super::{procfs, programs, try_wait_for, wait_for};

/// What a test wants of its server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) memory: &'static str,
    pub(crate) max_value: &'static str,
    pub(crate) expected_keys: u64,
    pub(crate) workers: usize,
    /// Of a full server.
    pub(crate) on_full: OnFull,
}

impl Default for Needs {
    fn default() -> Needs {
        Needs {
            memory: "32MiB",
            max_value: "64MiB",
            expected_keys: 100_000,
            workers: 1,
            on_full: OnFull::Reject,
        }
    }
}

/// What carries a client's READs and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Shm,
    Tcp,
    /// RDMA, connected by what both sides tell each other over TCP.
    Verbs,
    /// RDMA, connected by rdma_cm.
    VerbsCm,
}

impl Transport {
    /// Its name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
            Transport::Verbs | Transport::VerbsCm => "verbs",
        }
    }

    /// True if each client takes megabytes of registered memory.
    pub(crate) fn is_rdma(self) -> bool {
        matches!(self, Transport::Verbs | Transport::VerbsCm)
    }

    /// What a client's connection breaks with when its server has ended.
    pub(crate) fn broken(self) -> Broken {
        match self {
            Transport::Shm => Broken::ServerGone,
            Transport::Tcp | Transport::Verbs | Transport::VerbsCm => Broken::Closed,
        }
    }
}

/// A server that runs, wherever. It ends when this is dropped.
pub(crate) struct Live {
    pub(crate) url: String,
    /// The quickest way to write to it.
    setup_url: String,
    /// Tests of a whole table look at one key in so many: at all, but by RDMA, where the device may be an emulated
    /// machine's and each look takes some hundred microseconds.
    pub(crate) one_in: usize,
    /// Locked by nobody: threads share this struct for its URL.
    _server: Mutex<Box<dyn Send>>,
}

/// Starts a server and makes it reachable over some transport.
pub(crate) type Start = fn(Needs) -> Live;

impl Live {
    pub(crate) fn connect(&self) -> Client {
        self.connect_with(&Options::default())
    }

    pub(crate) fn connect_with(&self, options: &Options) -> Client {
        // A loaded machine may keep an answer for longer than a user would want to wait.
        Client::connect_with(&self.url, &Options { timeout: super::PATIENCE, ..options.clone() }).unwrap()
    }

    /// A client for what a test needs and is not about: over the same transport, but shared memory in place of RDMA.
    pub(crate) fn connect_for_setup(&self) -> Client {
        let options = Options { timeout: super::PATIENCE, ..Options::default() };
        Client::connect_with(&self.setup_url, &options).unwrap()
    }

    /// What runs somewhere, and ends when it is dropped.
    fn new(site: Site, server: impl Send + 'static) -> Live {
        let (setup_url, one_in) = match site.transport {
            Transport::Verbs => (site.url_over(Transport::Shm), 8),
            transport => (site.url_over(transport), 1),
        };
        Live { url: site.url(), setup_url, one_in, _server: Mutex::new(Box::new((server, site))) }
    }
}

/// A server in this process, reached through shared memory.
pub(crate) fn shm_in_process(needs: Needs) -> Live {
    in_process(needs, Site::new())
}

/// A server in this process, reached by TCP.
pub(crate) fn tcp_in_process(needs: Needs) -> Live {
    in_process(needs, Site::over(Transport::Tcp))
}

fn in_process(needs: Needs, site: Site) -> Live {
    let running = kv_server::start(Config {
        memory_bytes: parse_size(needs.memory).unwrap(),
        value_max_bytes: parse_size(needs.max_value).unwrap() as usize,
        socket: site.socket(),
        listen: Some(site.listen.clone()),
        workers: needs.workers,
        hugepages: PagePolicy::Off,
        expected_keys: Some(needs.expected_keys),
        on_full: needs.on_full,
        ..Config::default()
    });
    Live::new(site, running.unwrap())
}

/// A `kv-server` process, reached through shared memory.
pub(crate) fn shm_process(needs: Needs) -> Live {
    process(needs, Site::new())
}

/// A `kv-server` process, reached by RDMA.
pub(crate) fn verbs_process(needs: Needs) -> Live {
    process(needs, Site::over(Transport::Verbs))
}

/// A `kv-server` process, reached by RDMA that rdma_cm connects.
pub(crate) fn verbs_cm_process(needs: Needs) -> Live {
    process(needs, Site::over(Transport::VerbsCm))
}

/// A `kv-server` process, reached by TCP.
pub(crate) fn tcp_process(needs: Needs) -> Live {
    process(needs, Site::over(Transport::Tcp))
}

fn process(needs: Needs, site: Site) -> Live {
    let server = site.serve_with(needs, &[]);
    Live::new(site, server)
}

/// A directory and an address of its own for a server.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) listen: Address,
    transport: Transport,
}

/// An address that nobody else uses: all numbers that begin with 127 are this host's, and this one is this process's,
/// with ports below those that the system gives away.
fn own_address(transport: Transport) -> Address {
    static NEXT_PORT: AtomicU16 = AtomicU16::new(10_000);
    let [a, b, c, _] = std::process::id().to_le_bytes();
    let host = match transport {
        // Only an address of the device's interface will do, and there is one for all.
        Transport::VerbsCm => {
            std::env::var("KV_RIG_ADDRESS").expect("KV_RIG_ADDRESS has to name the RDMA device's address")
        }
        _ => format!("127.{c}.{b}.{a}"),
    };
    Address { host, port: NEXT_PORT.fetch_add(1, Ordering::Relaxed) }
}

impl Site {
    /// A server that clients reach through shared memory.
    pub(crate) fn new() -> Site {
        Site::over(Transport::Shm)
    }

    /// A server that clients reach over this transport.
    pub(crate) fn over(transport: Transport) -> Site {
        Site { dir: tempfile::tempdir().unwrap(), listen: own_address(transport), transport }
    }

    /// A server that clients of other hosts reach, too, by this address of this one.
    pub(crate) fn of_all_hosts(address: &str) -> Site {
        let mut site = Site::over(Transport::Verbs);
        site.listen.host = address.to_owned();
        site
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("kv.sock")
    }

    pub(crate) fn url(&self) -> String {
        self.url_over(self.transport)
    }

    fn url_over(&self, transport: Transport) -> String {
        match transport {
            Transport::Shm => format!("kv+shm://{}", self.socket().display()),
            Transport::Tcp => format!("kv+tcp://{}", self.listen),
            Transport::Verbs => format!("kv+rdma://{}", self.listen),
            Transport::VerbsCm => format!("kv+rdma://{}?cm=rdma", self.listen),
        }
    }

    /// A client that waits `timeout` at most.
    pub(crate) fn connect(&self, timeout: std::time::Duration) -> Client {
        Client::connect_with(&self.url(), &Options { timeout, ..Options::default() }).unwrap()
    }

    /// A `kv-server` that is ready.
    pub(crate) fn serve(&self) -> Server {
        self.serve_with(Needs::default(), &[])
    }

    /// A `kv-server` that is ready.
    pub(crate) fn serve_with(&self, needs: Needs, more: &[&str]) -> Server {
        let mut command = Command::new(programs::kv_server());
        // Nothing of this process's environment.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KV_")) {
            command.env_remove(name);
        }
        let (keys, workers) = (needs.expected_keys.to_string(), needs.workers.to_string());
        command.args(["--memory", needs.memory, "--hugepages", "off", "--expected-keys", &keys]);
        if needs.on_full == OnFull::Evict {
            command.args(["--on-full", "evict"]);
        }
        command.args(["--max-value", needs.max_value, "--listen", &self.listen.to_string()]);
        command.args(["--workers", &workers, "--socket"]).arg(self.socket()).args(more);
        Server::start(command, self.dir.path().join("log"))
    }
}

/// A running `kv-server`; killed when dropped.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    fn start(mut command: Command, log: PathBuf) -> Server {
        let stderr = File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let server = Server { child, log };
        assert!(ready.starts_with("ready "), "no readiness line; log:\n{}", server.log());
        server
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Stops all threads of the process, and returns when they have stopped.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
        wait_for("the server is stopped", || {
            procfs::threads(self.pid()).iter().all(|thread| thread.state == 'T').then_some(())
        });
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the process as the kernel does when memory runs out, and waits for that.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the server ends", || self.child.try_wait().unwrap())
    }
}

/// What a server holds for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) descriptors: usize,
    pub(crate) channels: usize,
    pub(crate) sessions: u64,
}

impl Server {
    /// What it holds now, as far as `client` and the kernel know.
    pub(crate) fn footprint(&self, client: &mut Client) -> Footprint {
        let sessions = client.server_stat().unwrap().counters["sessions"];
        let (descriptors, channels) = (procfs::descriptors(self.pid()), procfs::channels(self.pid()));
        Footprint { descriptors, channels, sessions }
    }

    /// What it holds when `client` is the only one.
    pub(crate) fn footprint_of_one(&self, client: &mut Client) -> Footprint {
        wait_for("one session", || Some(self.footprint(client)).filter(|now| now.sessions == 1))
    }

    /// Waits until it holds no more than it did then. It may be a descriptor less: a session counts a moment before the
    /// server closes its own descriptor of the channel.
    pub(crate) fn wait_for_footprint(&self, then: Footprint, client: &mut Client) {
        let mut last = None;
        let look = || {
            let now = last.insert(self.footprint(client));
            let is_as_then = (now.channels, now.sessions) == (then.channels, then.sessions);
            (is_as_then && now.descriptors <= then.descriptors).then_some(())
        };
        if try_wait_for(look).is_none() {
            panic!("{last:?} now, {then:?} before");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
