//! The choice of a transport for `kv://host`: shared memory, else RDMA, else TCP, and why.

use std::time::Instant;

use kv_common::endpoint::Address;
#[cfg(feature = "verbs")]
use kv_common::endpoint::RdmaOptions;
use kv_common::hello::Offer;

#[cfg(feature = "verbs")]
use super::rdma;
use super::{Connected, NoConnection, shm, tcp};

/// Connects by the best way that both sides have. Returns the reason for it, too.
pub(super) fn connect(address: &Address, deadline: Instant) -> Result<(Connected, String), NoConnection> {
    let offer = tcp::ask(address, deadline)?;
    let not_shm = match shared_memory(&offer, deadline) {
        Ok(connected) => {
            let why = format!("the server's socket {} is on this host", offer.socket.path.display());
            return Ok((connected, why));
        }
        Err(why) => why,
    };
    let not_rdma = match by_rdma(address, &offer, deadline) {
        Ok((connected, how)) => {
            return Ok((connected, format!("no shared memory: {not_shm}; both have RDMA; {how}")));
        }
        Err(why) => why,
    };
    let connected = tcp::connect(address, deadline)?;
    Ok((connected, format!("no shared memory: {not_shm}; no RDMA: {not_rdma}")))
}

fn shared_memory(offer: &Offer, deadline: Instant) -> Result<Connected, String> {
    offer.socket.is_here()?;
    shm::connect(&offer.socket.path, deadline).map_err(reason)
}

#[cfg(feature = "verbs")]
fn by_rdma(address: &Address, offer: &Offer, deadline: Instant) -> Result<(Connected, &'static str), String> {
    if !offer.has_rdma {
        return Err("the server offers none".to_owned());
    }
    let connected = rdma::connect(address, &RdmaOptions::default(), deadline).map_err(reason);
    // Both sides say that they have it, so this is worth a look.
    connected.inspect_err(|why| {
        tracing::warn!(why, "the server offers RDMA, and it cannot be used; going on without")
    })
}

#[cfg(not(feature = "verbs"))]
fn by_rdma(_: &Address, offer: &Offer, _: Instant) -> Result<(Connected, &'static str), String> {
    Err(match offer.has_rdma {
        true => "this program was built without the feature `verbs`".to_owned(),
        false => "the server offers none".to_owned(),
    })
}

fn reason(why: NoConnection) -> String {
    match why {
        NoConnection::Failed(reason) => reason,
        NoConnection::Refused(refusal) => refusal.to_string(),
    }
}
