//! The server: reachable, by which transport, and READs of it.

use std::time::Duration;

use kv_client::{Client, Error, Options};

use super::Finding;

/// More than any MTU, so that the answer is several packets.
const LARGE_READ_BYTES: usize = 64 << 10;
const READS: usize = 16;

pub(super) fn check(url: &str, timeout: Duration) -> Vec<Finding> {
    let options = Options { timeout, index_cache_bytes: 64 << 10, ..Options::default() };
    let mut client = match Client::connect_with(url, &options) {
        Ok(client) => client,
        Err(error) => {
            return vec![
                Finding::failed("server", error.to_string(), remedy(&error)),
                Finding::skipped("probe READ", "no connection"),
                Finding::skipped("large READ", "no connection"),
            ];
        }
    };
    let connection = client.connection();
    let mut findings = vec![Finding::ok(
        "server",
        format!("{} by {} ({})", connection.url, connection.transport, connection.why),
    )];
    findings.push(read(&mut client, "probe READ", 64));
    findings.push(read(&mut client, "large READ", LARGE_READ_BYTES));
    findings
}

fn remedy(error: &Error) -> &'static str {
    match error {
        Error::Url { .. } => "see `kv --help` for the forms of a URL",
        Error::NotAdmitted { .. } => "the server's answer names what to change",
        _ => {
            "is kv-server running (its readiness line names where it listens)? From another host: started with \
             --listen ADDRESS:7410, and no firewall between?"
        }
    }
}

fn read(client: &mut Client, check: &'static str, bytes: usize) -> Finding {
    let mut best = Duration::MAX;
    for _ in 0..READS {
        match client.probe(bytes) {
            Ok(took) => best = best.min(took),
            Err(error) => {
                let remedy = if bytes > 4096 {
                    "small READs work and this one does not: an MTU that the network does not carry on the whole way (ping \
                     -M do -s 4000 PEER), or a lossless class that is not lossless; see docs/hardware.md"
                } else {
                    "the server's memory cannot be read: a wrong or old key (was the server restarted?), or a device that \
                     fails; see its log"
                };
                return Finding::failed(check, error.to_string(), remedy);
            }
        }
    }
    let micros = best.as_nanos() as f64 / 1e3;
    let rate = bytes as f64 / best.as_nanos().max(1) as f64;
    Finding::ok(check, format!("{bytes} bytes in {micros:.1} us, {rate:.2} GB/s, best of {READS}"))
}
