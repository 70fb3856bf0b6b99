//! What the server is to do: values with their origin, from four layers.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the configuration, its defaults and how it is resolved |
//! | `sources.rs` | the layers: flags, environment, file; unknown names |
//! | `value.rs` | parsing of sizes, numbers and names |
//! | `print.rs` | `--print-config` |

mod print;
mod sources;
mod value;

use std::path::PathBuf;

use kv_common::endpoint::{Address, DEFAULT_PORT, EndpointError, check_socket_path, default_socket};
use kv_common::layout::SEGMENT_BYTES;
use kv_common::limits::{
    CLIENTS_MAX, REGION_MAX_BYTES, REGION_MIN_BYTES, VALUE_MAX_BYTES, VALUE_MAX_DEFAULT_BYTES, WORKERS_MAX,
};

pub use kv_common::transport::shm::mapping::PagePolicy;
pub use sources::{Origin, Sources};
pub use value::{format_size, parse_size};

use value::{choice, number_between};

/// Clients that may be connected at once unless told otherwise.
pub const MAX_CLIENTS_DEFAULT: usize = 1024;
/// Bytes of the region unless told otherwise.
pub const MEMORY_DEFAULT_BYTES: u64 = 1 << 30;

/// Every option that has a value, in the order in which it is printed.
pub const KEYS: [&str; 16] = [
    "memory",
    "max-value",
    "socket",
    "listen",
    "rdma",
    "rdma-device",
    "rdma-port",
    "rdma-gid",
    "workers",
    "hugepages",
    "expected-keys",
    "on-full",
    "allow-uid",
    "max-clients",
    "log-level",
    "log-format",
];

/// What the server is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of the region, a multiple of 2 MiB.
    pub memory_bytes: u64,
    /// Bytes of the largest value that is taken.
    pub value_max_bytes: usize,
    /// The Unix socket that clients connect to.
    pub socket: PathBuf,
    /// Where it listens for TCP connections, if anywhere.
    pub listen: Option<Address>,
    /// Whether it serves RDMA.
    pub rdma: RdmaChoice,
    /// The RDMA device, if not the first that can be used.
    pub rdma_device: Option<String>,
    /// The port of the device, if not the first that can be used.
    pub rdma_port: Option<u8>,
    /// The index of the port's GID, if not chosen by what reaches a client.
    pub rdma_gid: Option<u8>,
    /// Threads that serve requests.
    pub workers: usize,
    /// Which pages back the region.
    pub hugepages: PagePolicy,
    /// Keys that the index has room for from the start, if known; it grows beyond.
    pub expected_keys: Option<u64>,
    /// What becomes of a write for which there is no room.
    pub on_full: OnFull,
    /// Who may connect besides the server's own user and root.
    pub allow: Allow,
    /// Clients that may be connected at once.
    pub max_clients: usize,
    /// Least important log lines to write.
    pub log_level: LogLevel,
    /// Form of log lines.
    pub log_format: LogFormat,
}

/// Whether RDMA is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaChoice {
    /// If there is a device that can be used; the log says why not.
    Auto,
    /// No.
    Off,
    /// Or the server does not start.
    On,
}

/// What becomes of a write for which there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    /// It is refused.
    Reject,
    /// It is done, and keys that were not used for long are gone.
    Evict,
}

/// Who may connect besides the server's own user and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    /// Everybody who reaches the socket.
    Any,
    /// These users.
    Users(Vec<u32>),
}

impl Allow {
    /// True if the user `uid` may connect to a server that runs as `own_uid`.
    pub fn permits(&self, uid: u32, own_uid: u32) -> bool {
        match self {
            Allow::Any => true,
            Allow::Users(users) => uid == 0 || uid == own_uid || users.contains(&uid),
        }
    }
}

/// Least important log lines that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Why there is no configuration. The message names what was expected, what was found, and where.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value cannot be used.
    #[error("{origin}: {found:?} is not usable as {key}: {expected}")]
    BadValue {
        /// The option.
        key: &'static str,
        /// Where the value was written.
        origin: Origin,
        /// The value.
        found: String,
        /// What was expected, and the remedy.
        expected: String,
    },
    /// The file has a key that no option has.
    #[error("{path:?} has the unknown key {key:?}; {}", nearest_hint(.nearest.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The option that it resembles most, if it resembles one.
        nearest: Option<String>,
    },
    /// An environment variable resembles an option and is none.
    #[error(
        "the environment has {name}, which no option reads; {}, or unset it",
        nearest_hint(Some(.nearest))
    )]
    UnknownVariable {
        /// The variable.
        name: String,
        /// The variable that it resembles.
        nearest: String,
    },
    /// The file cannot be read.
    #[error("cannot read the configuration file {path:?}: {error}; check the path and its mode")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: String,
    },
    /// The file is no TOML.
    #[error("the configuration file {path:?} is no TOML: {error}")]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Where and what.
        error: String,
    },
}

fn nearest_hint(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("known keys are {}", KEYS.join(", ")),
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_bytes: MEMORY_DEFAULT_BYTES,
            value_max_bytes: VALUE_MAX_DEFAULT_BYTES,
            socket: default_socket(),
            listen: Some(Address { host: "127.0.0.1".to_owned(), port: DEFAULT_PORT }),
            rdma: RdmaChoice::Auto,
            rdma_device: None,
            rdma_port: None,
            rdma_gid: None,
            workers: workers_default(),
            hugepages: PagePolicy::Auto,
            expected_keys: None,
            on_full: OnFull::Reject,
            allow: Allow::Users(Vec::new()),
            max_clients: MAX_CLIENTS_DEFAULT,
            log_level: LogLevel::Info,
            log_format: LogFormat::Text,
        }
    }
}

fn workers_default() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 2).clamp(1, WORKERS_MAX)
}

impl Config {
    /// What `sources` say, checked.
    ///
    /// # Errors
    /// [`ConfigError::BadValue`] for the first value that cannot be used.
    pub fn resolve(sources: &Sources) -> Result<Config, ConfigError> {
        let default = Config::default();
        let config = Config {
            memory_bytes: sources.parse("memory", memory)?.unwrap_or(default.memory_bytes),
            value_max_bytes: sources.parse("max-value", max_value)?.unwrap_or(default.value_max_bytes),
            socket: sources.parse("socket", socket)?.unwrap_or(default.socket),
            listen: sources.parse("listen", listen)?.unwrap_or(default.listen),
            rdma: sources.parse("rdma", |text| choice(text, &RDMA_CHOICES))?.unwrap_or(default.rdma),
            rdma_device: sources.parse("rdma-device", rdma_device)?,
            rdma_port: sources
                .parse("rdma-port", |text| number_between(text, 1, u8::MAX.into()))?
                .map(|port| port as u8),
            rdma_gid: sources
                .parse("rdma-gid", |text| number_between(text, 0, u8::MAX.into()))?
                .map(|index| index as u8),
            workers: sources
                .parse("workers", |text| number_between(text, 1, WORKERS_MAX as u64))?
                .map_or(default.workers, |workers| workers as usize),
            hugepages: sources.parse("hugepages", hugepages)?.unwrap_or(default.hugepages),
            expected_keys: sources.parse("expected-keys", |text| number_between(text, 1, 1 << 40))?,
            on_full: sources.parse("on-full", |text| choice(text, &ON_FULL))?.unwrap_or(default.on_full),
            allow: sources.parse_list("allow-uid", allow)?.unwrap_or(default.allow),
            max_clients: sources
                .parse("max-clients", |text| number_between(text, 1, CLIENTS_MAX as u64))?
                .map_or(default.max_clients, |clients| clients as usize),
            log_level: sources.parse("log-level", log_level)?.unwrap_or(default.log_level),
            log_format: sources.parse("log-format", log_format)?.unwrap_or(default.log_format),
        };
        Ok(config)
    }
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    let limits = || format!("{} to {}", format_size(REGION_MIN_BYTES), format_size(REGION_MAX_BYTES));
    if bytes < REGION_MIN_BYTES {
        return Err(format!("too small; expected {}", limits()));
    }
    if bytes > REGION_MAX_BYTES {
        return Err(format!("too large; expected {}", limits()));
    }
    Ok(bytes.next_multiple_of(SEGMENT_BYTES))
}

fn max_value(text: &str) -> Result<usize, String> {
    let bytes = parse_size(text)?;
    if !(1..=VALUE_MAX_BYTES as u64).contains(&bytes) {
        return Err(format!("expected 1 byte to {}", format_size(VALUE_MAX_BYTES as u64)));
    }
    Ok(bytes as usize)
}

fn socket(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("expected the path of a Unix socket".to_owned());
    }
    let path = PathBuf::from(text);
    check_socket_path(&path).map_err(|error: EndpointError| error.to_string())?;
    Ok(path)
}

/// The value of `--listen` that turns TCP off.
const LISTEN_NONE: &str = "none";

fn listen(text: &str) -> Result<Option<Address>, String> {
    match text {
        LISTEN_NONE => Ok(None),
        text => Address::parse(text).map(Some).map_err(|error| format!("{error}, or none")),
    }
}

const RDMA_CHOICES: [(&str, RdmaChoice); 3] =
    [("auto", RdmaChoice::Auto), ("off", RdmaChoice::Off), ("on", RdmaChoice::On)];

const ON_FULL: [(&str, OnFull); 2] = [("reject", OnFull::Reject), ("evict", OnFull::Evict)];

/// The name of a choice, as it is written.
pub(crate) fn on_full_name(on_full: OnFull) -> &'static str {
    value::name_of(on_full, &ON_FULL)
}

fn rdma_device(text: &str) -> Result<String, String> {
    match text {
        "" => Err("expected the name of a device, as `rdma link` shows it".to_owned()),
        text => Ok(text.to_owned()),
    }
}

const HUGEPAGES: [(&str, PagePolicy); 3] =
    [("auto", PagePolicy::Auto), ("require", PagePolicy::Require), ("off", PagePolicy::Off)];

fn hugepages(text: &str) -> Result<PagePolicy, String> {
    choice(text, &HUGEPAGES)
}

fn allow(texts: &[String]) -> Result<Allow, (String, String)> {
    let mut users = Vec::new();
    for text in texts {
        match text.as_str() {
            "any" => return Ok(Allow::Any),
            text => match text.parse() {
                Ok(uid) => users.push(uid),
                Err(_) => return Err((text.to_owned(), "expected a user's number, or any".to_owned())),
            },
        }
    }
    users.sort_unstable();
    users.dedup();
    Ok(Allow::Users(users))
}

const LOG_LEVELS: [(&str, LogLevel); 5] = [
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

fn log_level(text: &str) -> Result<LogLevel, String> {
    choice(text, &LOG_LEVELS)
}

const LOG_FORMATS: [(&str, LogFormat); 2] = [("text", LogFormat::Text), ("json", LogFormat::Json)];

fn log_format(text: &str) -> Result<LogFormat, String> {
    choice(text, &LOG_FORMATS)
}

#[cfg(test)]
mod tests;
