//! `kv scan`, `kv clear`.

use std::ffi::OsString;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use kv_client::{Client, Cursor};

use super::{CliError, End, io, print};

#[derive(Args)]
pub(super) struct ScanArguments {
    /// Only keys that begin with this.
    #[arg(long, default_value = "")]
    prefix: OsString,
    /// Print only how many there are.
    #[arg(long)]
    count: bool,
    /// End each key with a zero byte instead of a line feed, for keys with line feeds in them.
    #[arg(long, short = '0', conflicts_with = "count")]
    null: bool,
}

#[derive(Args)]
pub(super) struct ClearArguments {
    /// Yes, delete all keys.
    #[arg(long, required = true)]
    yes: bool,
}

pub(super) fn scan(client: &mut Client, arguments: &ScanArguments) -> Result<End, CliError> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let end: &[u8] = if arguments.null { b"\0" } else { b"\n" };
    let (mut cursor, mut count) = (Some(Cursor::default()), 0u64);
    while let Some(from) = cursor {
        let page = client.scan(from)?;
        for key in page.keys.iter().filter(|key| key.starts_with(arguments.prefix.as_bytes())) {
            count += 1;
            if !arguments.count {
                out.write_all(key)
                    .and_then(|()| out.write_all(end))
                    .map_err(|error| io("writing to standard output", error))?;
            }
        }
        cursor = page.next;
    }
    out.flush().map_err(|error| io("writing to standard output", error))?;
    drop(out);
    if arguments.count { print(format_args!("{count}")) } else { Ok(End::Done) }
}

pub(super) fn clear(client: &mut Client, _arguments: &ClearArguments) -> Result<End, CliError> {
    let deleted = client.clear()?;
    print(format_args!("{deleted} keys deleted"))
}
