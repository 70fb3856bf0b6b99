//! The command line as it is written; `plan` turns it into what is run.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use kv_client::GetMode;

use crate::oracle::UpdateMode;
use crate::raw::args::RawArgs;
use crate::units::{parse_count, parse_duration, parse_size_bytes};
use crate::workload::Distribution;
use crate::workload::mix::Workload;

/// Measures a key-value store with YCSB's workloads, and against the floor under it.
#[derive(Debug, Parser)]
#[command(
    name = "kv-bench",
    version,
    after_help = "Exit codes: 0 done; 1 a value was wrong or missing; 2 usage; 3 no connection; 4 refused, or a \
                  limit was missed."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Store the records that a workload works on.
    Load(LoadArgs),
    /// Run a workload on records that are stored.
    Run(RunArgs),
    /// Use a store with too little room as a cache, and hold its hit ratio against that of an exact LRU.
    Cache(CacheArgs),
    /// Run the same reads on the store, on a map in this process and on the floor, in turns, and print the ratios.
    Compare(CompareArgs),
    /// Measure the bare verbs of an RDMA device, as perftest does: latency and bandwidth of READ, WRITE and SEND.
    Raw(RawArgs),
}

/// Where the store is.
#[derive(Debug, Args)]
pub struct StoreArgs {
    /// The store: kv://host:port, kv+tcp://host:port, kv+shm:///path/of/socket, or the path of a socket; or a store in
    /// this process, filled before the run: mem:dashmap, or mem:null, which does nothing. [default: the server's
    /// default socket]
    #[arg(long, env = "KV_URL")]
    pub url: Option<String>,
    /// Bytes of the client's index cache, per thread.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "64MiB")]
    pub index_cache: u64,
    /// Longest wait for an operation.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    pub timeout: Duration,
    /// Who reads: one-sided, the client with READs of the server's memory; server, the server's CPU, asked by a message for
    /// each GET, as other stores do it.
    #[arg(long, value_enum, default_value_t = GetModeArg::OneSided)]
    pub get_mode: GetModeArg,
}

/// Who reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GetModeArg {
    /// The client.
    OneSided,
    /// The server.
    Server,
}

impl From<GetModeArg> for GetMode {
    fn from(mode: GetModeArg) -> GetMode {
        match mode {
            GetModeArg::OneSided => GetMode::OneSided,
            GetModeArg::Server => GetMode::Server,
        }
    }
}

/// What the records are.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("fields").multiple(true).args(["fieldcount", "fieldlength"]))]
pub struct RecordArgs {
    /// Records that are stored before the run.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1000")]
    pub recordcount: u64,
    /// Bytes of a value that is one field.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, conflicts_with = "fields")]
    pub value_size: Option<u64>,
    /// Fields of a record; a record is one value.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "10")]
    pub fieldcount: u64,
    /// Bytes of a field.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "100")]
    pub fieldlength: u64,
    /// Bytes of a key, 16 or more: digits are padded with zeros. Below 23 they are those of the record's number, which YCSB
    /// calls insertorder=ordered, and else of its hash. Without it, keys are as long as YCSB's.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub key_size: Option<u64>,
    /// All random numbers follow from it.
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
}

/// How hard the store is driven, and what is made of the result.
#[derive(Debug, Args)]
pub struct DriveArgs {
    /// Threads, each with a client of its own.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1")]
    pub threads: u64,
    /// Operations in flight per thread.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1")]
    pub depth: u64,
    /// Operations per second of all threads together; latencies are then reported from the intended start too.
    #[arg(long, value_name = "RATE", value_parser = parse_count)]
    pub target: Option<u64>,
    /// Write the result as JSON to this file, or to standard output with "-", which then gets nothing else.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `load`.
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The workload that the records are for: a, b, c, d or f. They all work on the same records.
    #[arg(long, ignore_case = true, hide_possible_values = true, value_name = "a|b|c|d|f")]
    pub(crate) workload: Option<Workload>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// Read every record back and check every byte.
    #[arg(long)]
    pub(crate) verify: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) records: RecordArgs,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// a: half reads, half updates. b: 95 % reads, 5 % updates. c: reads. d: 95 % reads of the latest records, 5 %
    /// inserts. f: half reads, half read-modify-writes. (e, scans, needs ordered keys and is refused.)
    #[arg(long, ignore_case = true, hide_possible_values = true, value_name = "a|b|c|d|f")]
    pub(crate) workload: Workload,
    /// Operations of all threads together.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, conflicts_with = "duration")]
    pub(crate) operationcount: Option<u64>,
    /// How long to run [default: 10s, without --operationcount].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// How long to run before the measurement begins. These operations are not counted.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    pub(crate) warmup: Duration,
    /// Fill the client's index cache before the warm-up.
    #[arg(long)]
    pub(crate) warm_index: bool,
    /// Over RDMA with one operation in flight: after so many GETs, time a bare READ of as many bytes on the same queue pair
    /// (not counted in the run's time), and print the ratio of the medians. 0 for none.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "4")]
    pub(crate) raw_every: u64,
    /// Reads of one multi_get; every read has the latency of its batch.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1")]
    pub(crate) batch: u64,
    /// What an update, and the write half of a read-modify-write, writes. field: one field of the record, as in YCSB.
    /// The store holds whole values, so the client then reads the record, changes the field and writes the whole
    /// record: an update costs a GET and a PUT. whole: the whole value, as most papers do; an update is one PUT.
    /// [default: field, or whole with --value-size]
    #[arg(long)]
    pub(crate) update_mode: Option<UpdateMode>,
    /// Popularity of the records. zipfian is YCSB's, over 10^10 items whatever the number of records; zipfian-n is
    /// over the records, which is more skewed. [default: latest for workload d, zipfian for the others]
    #[arg(long)]
    pub(crate) distribution: Option<Distribution>,
    /// Check every byte of every value read, and that its version is at least the newest one acknowledged before the
    /// read began and at most the newest one begun before it ended. Right only if nobody else writes. A key has one
    /// write in flight at a time then.
    #[arg(long)]
    pub(crate) verify: bool,
    /// With --verify: others write too, so check the bytes and not the versions.
    #[arg(long, requires = "verify")]
    pub(crate) other_writers: bool,
}

/// Arguments of `cache`.
#[derive(Debug, Args)]
pub struct CacheArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Records; more than the store has room for.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1M")]
    pub(crate) recordcount: u64,
    /// Bytes of a value, 8 or more.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "100")]
    pub(crate) value_size: u64,
    /// Bytes of the largest value: each record has its size, from --value-size up to this. [default: all the same]
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub(crate) value_size_max: Option<u64>,
    /// Bytes of a key, 16 or more. Without it, keys are as long as YCSB's.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes)]
    pub(crate) key_size: Option<u64>,
    /// Popularity of the records: zipfian, zipfian-n or uniform.
    #[arg(long, default_value = "zipfian")]
    pub(crate) distribution: Distribution,
    /// Operations that are measured: GETs, and a PUT after each that finds nothing.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "5M")]
    pub(crate) operationcount: u64,
    /// Operations before them.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "5M")]
    pub(crate) warmup: u64,
    /// End with exit code 4 if the hit ratio is more percentage points below that of the LRU.
    #[arg(long, value_name = "POINTS")]
    pub(crate) within: Option<f64>,
    /// All random numbers follow from it.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Write the result as JSON to this file, or to standard output with "-", which then gets nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// What the store is compared with, besides the floor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// `DashMap<Vec<u8>, Vec<u8>>` with xxh3 in this process, the value copied out.
    Dashmap,
}

/// Pages of the floor's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FloorPages {
    /// Huge pages as far as there are any.
    Huge,
    /// 4 KiB pages, to compare with a store that has no huge pages either.
    Ordinary,
}

/// A ratio that must be reached: `dashmap=1.0`, or `floor-serial=0.8`.
#[derive(Debug, Clone, PartialEq)]
pub struct Required {
    /// Name of the peer.
    pub peer: String,
    /// Whether it is meant for the serial slices.
    pub serial: bool,
    /// Least ratio.
    pub ratio: f64,
}

fn parse_required(text: &str) -> Result<Required, String> {
    const EXPECTED: &str = "expected a peer and a ratio, like dashmap=1.0 or floor-serial=0.8";
    let parts = text.split_once('=').and_then(|(peer, ratio)| Some((peer, ratio.parse::<f64>().ok()?)));
    match parts {
        Some((name, ratio)) if ratio.is_finite() => {
            let (peer, serial) = name.strip_suffix("-serial").map_or((name, false), |peer| (peer, true));
            match peer {
                "dashmap" | "floor" => Ok(Required { peer: peer.into(), serial, ratio }),
                _ => Err(EXPECTED.into()),
            }
        }
        _ => Err(EXPECTED.into()),
    }
}

/// Arguments of `compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// What to compare with, besides the floor.
    #[arg(long, default_value = "dashmap")]
    pub(crate) peer: Peer,
    /// Records; they are stored in all contenders first.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1000000")]
    pub(crate) recordcount: u64,
    /// Bytes of a key, 16 or more.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "24")]
    pub(crate) key_size: u64,
    /// Bytes of a value.
    #[arg(long, value_name = "SIZE", value_parser = parse_size_bytes, default_value = "64")]
    pub(crate) value_size: u64,
    /// Popularity of the records.
    #[arg(long, default_value = "zipfian")]
    pub(crate) distribution: Distribution,
    /// Keys of one multi_get of the store, against as many single reads of the others.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1")]
    pub(crate) batch: u64,
    /// Threads, each with a handle of every contender.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "1")]
    pub(crate) threads: u64,
    /// Rounds, at least 7.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "11")]
    pub(crate) rounds: u64,
    /// Reads of each contender in each round, per thread; then as many again, each of which needs the value of the
    /// one before (serial), so that the processor cannot overlap them.
    #[arg(long, value_name = "COUNT", value_parser = parse_count, default_value = "200k")]
    pub(crate) slice: u64,
    /// Measure PUT round trips too, beside the round trip of a cache line between two cores.
    #[arg(long)]
    pub(crate) puts: bool,
    /// The store holds the records already: load only the others.
    #[arg(long)]
    pub(crate) no_load: bool,
    /// Pages of the floor's memory.
    #[arg(long, default_value = "huge")]
    pub(crate) floor_pages: FloorPages,
    /// End with exit code 4 if the ratio is smaller; may be given several times. PEER is dashmap, floor,
    /// dashmap-serial or floor-serial.
    #[arg(long, value_name = "PEER=RATIO", value_parser = parse_required)]
    pub(crate) require: Vec<Required>,
    /// All random numbers follow from it.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,
    /// Write the result as JSON to this file, or to standard output with "-", which then gets nothing else.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ratios() {
        let required = |peer: &str, serial| Required { peer: peer.into(), serial, ratio: 1.5 };
        assert_eq!(parse_required("dashmap=1.5"), Ok(required("dashmap", false)));
        assert_eq!(parse_required("floor-serial=1.5"), Ok(required("floor", true)));
        for bad in
            ["redis=1", "dashmap", "dashmap=", "dashmap=x", "floor=inf", "=1", "serial=1", "redis-serial=1"]
        {
            assert!(parse_required(bad).is_err(), "{bad}");
        }
    }
}
