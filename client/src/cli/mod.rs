//! The `kv` command: arguments, and what each subcommand does.
//!
//! Exit codes are a contract: 0 done, 1 not found or differs, 2 usage, 3 no connection, 4 refused by the server.

mod check;
#[cfg(feature = "verbs")]
mod devices;
mod doctor;
mod duration;
mod files;
mod scan;
mod shell;
mod top;
mod writes;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use kv_client::{Client, Error, Options, RegionFileError, ServerStat};
use kv_common::endpoint::Endpoint;

/// Reads and writes a one-sided key-value store.
///
/// GETs read the server's memory and take no CPU of the server. Exit codes: 0 done, 1 not found or differs, 2 usage,
/// 3 no connection, 4 refused by the server.
#[derive(Parser)]
#[command(name = "kv", version, arg_required_else_help = true)]
struct Arguments {
    /// Where the server is: kv://host:port (by the best transport there is), kv+tcp://host:port,
    /// kv+shm:///path/of/socket, or the path of a socket [default: the server's default socket].
    #[arg(long, env = "KV_URL", global = true)]
    url: Option<String>,
    /// How long an operation may take, in milliseconds.
    #[arg(long, env = "KV_TIMEOUT_MS", global = true, default_value_t = 5000)]
    timeout_ms: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the value of KEY to standard output, exactly its bytes.
    Get {
        /// The key, 1 to 1024 bytes.
        key: OsString,
    },
    /// Store a value under KEY and print its version.
    Put(writes::PutArguments),
    /// Delete KEY.
    #[command(visible_alias = "delete")]
    Del(writes::DeleteArguments),
    /// Add a number to the counter KEY and print the sum. A counter is a value that is a decimal number of 64 bits with
    /// sign; an absent key counts as 0.
    Add(writes::AddArguments),
    /// Put bytes behind the value of KEY and print how many it has now. An absent key counts as an empty value.
    Append(writes::AppendArguments),
    /// Let KEY live for a time from now on, or without end, and print the new version.
    Touch(writes::TouchArguments),
    /// Print how long KEY will live, or `forever`; exit code 1 if it is not there.
    Ttl {
        /// The key.
        key: OsString,
    },
    /// Store VALUE under KEY if the key's version is VERSION, and print the new version: the same as `put --if-version`.
    Cas {
        /// The key.
        key: OsString,
        /// The version that `put`, `cas` or `exists` printed.
        version: u64,
        /// The value.
        value: OsString,
    },
    /// Exit with 0 if KEY is there, with 1 if not; print its version.
    Exists {
        /// The key.
        key: OsString,
    },
    /// Print all keys, one per line, in no order. A key that is there all the time is printed; while the index grows it may be
    /// printed twice, and keys that come or go meanwhile are printed or not.
    Scan(scan::ScanArguments),
    /// Delete all keys and print how many there were.
    Clear(scan::ClearArguments),
    /// Print what the server publishes about itself, read from its memory.
    Stat {
        /// As one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show rates, memory and index again and again, read from the server's memory: also while the server is stopped.
    Top(top::TopArguments),
    /// Verify every invariant of a table: the server's, read from its memory, or one in a file. Exit code 1 if something is
    /// wrong.
    Check(check::CheckArguments),
    /// Time a round trip to the server.
    Ping,
    /// Take commands from standard input over one connection: get, put, del, add, append, exists, check, ping.
    Shell,
    /// Store every file under DIR; the key is the path relative to DIR.
    Load(files::FilesArguments),
    /// Compare every file under DIR with the value of its key.
    Verify(files::FilesArguments),
    /// Show RDMA devices, ports and GIDs, and which GID would be used. Exit code 1 if none can be used.
    #[cfg(feature = "verbs")]
    Devices(devices::DevicesArguments),
    /// Check what a client needs on this host and of the server, each with the remedy. Exit code 1 if a check failed.
    Doctor(doctor::DoctorArguments),
}

/// How a command ended, if not with an error.
enum End {
    Done,
    NotFoundOrDiffers,
    Refused,
}

pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let failed = |error: &CliError| {
        eprintln!("kv: {error}");
        ExitCode::from(error.exit_code())
    };
    match run(&arguments) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::NotFoundOrDiffers) => ExitCode::from(1),
        Ok(End::Refused) => ExitCode::from(4),
        Err(error) => failed(&error),
    }
}

/// An error with the exit code that it ends in.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Client(#[from] Error),
    #[error("{what}: {error}")]
    Io { what: String, error: std::io::Error },
    #[error(transparent)]
    RegionFile(RegionFileError),
    #[cfg(feature = "verbs")]
    #[error("{0}")]
    Rdma(String),
}

impl From<RegionFileError> for CliError {
    fn from(error: RegionFileError) -> CliError {
        match error {
            RegionFileError::Client(error) => CliError::Client(error),
            error => CliError::RegionFile(error),
        }
    }
}

impl CliError {
    fn exit_code(&self) -> u8 {
        match self {
            CliError::Io { .. }
            | CliError::RegionFile(_)
            | CliError::Client(
                Error::KeyEmpty | Error::KeyTooLong { .. } | Error::ValueTooLarge { .. } | Error::Url { .. },
            ) => 2,
            CliError::Client(Error::Refused(_) | Error::NotAdmitted { .. }) => 4,
            CliError::Client(_) => 3,
            #[cfg(feature = "verbs")]
            CliError::Rdma(_) => 3,
        }
    }
}

fn run(arguments: &Arguments) -> Result<End, CliError> {
    let url = arguments.url.clone().unwrap_or_else(|| Endpoint::default_local().to_string());
    match &arguments.command {
        #[cfg(feature = "verbs")]
        Command::Devices(devices_arguments) => devices::run(devices_arguments),
        Command::Doctor(doctor_arguments) => {
            doctor::run(doctor_arguments, &url, Duration::from_millis(arguments.timeout_ms))
        }
        Command::Check(check_arguments) if check_arguments.file.is_some() => check::run_file(check_arguments),
        _ => run_connected(arguments, &url),
    }
}

/// The commands that need a server.
fn run_connected(arguments: &Arguments, url: &str) -> Result<End, CliError> {
    // One GET gains nothing from an index cache; a mirror pays from a directory's worth of files on.
    let index_cache_bytes = match arguments.command {
        Command::Verify(_) | Command::Shell => Options::default().index_cache_bytes,
        _ => 64 << 10,
    };
    let options = Options {
        timeout: Duration::from_millis(arguments.timeout_ms),
        index_cache_bytes,
        ..Options::default()
    };
    let mut client = Client::connect_with(url, &options)?;
    match &arguments.command {
        Command::Get { key } => get(&mut client, key.as_bytes()),
        Command::Put(put_arguments) => writes::put(&mut client, put_arguments),
        Command::Del(delete_arguments) => writes::delete(&mut client, delete_arguments),
        Command::Add(add_arguments) => writes::add(&mut client, add_arguments),
        Command::Append(append_arguments) => writes::append(&mut client, append_arguments),
        Command::Touch(touch_arguments) => writes::touch(&mut client, touch_arguments),
        Command::Ttl { key } => writes::ttl(&mut client, key.as_bytes()),
        Command::Cas { key, version, value } => {
            writes::compare_and_set(&mut client, key.as_bytes(), *version, value.as_bytes())
        }
        Command::Exists { key } => match client.get_with(key.as_bytes(), |_, version| version)? {
            Some(version) => print(format_args!("{version}")),
            None => Ok(End::NotFoundOrDiffers),
        },
        Command::Stat { json } => {
            let stat = client.server_stat()?;
            if *json { print_json(&client, &stat) } else { print_stat(&client, &stat) }
        }
        Command::Check(check_arguments) => check::run(&mut client, check_arguments),
        Command::Ping => {
            let round_trip = client.ping()?;
            let connection = client.connection();
            print(format_args!(
                "{:.1} us by {} ({})",
                round_trip.as_nanos() as f64 / 1e3,
                connection.transport,
                connection.why
            ))
        }
        Command::Scan(scan_arguments) => scan::scan(&mut client, scan_arguments),
        Command::Clear(clear_arguments) => scan::clear(&mut client, clear_arguments),
        Command::Top(top_arguments) => top::run(&mut client, top_arguments),
        Command::Shell => shell::run(&mut client),
        Command::Load(files_arguments) => files::load(&mut client, files_arguments),
        Command::Verify(files_arguments) => files::verify(&mut client, files_arguments),
        Command::Doctor(_) => unreachable!("it was run without a connection"),
        #[cfg(feature = "verbs")]
        Command::Devices(_) => unreachable!("it was run without a connection"),
    }
}

fn get(client: &mut Client, key: &[u8]) -> Result<End, CliError> {
    let Some(value) = client.get(key)? else { return Ok(End::NotFoundOrDiffers) };
    let mut out = std::io::stdout().lock();
    out.write_all(&value.bytes)
        .and_then(|()| out.flush())
        .map_err(|error| io("writing to standard output", error))?;
    Ok(End::Done)
}

fn print(line: std::fmt::Arguments) -> Result<End, CliError> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| io("writing to standard output", error))?;
    Ok(End::Done)
}

fn io(what: &str, error: std::io::Error) -> CliError {
    CliError::Io { what: what.to_owned(), error }
}

fn print_json(client: &Client, stat: &ServerStat) -> Result<End, CliError> {
    let connection = client.connection();
    let object = serde_json::json!({
        "schema": 1,
        "url": connection.url,
        "transport": connection.transport,
        "why": connection.why,
        "server": stat,
    });
    print(format_args!("{object:#}"))
}

fn print_stat(client: &Client, stat: &ServerStat) -> Result<End, CliError> {
    let connection = client.connection();
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let mut rows = vec![
        ("url".to_owned(), connection.url.clone()),
        ("transport".to_owned(), format!("{} ({})", connection.transport, connection.why)),
        ("server pid".to_owned(), stat.server_pid.to_string()),
        ("table".to_owned(), stat.table_id.clone()),
        ("incarnation".to_owned(), stat.incarnation.clone()),
        (
            "region".to_owned(),
            format!("{} in pages of {} KiB", mib(stat.region_bytes), stat.page_bytes >> 10),
        ),
        ("workers".to_owned(), stat.workers.to_string()),
        (
            "segments of 2 MiB".to_owned(),
            format!(
                "{} index, {} blocks, {} system, {} free",
                stat.segments.index, stat.segments.blocks, stat.segments.system, stat.segments.free
            ),
        ),
    ];
    if stat.evicts {
        rows.push(("evicted, last used".to_owned(), stat.evicted_ages_text()));
    }
    for (name, value) in &stat.counters {
        let is_bytes = name.ends_with("_bytes");
        rows.push((name.replace('_', " "), if is_bytes { mib(*value) } else { value.to_string() }));
    }
    for (name, value) in rows {
        print(format_args!("{name:<28} {value}"))?;
    }
    Ok(End::Done)
}

/// A progress bar on a terminal, nothing elsewhere.
fn progress(len: u64) -> indicatif::ProgressBar {
    if !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:40} {pos}/{len} files {per_sec} {msg}")
        .expect("the template is valid");
    indicatif::ProgressBar::new(len).with_style(style)
}
