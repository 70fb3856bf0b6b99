//! The command line of `raw`.

use std::path::PathBuf;

use clap::Args;

use super::plan::{Connection, Measure, Operation};
use crate::units::{parse_count, parse_size_bytes};

/// Options that say what is measured: the side that connects, or the only one, has them.
const WHAT: [&str; 8] =
    ["operation", "connection", "measure", "size", "depth", "queue_pairs", "iterations", "json"];

/// Arguments of `raw`.
#[derive(Debug, Args)]
pub struct RawArgs {
    /// Wait here for the other side, serve what it measures, and end. [default: both sides in this process, on one device]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "connect", conflicts_with_all = WHAT)]
    pub(crate) listen: Option<String>,
    /// Measure against the side that listens there.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) connect: Option<String>,
    /// What to measure. Without it: latency of READ, WRITE and SEND, and bandwidth of READ, on reliable connections.
    #[arg(long, short = 'o', ignore_case = true)]
    pub(crate) operation: Option<Operation>,
    /// Kind of the connection: reliable, unreliable, or datagrams. [default: rc]
    #[arg(long, short = 'c', ignore_case = true, requires = "operation")]
    pub(crate) connection: Option<Connection>,
    /// Latency or bandwidth. [default: both]
    #[arg(long, short = 'm', ignore_case = true, requires = "operation")]
    pub(crate) measure: Option<Measure>,
    /// Bytes of a message; several, with commas between them, are measured in turn.
    #[arg(long, short = 's', value_name = "SIZE", value_parser = parse_size_bytes, value_delimiter = ',',
          default_value = "64,128,1KiB,4KiB")]
    pub(crate) size: Vec<u64>,
    /// Requests in flight on each queue pair, for bandwidth.
    #[arg(long, short = 't', value_name = "COUNT", value_parser = parse_count, default_value = "128")]
    pub(crate) depth: u64,
    /// Queue pairs, for bandwidth.
    #[arg(long, short = 'q', value_name = "COUNT", value_parser = parse_count, default_value = "1")]
    pub(crate) queue_pairs: u64,
    /// Messages of each size, on each queue pair.
    #[arg(long, short = 'n', value_name = "COUNT", value_parser = parse_count, default_value = "1000")]
    pub(crate) iterations: u64,
    /// The RDMA device. [default: the first one]
    #[arg(long, short = 'd', value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Port of the device.
    #[arg(long, short = 'i', value_name = "NUMBER", default_value_t = 1)]
    pub(crate) port: u8,
    /// Index of the GID. [default: chosen, as the store does]
    #[arg(long, short = 'x', value_name = "INDEX")]
    pub(crate) gid: Option<u8>,
    /// Write the result as JSON to this file, or to standard output with "-", which then gets nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
