//! Connecting by TCP.

use std::time::Instant;

use kv_common::endpoint::Address;
use kv_common::hello::{Answer, Offer, Wanted};
use kv_common::transport::tcp::client::TcpTransport;
use kv_common::transport::tcp::socket;

use super::{Connected, NoConnection, is_here, say_hello, welcome};
use crate::transport::AnyTransport;

/// Hello and answer.
pub(super) fn connect(address: &Address, deadline: Instant) -> Result<Connected, NoConnection> {
    let stream = socket::connect(address, deadline)?;
    let said_hello = Instant::now();
    let (answer, _) = say_hello(&stream, Wanted::Tcp, 0, deadline)?;
    let mut welcome = welcome(answer)?;
    if !is_here(&stream)? {
        // The number means nothing here.
        welcome.server_pid = 0;
    }
    let transport = TcpTransport::new(stream, welcome.staging_bytes)?;
    Ok(Connected { welcome, transport: AnyTransport::Tcp(transport), said_hello })
}

/// What the server at `address` offers.
pub(super) fn ask(address: &Address, deadline: Instant) -> Result<Offer, NoConnection> {
    let stream = socket::connect(address, deadline)?;
    match say_hello(&stream, Wanted::Offer, 0, deadline)?.0 {
        Answer::Offer(offer) => Ok(offer),
        Answer::Refused(refusal) => Err(NoConnection::Refused(refusal)),
        Answer::Welcome(_) => {
            Err(NoConnection::Failed("the server was asked for an offer and welcomed".into()))
        }
    }
}
