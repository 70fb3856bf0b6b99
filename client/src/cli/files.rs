//! `kv load` and `kv verify`: a directory's files as keys and values.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use kv_client::{Client, Completion, Error, KEY_MAX_BYTES, Outcome, Ticket};

use super::{CliError, End, io, print, progress};

/// PUTs under way at once, and bytes of their values, if that is more than one value.
const DEPTH: usize = 32;
const DEPTH_BYTES: u64 = 64 << 20;

#[derive(Args)]
pub(super) struct FilesArguments {
    /// The directory. Symbolic links are not followed.
    dir: PathBuf,
    /// Leave out files that are larger than a value may be, or whose relative path is longer than a key may be,
    /// without counting that as a failure.
    #[arg(long)]
    skip_too_large: bool,
    /// Name each file that differs or was not stored, not only the first 10.
    #[arg(long)]
    all: bool,
}

/// A regular file and its key.
struct File {
    path: PathBuf,
    key: Vec<u8>,
    bytes: u64,
}

impl File {
    fn fits(&self, client: &Client) -> bool {
        self.key.len() <= KEY_MAX_BYTES && self.bytes <= client.value_max_bytes() as u64
    }
}

/// Counts, and names the first of what went wrong.
struct Tally<'a> {
    arguments: &'a FilesArguments,
    verb: &'static str,
    done: u64,
    bytes: u64,
    too_large: u64,
    failed: u64,
    is_refused: bool,
}

impl<'a> Tally<'a> {
    fn new(arguments: &'a FilesArguments, verb: &'static str) -> Tally<'a> {
        Tally { arguments, verb, done: 0, bytes: 0, too_large: 0, failed: 0, is_refused: false }
    }

    fn name(&self, path: &Path, what: &str) {
        let named = self.failed + if self.arguments.skip_too_large { 0 } else { self.too_large };
        if self.arguments.all || named <= 10 {
            eprintln!("kv: {}: {what}", path.display());
        }
    }

    fn too_large(&mut self, file: &File, client: &Client) {
        self.too_large += 1;
        if !self.arguments.skip_too_large {
            let (key_bytes, bytes, most) = (file.key.len(), file.bytes, client.value_max_bytes());
            self.name(
                &file.path,
                &format!(
                    "key of {key_bytes} bytes (at most {KEY_MAX_BYTES}), value of {bytes} (at most {most}); \
                     --skip-too-large leaves such files out"
                ),
            );
        }
    }

    fn failed(&mut self, path: &Path, what: &str) {
        self.failed += 1;
        self.name(path, what);
    }

    fn end(&self, started: Instant) -> Result<End, CliError> {
        let seconds = started.elapsed().as_secs_f64();
        let mib = self.bytes as f64 / f64::from(1 << 20);
        let rate = mib / seconds.max(1e-9);
        print(format_args!(
            "{} files {}, {mib:.1} MiB, in {seconds:.2} s ({rate:.0} MiB/s); {} failed, {} too large",
            self.done, self.verb, self.failed, self.too_large
        ))?;
        if self.is_refused || (self.too_large > 0 && !self.arguments.skip_too_large) {
            return Ok(End::Refused);
        }
        Ok(if self.failed > 0 { End::NotFoundOrDiffers } else { End::Done })
    }
}

pub(super) fn load(client: &mut Client, arguments: &FilesArguments) -> Result<End, CliError> {
    let files = list(&arguments.dir)?;
    let (bar, started) = (progress(files.len() as u64), Instant::now());
    let mut tally = Tally::new(arguments, "stored");
    let mut in_flight: HashMap<Ticket, (&Path, u64)> = HashMap::new();
    for file in &files {
        bar.inc(1);
        if !file.fits(client) {
            tally.too_large(file, client);
            continue;
        }
        let is_deep = |in_flight: &HashMap<Ticket, (&Path, u64)>| {
            let bytes: u64 = in_flight.values().map(|&(_, bytes)| bytes).sum();
            in_flight.len() >= DEPTH || (bytes + file.bytes > DEPTH_BYTES && !in_flight.is_empty())
        };
        while is_deep(&in_flight) {
            stored(client.wait()?, &mut in_flight, &mut tally)?;
        }
        match std::fs::read(&file.path) {
            Ok(bytes) if bytes.len() > client.value_max_bytes() => tally.too_large(file, client),
            Ok(bytes) => {
                in_flight.insert(client.submit_put(&file.key, &bytes)?, (&file.path, bytes.len() as u64));
            }
            Err(error) => tally.failed(&file.path, &error.to_string()),
        }
    }
    while !in_flight.is_empty() {
        stored(client.wait()?, &mut in_flight, &mut tally)?;
    }
    bar.finish_and_clear();
    tally.end(started)
}

fn stored(
    done: Option<Completion>,
    in_flight: &mut HashMap<Ticket, (&Path, u64)>,
    tally: &mut Tally,
) -> Result<(), CliError> {
    let Some(Completion { ticket, outcome: Outcome::Put(result) }) = done else {
        unreachable!("only PUTs are in flight, and some are")
    };
    let (path, bytes) = in_flight.remove(&ticket).expect("each ticket completes once");
    match result {
        Ok(_) => {
            tally.done += 1;
            tally.bytes += bytes;
        }
        Err(Error::Refused(refusal)) => {
            tally.is_refused = true;
            tally.failed(path, &refusal.to_string());
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

pub(super) fn verify(client: &mut Client, arguments: &FilesArguments) -> Result<End, CliError> {
    let files = list(&arguments.dir)?;
    let (bar, started) = (progress(files.len() as u64), Instant::now());
    let mut tally = Tally::new(arguments, "verified");
    let mut value = Vec::new();
    for file in &files {
        bar.inc(1);
        if !file.fits(client) {
            tally.too_large(file, client);
            continue;
        }
        let bytes = match std::fs::read(&file.path) {
            Ok(bytes) => bytes,
            Err(error) => {
                tally.failed(&file.path, &error.to_string());
                continue;
            }
        };
        match client.get_to_vec(&file.key, &mut value)? {
            None => tally.failed(&file.path, "not in the store"),
            Some(_) if value != bytes => {
                let (found, expected) = (value.len(), bytes.len());
                let at = value.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
                let what = format!("differs from byte {at}: {found} bytes stored, {expected} in the file");
                tally.failed(&file.path, &what);
            }
            Some(_) => {
                tally.done += 1;
                tally.bytes += bytes.len() as u64;
            }
        }
    }
    bar.finish_and_clear();
    let stats = client.stats();
    let reads = stats.reads as f64 / stats.gets.max(1) as f64;
    print(format_args!(
        "{} GETs, {reads:.2} READs per GET, {} answered by the server",
        stats.gets, stats.asked_server
    ))?;
    tally.end(started)
}

/// The regular files under `dir`, sorted by path.
fn list(dir: &Path) -> Result<Vec<File>, CliError> {
    let mut files = Vec::new();
    for entry in walkdir::WalkDir::new(dir).sort_by_file_name() {
        let entry = entry.map_err(|error| {
            let what = error.path().unwrap_or(dir).display().to_string();
            io(&what, error.into_io_error().unwrap_or_else(|| std::io::Error::other("a loop of links")))
        })?;
        if !entry.file_type().is_file() {
            continue;
        }
        let bytes =
            entry.metadata().map_err(|error| io(&entry.path().display().to_string(), error.into()))?.len();
        let relative = entry.path().strip_prefix(dir).expect("walked from there");
        let key = relative.as_os_str().as_bytes().to_vec();
        // DIR itself may be a file: its key is its name.
        let key = if key.is_empty() { entry.file_name().as_bytes().to_vec() } else { key };
        files.push(File { path: entry.path().to_owned(), key, bytes });
    }
    Ok(files)
}
