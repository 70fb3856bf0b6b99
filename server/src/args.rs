//! The command line, as plain data: what was written, not yet what it means.

use clap::Parser;

/// The flags of `kv-server`. Each option is also an environment variable (`--max-clients`: `KV_MAX_CLIENTS`) and a key
/// of the configuration file (`max-clients`); a flag wins over the environment, the environment over the file.
#[derive(Clone, Debug, Default, Parser)]
#[command(
    name = "kv-server",
    version,
    about = "A key-value store whose GETs are reads of the server's memory, without its processor",
    after_help = "Each option is also an environment variable (--max-clients: KV_MAX_CLIENTS) and a key of the \
                  configuration file (max-clients = 100). A flag wins over the environment, the environment over the \
                  file. When the server is ready it prints one line to standard output: \
                  ready socket=PATH listen=ADDRESS memory_bytes=N pid=N. Logs go to standard error.\n\n\
                  Exit codes: 0 stopped by SIGTERM or SIGINT, 1 failed while running, 2 wrong options, 3 cannot start."
)]
pub struct Flags {
    /// Size of the region that holds index and values, as 64GiB, 512MiB or plain bytes [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Size of the largest value that is taken, up to 1GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub max_value: Option<String>,
    /// Unix socket that clients connect to [default: $XDG_RUNTIME_DIR/kv.sock, else /tmp/kv-UID.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<String>,
    /// Where clients of other hosts connect to, by TCP: HOST:PORT, or none. Whoever reaches it may read and write
    /// [default: 127.0.0.1:7410]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// RDMA for clients: auto (if there is a device), off, on (or the server does not start) [default: auto]
    #[arg(long, value_name = "CHOICE")]
    pub rdma: Option<String>,
    /// RDMA device, as `rdma link` shows it [default: the first that can be used]
    #[arg(long, value_name = "NAME")]
    pub rdma_device: Option<String>,
    /// Port of the RDMA device, from 1 [default: the first that can be used]
    #[arg(long, value_name = "N")]
    pub rdma_port: Option<String>,
    /// Index in the port's GID table [default: by the address that clients come by]
    #[arg(long, value_name = "N")]
    pub rdma_gid: Option<String>,
    /// Threads that serve requests [default: half of the processors]
    #[arg(long, value_name = "N")]
    pub workers: Option<String>,
    /// Pages of 2 MiB: auto (if there are enough), require, off [default: auto]
    #[arg(long, value_name = "MODE")]
    pub hugepages: Option<String>,
    /// Keys that the index has room for from the start; it grows by itself [default: some MiB of index]
    #[arg(long, value_name = "N")]
    pub expected_keys: Option<String>,
    /// What becomes of a write for which there is no room: reject (it is refused), evict (keys that were not used for long
    /// make room: a cache) [default: reject]
    #[arg(long, value_name = "CHOICE")]
    pub on_full: Option<String>,
    /// User that may connect besides the server's own and root: a number, or any; may be repeated
    #[arg(long, value_name = "UID")]
    pub allow_uid: Vec<String>,
    /// Clients that may be connected at once [default: 1024]
    #[arg(long, value_name = "N")]
    pub max_clients: Option<String>,
    /// Least important log lines to write: error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Form of log lines: text, json [default: text]
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<String>,
    /// Print the resulting configuration, with where each value comes from, and exit
    #[arg(long)]
    pub print_config: bool,
}

impl Flags {
    /// The values that were given, by key.
    pub(crate) fn values(&self) -> Vec<(&'static str, Vec<String>)> {
        let single = |key, value: &Option<String>| value.clone().map(|value| (key, vec![value]));
        let list = |key, values: &Vec<String>| (!values.is_empty()).then(|| (key, values.clone()));
        [
            single("memory", &self.memory),
            single("max-value", &self.max_value),
            single("socket", &self.socket),
            single("listen", &self.listen),
            single("rdma", &self.rdma),
            single("rdma-device", &self.rdma_device),
            single("rdma-port", &self.rdma_port),
            single("rdma-gid", &self.rdma_gid),
            single("workers", &self.workers),
            single("hugepages", &self.hugepages),
            single("expected-keys", &self.expected_keys),
            single("on-full", &self.on_full),
            list("allow-uid", &self.allow_uid),
            single("max-clients", &self.max_clients),
            single("log-level", &self.log_level),
            single("log-format", &self.log_format),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}
