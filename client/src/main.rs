//! `kv`: the store from a shell.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
