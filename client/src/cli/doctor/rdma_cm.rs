//! rdma_cm: whether it is there, and whether it knows a way to the server.

use std::net::ToSocketAddrs;
use std::time::Duration;

use kv_common::endpoint::{ConnectBy, Endpoint};
use kv_common::verbs::Transport;
use kv_common::verbs::cm::{Resolved, check_device_file};

use super::Finding;

const CHECK: &str = "rdma_cm";
const PATIENCE: Duration = Duration::from_secs(2);

/// `devices` are what this host's devices speak.
pub(super) fn check(url: &str, devices: &[Transport]) -> Finding {
    let endpoint = Endpoint::parse(url).ok();
    let asked = match &endpoint {
        Some(Endpoint::Rdma { address, options }) => Some((address, options.connect_by)),
        _ => None,
    };
    let is_asked = asked.is_some_and(|(_, by)| by == Some(ConnectBy::Rdma));
    let is_needed = is_asked || devices.contains(&Transport::Iwarp);
    if let Err(error) = check_device_file() {
        let remedy = "needed for cm=rdma and for iWARP only; in Kubernetes the device plugin passes the file";
        return match is_needed {
            true => Finding::failed(CHECK, error.to_string(), remedy),
            false => Finding::warning(CHECK, error.to_string(), remedy),
        };
    }
    let Some((address, _)) = asked.filter(|_| is_needed) else {
        return Finding::ok(CHECK, "its device file is there; this URL does not need it");
    };
    let remedy = "the server's address has to be one of its adapter's interface, and this host's route to it to leave by its \
                  adapter (`ip route get ADDRESS`); or cm=tcp, which needs no such route, but not on iWARP";
    let failed = |found: String| Finding::failed(CHECK, format!("{}: {found}", address.host), remedy);
    let server = match (address.host.as_str(), address.port).to_socket_addrs().map(|mut all| all.next()) {
        Ok(Some(server)) => server,
        Ok(None) => return failed("the name has no address".to_owned()),
        Err(error) => return failed(error.to_string()),
    };
    match Resolved::resolve(server, None, PATIENCE) {
        Ok(way) => {
            let (device, port) = (way.device(), way.port());
            Finding::ok(CHECK, format!("reaches {} through {device}:{port}", server.ip()))
        }
        Err(error) => failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    /// Both with and without the device file.
    #[test]
    fn what_is_not_needed_never_fails() {
        for url in ["kv+rdma://192.0.2.1:7410", "kv://192.0.2.1", "kv+shm:///tmp/x", "nonsense"] {
            assert_ne!(check(url, &[Transport::InfiniBand]).level, Level::Failed);
        }
        let level = check("kv+rdma://127.0.0.1:7410?cm=rdma", &[]).level;
        assert_eq!(level, Level::Failed, "the loopback is no adapter's");
        assert_eq!(check("kv+rdma://127.0.0.1:7410", &[Transport::Iwarp]).level, Level::Failed);
    }
}
