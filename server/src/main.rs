//! The `kv-server` command.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use kv_server::args::Flags;
use kv_server::config::{Config, ConfigError, Sources};
use kv_server::{Running, Stopper, log, start};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info};

const FAILED: u8 = 1;
const WRONG_OPTIONS: u8 = 2;
const CANNOT_START: u8 = 3;

fn main() -> ExitCode {
    let flags = Flags::parse();
    match configuration(&flags) {
        Err(error) => {
            complain(&error);
            ExitCode::from(WRONG_OPTIONS)
        }
        Ok((config, sources)) if flags.print_config => print(&config.to_toml(&sources)),
        Ok((config, _)) => serve(config),
    }
}

/// An error before there is a log. Where standard error takes nothing, the exit code says it alone.
fn complain(error: &dyn std::fmt::Display) {
    let _ = writeln!(io::stderr(), "kv-server: {error}");
}

fn print(text: &str) -> ExitCode {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format_args!("cannot print the configuration to standard output: {error}"));
            ExitCode::from(CANNOT_START)
        }
    }
}

fn configuration(flags: &Flags) -> Result<(Config, Sources), ConfigError> {
    let variable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    };
    let sources = Sources::collect(flags, std::env::vars_os().filter_map(variable))?;
    Ok((Config::resolve(&sources)?, sources))
}

fn serve(config: Config) -> ExitCode {
    log::init(&config);
    let running = match start(config) {
        Ok(running) => running,
        Err(error) => {
            error!("cannot start: {error}");
            return ExitCode::from(CANNOT_START);
        }
    };
    if let Err(error) = stop_on_signals(running.stopper()) {
        error!("cannot start: no signals: {error}");
        return ExitCode::from(CANNOT_START);
    }
    announce(&running);
    match running.wait() {
        Ok(()) => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        Err(failed) => {
            error!("{failed}");
            ExitCode::from(FAILED)
        }
    }
}

/// The line that scripts wait for.
fn announce(running: &Running) {
    let mut out = io::stdout().lock();
    let (socket, bytes, pid) = (running.socket().display(), running.region_bytes(), std::process::id());
    let line =
        writeln!(out, "ready socket={socket} memory_bytes={bytes} pid={pid}").and_then(|()| out.flush());
    if let Err(error) = line {
        // Nobody waits for it, then.
        info!(%error, "standard output takes no readiness line");
    }
}

/// The first signal stops the server in good order, the second ends the process.
fn stop_on_signals(stopper: Stopper) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let watch = move || {
        let mut is_stopping = false;
        for signal in signals.forever() {
            if std::mem::replace(&mut is_stopping, true) {
                std::process::exit(128 + signal);
            }
            // First of all, whatever the log does.
            stopper.stop();
            info!(signal, "stopping: answering what was asked; another signal ends at once");
        }
    };
    std::thread::Builder::new().name("kv-signals".to_owned()).spawn(watch)?;
    Ok(())
}
