//! RDMA at start: whether, on which device, and why not.

use std::net::SocketAddr;
use std::sync::Arc;

use tracing::{info, warn};

use super::StartError;
use crate::accept::Acceptor;
use crate::config::{Config, RdmaChoice};
use crate::shared::Shared;
use crate::table::Table;
use crate::worker::Worker;

/// What the threads share, if RDMA is served.
#[cfg(feature = "verbs")]
pub(super) type Handle = Arc<crate::rdma::Rdma>;
#[cfg(not(feature = "verbs"))]
pub(super) type Handle = std::convert::Infallible;

/// Starts RDMA if it is wanted and can be had; says which device it is, or why there is none.
pub(super) fn start(
    config: &Config,
    listen_address: Option<SocketAddr>,
    shared: &Arc<Shared>,
    table: &Table,
) -> Result<Option<Handle>, StartError> {
    if config.rdma == RdmaChoice::Off {
        info!("no RDMA: --rdma is off");
        return Ok(None);
    }
    let started = match listen_address {
        None => Err("clients by RDMA say hello by TCP, and --listen is none".to_owned()),
        Some(address) => open(config, address, shared, table),
    };
    // Who names a device wants that one.
    let is_wanted = config.rdma == RdmaChoice::On || config.rdma_device.is_some();
    match started {
        Ok(handle) => Ok(Some(handle)),
        Err(reason) if is_wanted => Err(StartError::Rdma { reason }),
        Err(reason) => {
            warn!(reason, "no RDMA");
            Ok(None)
        }
    }
}

#[cfg(feature = "verbs")]
fn open(config: &Config, address: SocketAddr, shared: &Arc<Shared>, table: &Table) -> Result<Handle, String> {
    use kv_common::transport::verbs::port::PortWish;

    let began = std::time::Instant::now();
    let wish = PortWish::new(config.rdma_device.as_deref(), config.rdma_port, config.rdma_gid);
    let waker = Arc::clone(&shared.accept_waker);
    let clients_max = shared.clients_max();
    let rdma = crate::rdma::Rdma::start(&wish, address, table.region(), config.workers, clients_max, waker)
        .map_err(|error| error.to_string())?;
    info!(
        port = rdma.describe(),
        clients_max = rdma.clients_max(),
        milliseconds = began.elapsed().as_millis() as u64,
        "RDMA: region registered, to be read by clients and written by none"
    );
    match rdma.cm() {
        Ok(listener) => info!(address = %listener.address(), "RDMA: rdma_cm connects clients, too"),
        Err(error) => info!(why = %error, "RDMA: clients with cm=rdma are refused, others are not concerned"),
    }
    Ok(Arc::new(rdma))
}

#[cfg(not(feature = "verbs"))]
fn open(_: &Config, _: SocketAddr, _: &Arc<Shared>, _: &Table) -> Result<Handle, String> {
    Err("this program was built without RDMA; build it with the feature `verbs`".to_owned())
}

/// A worker that serves clients by RDMA, too.
pub(super) fn serve(worker: Worker, rdma: Option<&Handle>, index: usize) -> std::io::Result<Worker> {
    match rdma {
        None => Ok(worker),
        #[cfg(feature = "verbs")]
        Some(rdma) => worker.with_rdma(rdma.queues(index)),
        #[cfg(not(feature = "verbs"))]
        Some(never) => match (*never, index) {},
    }
}

/// An accept thread that welcomes clients to RDMA, too.
pub(super) fn accept(acceptor: Acceptor, rdma: Option<&Handle>) -> std::io::Result<Acceptor> {
    match rdma {
        None => Ok(acceptor),
        #[cfg(feature = "verbs")]
        Some(rdma) => acceptor.with_rdma(rdma),
        #[cfg(not(feature = "verbs"))]
        Some(never) => match *never {},
    }
}
