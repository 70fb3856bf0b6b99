//! `kv-bench`: measures a key-value store. See `kv-bench --help`.

use std::process::ExitCode;

use clap::Parser;
use kv_bench::args::Cli;
use kv_bench::commands;

fn main() -> ExitCode {
    ExitCode::from(commands::main(&Cli::parse()) as u8)
}
