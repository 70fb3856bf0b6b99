//! A server, and the `kv` command beside it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kv_client::Client;
use kv_common::endpoint::Address;
use kv_server::Running;
use kv_server::config::{Config, PagePolicy};

/// A server in this process, in a directory of its own.
pub(crate) struct Store {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) running: Option<Running>,
}

/// What became of a command.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl Ran {
    /// Standard output as text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    /// Standard output as a number in a line.
    pub(crate) fn number(&self) -> u64 {
        assert_eq!(self.code, Some(0), "{}", self.err);
        self.text().strip_suffix('\n').unwrap().parse().unwrap()
    }

    /// Asserts the exit code, and that standard error says `part`.
    #[track_caller]
    pub(crate) fn assert(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{}\n{}", String::from_utf8_lossy(&self.out), self.err);
        assert!(self.err.contains(part), "{part:?} is not in {:?}", self.err);
    }
}

/// What a server in `socket`'s directory is started with.
pub(crate) fn config(socket: PathBuf, memory_bytes: u64) -> Config {
    Config {
        memory_bytes,
        socket,
        workers: 1,
        hugepages: PagePolicy::Off,
        expected_keys: Some(10_000),
        // Large enough for pages and parts.
        value_max_bytes: 1 << 20,
        listen: Address::parse("127.0.0.1:0").ok(),
        rdma: kv_server::config::RdmaChoice::Off,
        ..Config::default()
    }
}

impl Store {
    pub(crate) fn new() -> Store {
        Store::with_memory(32 << 20)
    }

    pub(crate) fn with_memory(memory_bytes: u64) -> Store {
        let dir = tempfile::tempdir().unwrap();
        let running = kv_server::start(config(dir.path().join("kv.sock"), memory_bytes)).unwrap();
        Store { dir, running: Some(running) }
    }

    pub(crate) fn url(&self) -> String {
        format!("kv+shm://{}", self.dir.path().join("kv.sock").display())
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url()).unwrap()
    }

    /// Runs `kv` against this server.
    pub(crate) fn kv(&self, args: &[impl AsRef<OsStr>]) -> Ran {
        self.kv_with(args, b"")
    }

    /// Runs `kv` against this server with something on standard input.
    pub(crate) fn kv_with(&self, args: &[impl AsRef<OsStr>], input: &[u8]) -> Ran {
        run(kv().env("KV_URL", self.url()).args(args), input)
    }

    /// A directory with these files.
    pub(crate) fn files(&self, name: &str, files: &[(&OsStr, Vec<u8>)]) -> PathBuf {
        let root = self.dir.path().join(name);
        std::fs::create_dir(&root).unwrap();
        for (path, bytes) in files {
            write(&root.join(path), bytes);
        }
        root
    }
}

/// Writes a file and the directories above it.
pub(crate) fn write(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The `kv` command with nothing of this process's environment.
pub(crate) fn kv() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KV_")) {
        command.env_remove(name);
    }
    command
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command, input: &[u8]) -> Ran {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that does not read it may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Ran { code: output.status.code(), out: output.stdout, err: String::from_utf8(output.stderr).unwrap() }
}

/// Bytes that look like nothing in particular, and differ with `seed`.
pub(crate) fn bytes(seed: u64, len_bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(len_bytes).collect()
}
