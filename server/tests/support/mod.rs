//! A `kv-server` process, and peers that talk to it by hand.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kv_common::hello::{Answer, Descriptor, Hello, WELCOME_DESCRIPTORS, Wanted, Welcome};
use kv_common::region::ReadWords;
use kv_common::ring::PushError;
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::shm::channel::{ChannelLayout, ClientEnd};
use kv_common::transport::shm::doorbell::Doorbell;
use kv_common::transport::shm::mapping::{map_channel, map_region};
use kv_common::transport::shm::socket::connect;
use kv_common::wire::{Op, Reply, Request, Value};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

/// No wait in these tests is expected to take more than a moment; one that takes this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Says loudly that a test could not run here, and why; see `KV_TESTS_NOT_RUN` in the tests of shared memory.
pub(crate) fn not_run(test: &str, why: &str) {
    eprintln!("\n*** NOT RUN: {test}: {why} ***\n");
    let Some(path) = std::env::var_os("KV_TESTS_NOT_RUN") else { return };
    let mut list = File::options().create(true).append(true).open(path).expect("a file to append to");
    std::io::Write::write_all(&mut list, format!("{test}: {why}\n").as_bytes()).expect("it can be written");
}

/// A directory of its own, and a command that would serve in it.
pub(crate) struct Site {
    pub(crate) dir: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Site {
        Site { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("kv.sock")
    }

    /// `kv-server` with `args`, and nothing from this process's environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kv-server"));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KV_")) {
            command.env_remove(name);
        }
        command.args(args).stdin(Stdio::null());
        command
    }

    /// Runs `kv-server` to its end: exit code, standard output, standard error.
    pub(crate) fn run(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.command(args).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// The flags of a small server at this site, which listens where it likes.
    pub(crate) fn flags(&self) -> [String; 8] {
        let socket = self.socket().to_str().unwrap().to_owned();
        ["--memory", "16MiB", "--hugepages", "off", "--socket", &socket, "--listen", "127.0.0.1:0"]
            .map(str::to_owned)
    }

    /// A server that is ready.
    pub(crate) fn serve(&self, more: &[&str]) -> Server {
        let flags = self.flags();
        let own = if more.contains(&"--listen") { &flags[..6] } else { &flags };
        let args: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
        Server::start(self.command(&args), &self.path("log"))
    }
}

/// A running `kv-server`; killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) ready: String,
    log: PathBuf,
}

impl Server {
    pub(crate) fn start(command: Command, log: &Path) -> Server {
        Server::start_logging_to(File::create(log).unwrap(), command, log)
    }

    /// A server whose standard error is `stderr`; it has a log that can be read only if that is the file `log`.
    pub(crate) fn start_logging_to(stderr: impl Into<Stdio>, mut command: Command, log: &Path) -> Server {
        let child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut server = Server { child, ready: String::new(), log: log.to_owned() };
        let out = server.child.stdout.take().unwrap();
        let patience = Timespec::try_from(PATIENCE).unwrap();
        let said = poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&patience)).unwrap() > 0;
        assert!(said, "neither ready nor at its end; log:\n{}", server.log());
        BufReader::new(out).read_line(&mut server.ready).unwrap();
        assert!(server.ready.starts_with("ready "), "no readiness line; log:\n{}", server.log());
        server
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_else(|error| format!("(no log: {error})"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_for("the server ends", || self.child.try_wait().unwrap())
    }

    /// Waits until the log has `text`.
    pub(crate) fn wait_for_log(&self, text: &str) {
        wait_for(text, || self.log().contains(text).then_some(()));
    }

    /// Descriptors that the process has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Mappings of channels that the process has.
    pub(crate) fn channels(&self) -> usize {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        maps.lines().filter(|line| line.contains("kv-channel")).count()
    }

    /// Processor time that the process has used.
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        // Behind the command's name in parentheses, utime and stime are the fields 14 and 15 of proc(5).
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks again and again until `look` finds something.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = deadline();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Says hello and returns what the server answers.
pub(crate) fn knock(socket: &Path, hello: &[u8]) -> (UnixStream, Answer, Vec<OwnedFd>) {
    let stream = connect(socket, deadline()).unwrap();
    // A server that has refused already does not read.
    let _ = send_hello(&stream, hello, &[], deadline());
    let answer = receive_hello(&stream, WELCOME_DESCRIPTORS, deadline()).unwrap();
    (stream, Answer::decode(&answer.bytes).unwrap(), answer.descriptors)
}

/// A client that was welcomed.
pub(crate) struct Peer {
    pub(crate) welcome: Welcome,
    pub(crate) region: ReadWords,
    pub(crate) end: ClientEnd,
    pub(crate) bell: Doorbell,
    pub(crate) seq: u64,
}

impl Peer {
    pub(crate) fn connect(socket: &Path) -> Peer {
        let (stream, answer, descriptors) = knock(socket, &Hello::ours(Wanted::Shm).encode());
        let Answer::Welcome(welcome) = answer else { panic!("{answer:?}") };
        let channel = ChannelLayout::new(welcome.ring_bytes, welcome.staging_bytes).unwrap();
        let region =
            map_region(descriptors[Descriptor::Region as usize].as_fd(), welcome.region_bytes).unwrap();
        let memory =
            map_channel(descriptors[Descriptor::Channel as usize].as_fd(), channel.len_bytes()).unwrap();
        Peer { welcome, region, end: channel.client_end(&memory), bell: Doorbell::new(stream), seq: 0 }
    }

    /// Sends a request of this session; false if the ring is full. Returns its number.
    pub(crate) fn try_send(&mut self, op: Op, key: &[u8], value: &[u8]) -> Result<u64, PushError> {
        let (seq, session) = (self.seq + 1, self.welcome.session);
        let request = Request::new(seq, session, op, key, Value::Inline(value));
        self.end.requests.try_push(&request.parts(&request.header()))?;
        self.seq = seq;
        self.wake_server();
        Ok(seq)
    }

    pub(crate) fn wake_server(&self) {
        if self.end.requests.needs_wake() {
            // A server that is gone shows when its reply is waited for.
            let _ = self.bell.ring();
        }
    }

    /// The next reply message, or `None` if the server closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        let (deadline, mut message) = (deadline(), Vec::new());
        loop {
            if self.end.replies.try_pop(&mut message).unwrap().is_some() {
                return Some(message);
            }
            assert!(Instant::now() < deadline, "no reply");
            if !self.end.replies.prepare_sleep() {
                continue;
            }
            let rung = self.bell.wait(Duration::from_secs(1));
            self.end.replies.woke();
            if rung.is_err() {
                // What it said before it went.
                return self.end.replies.try_pop(&mut message).unwrap().map(|_| message);
            }
        }
    }

    /// Sends a request and waits for its reply.
    pub(crate) fn call(&mut self, op: Op, key: &[u8], value: &[u8]) -> Vec<u8> {
        let seq = self.try_send(op, key, value).unwrap();
        let reply = self.receive().expect("the server is there");
        assert_eq!(Reply::decode(&reply).unwrap().seq, seq);
        reply
    }

    /// Waits until the server has closed this connection.
    pub(crate) fn wait_for_end(&self) {
        wait_for("the server closes the connection", || self.bell.clear().err());
    }
}
