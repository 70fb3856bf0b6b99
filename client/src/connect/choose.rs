//! The choice of a transport for `kv://host`: shared memory, else RDMA, else TCP, and why.

use std::time::Instant;

use kv_common::endpoint::Address;
use kv_common::hello::Offer;

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
    let not_rdma = no_rdma(&offer);
    let connected = tcp::connect(address, deadline)?;
    Ok((connected, format!("no shared memory: {not_shm}; no RDMA: {not_rdma}")))
}

fn shared_memory(offer: &Offer, deadline: Instant) -> Result<Connected, String> {
    offer.socket.is_here()?;
    shm::connect(&offer.socket.path, deadline).map_err(|why| match why {
        NoConnection::Failed(reason) => reason,
        NoConnection::Refused(refusal) => refusal.to_string(),
    })
}

/// Why RDMA is not used.
fn no_rdma(offer: &Offer) -> &'static str {
    if offer.has_rdma {
        "this program was built without the feature `verbs`"
    } else {
        "the server offers none"
    }
}
