//! `kv put`, `del`, `cas`, `add`, `append`.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kv_client::{Client, Condition, Conditional, PutOptions, TimeToLive};

use super::{CliError, End, duration, io, print};

#[derive(Args)]
pub(super) struct PutArguments {
    /// The key, 1 to 1024 bytes.
    key: OsString,
    #[command(flatten)]
    value: ValueArguments,
    /// How long the value shall live: 500ms, 30s, 5m, 2h, 7d. Without, it has no end.
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    ttl: Option<Duration>,
    #[command(flatten)]
    condition: ConditionArguments,
}

#[derive(Args)]
pub(super) struct AppendArguments {
    /// The key, 1 to 1024 bytes.
    key: OsString,
    #[command(flatten)]
    value: ValueArguments,
    #[command(flatten)]
    condition: ConditionArguments,
}

#[derive(Args)]
pub(super) struct AddArguments {
    /// The key, 1 to 1024 bytes.
    key: OsString,
    /// What to add; may be negative.
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    delta: i64,
    #[command(flatten)]
    condition: ConditionArguments,
}

#[derive(Args)]
pub(super) struct DeleteArguments {
    /// The key, 1 to 1024 bytes.
    key: OsString,
    /// Only if the key has this version.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

#[derive(Args)]
pub(super) struct TouchArguments {
    /// The key, 1 to 1024 bytes.
    key: OsString,
    /// How long it shall live from now on: 500ms, 30s, 5m, 2h, 7d. Without, it has no end.
    #[arg(value_parser = duration::parse)]
    ttl: Option<Duration>,
}

#[derive(Args)]
struct ValueArguments {
    /// The value.
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    value: Option<OsString>,
    /// Take the value from this file; - is standard input.
    #[arg(long)]
    file: Option<PathBuf>,
}

/// If it does not hold, nothing is changed, standard error says why, and the exit code is 1.
#[derive(Args)]
#[group(multiple = false)]
struct ConditionArguments {
    /// Only if the key is absent.
    #[arg(long)]
    if_absent: bool,
    /// Only if the key is there.
    #[arg(long)]
    if_present: bool,
    /// Only if the key has this version, as `put`, `cas` or `exists` printed it.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
}

impl ConditionArguments {
    fn condition(&self) -> Condition {
        match (self.if_absent, self.if_present, self.if_version) {
            (true, ..) => Condition::Absent,
            (_, true, _) => Condition::Present,
            (.., Some(version)) => Condition::Version(version),
            _ => Condition::Always,
        }
    }
}

impl ValueArguments {
    fn bytes(&self) -> Result<Vec<u8>, CliError> {
        match (&self.file, &self.value) {
            (None, Some(value)) => Ok(value.as_bytes().to_vec()),
            (Some(path), _) if path.as_os_str() == "-" => {
                let mut bytes = Vec::new();
                let read = std::io::stdin().lock().read_to_end(&mut bytes);
                read.map(|_| bytes).map_err(|error| io("reading standard input", error))
            }
            (Some(path), _) => {
                std::fs::read(path).map_err(|error| io(&format!("reading {}", path.display()), error))
            }
            (None, None) => unreachable!("clap asks for one of the two"),
        }
    }
}

pub(super) fn put(client: &mut Client, arguments: &PutArguments) -> Result<End, CliError> {
    let (value, condition) = (arguments.value.bytes()?, arguments.condition.condition());
    let mut options = PutOptions::from(condition);
    options.ttl = arguments.ttl;
    let outcome = client.put_with(arguments.key.as_bytes(), &value, options)?;
    end(outcome, condition, |version| print(format_args!("{version}")))
}

pub(super) fn compare_and_set(
    client: &mut Client,
    key: &[u8],
    version: u64,
    value: &[u8],
) -> Result<End, CliError> {
    let outcome = client.compare_and_set(key, version, value)?;
    end(outcome, Condition::Version(version), |new| print(format_args!("{new}")))
}

pub(super) fn delete(client: &mut Client, arguments: &DeleteArguments) -> Result<End, CliError> {
    let condition = arguments.if_version.map_or(Condition::Always, Condition::Version);
    let outcome = client.delete_if(arguments.key.as_bytes(), condition)?;
    end(outcome, condition, |_| Ok(End::Done))
}

pub(super) fn add(client: &mut Client, arguments: &AddArguments) -> Result<End, CliError> {
    let condition = arguments.condition.condition();
    let outcome = client.add_if(arguments.key.as_bytes(), arguments.delta, condition)?;
    end(outcome, condition, |count| print(format_args!("{}", count.value)))
}

pub(super) fn append(client: &mut Client, arguments: &AppendArguments) -> Result<End, CliError> {
    let (bytes, condition) = (arguments.value.bytes()?, arguments.condition.condition());
    let outcome = client.append_if(arguments.key.as_bytes(), &bytes, condition)?;
    end(outcome, condition, |appended| print(format_args!("{}", appended.value_bytes)))
}

pub(super) fn touch(client: &mut Client, arguments: &TouchArguments) -> Result<End, CliError> {
    let outcome = client.touch(arguments.key.as_bytes(), arguments.ttl)?;
    end(outcome, Condition::Always, |version| print(format_args!("{version}")))
}

pub(super) fn ttl(client: &mut Client, key: &[u8]) -> Result<End, CliError> {
    match client.ttl(key)? {
        TimeToLive::Absent => Ok(End::NotFoundOrDiffers),
        TimeToLive::Forever => print(format_args!("forever")),
        TimeToLive::Left(left) => print(format_args!("{}", duration::format(left))),
    }
}

/// Shows what was made, or why nothing was.
fn end<T>(
    outcome: Conditional<T>,
    condition: Condition,
    show: impl FnOnce(T) -> Result<End, CliError>,
) -> Result<End, CliError> {
    match (outcome, condition) {
        (Conditional::Done(made), _) => return show(made),
        (Conditional::Mismatch(found), Condition::Version(version)) => {
            eprintln!("kv: the key's version is {found}, not {version}");
        }
        (Conditional::Mismatch(found), _) => eprintln!("kv: the key is there, with version {found}"),
        (Conditional::NotFound, _) => {}
    }
    Ok(End::NotFoundOrDiffers)
}
