//! Connecting by RDMA; the hello goes by TCP.

use std::time::Instant;

use kv_common::endpoint::{Address, ConnectBy, RdmaOptions};
use kv_common::hello::Wanted;
use kv_common::transport::tcp::socket;
use kv_common::transport::verbs::connect;
use kv_common::transport::verbs::port::PortWish;

use super::{Connected, NoConnection, say_hello, welcome};
use crate::transport::{AnyTransport, OfThisProcess};

/// Hello, answer, exchange, and READs that show that it works.
pub(super) fn connect(
    address: &Address,
    options: &RdmaOptions,
    deadline: Instant,
) -> Result<Connected, NoConnection> {
    if options.connect_by == ConnectBy::Rdma {
        return Err(NoConnection::Failed(
            "connecting by the RDMA connection manager (cm=rdma) is not possible; leave it out".to_owned(),
        ));
    }
    let wish = PortWish::new(options.device.as_deref(), options.port, options.gid_index);
    let stream = socket::connect(address, deadline)?;
    // Small frames that each wait for the other side.
    stream.set_nodelay(true)?;
    let is_here = stream.peer_addr()?.ip().is_loopback();
    let (answer, _) = say_hello(&stream, Wanted::Rdma, 0, deadline)?;
    let mut welcome = welcome(answer)?;
    if !is_here {
        // The number means nothing here.
        welcome.server_pid = 0;
    }
    let transport = connect::connect(stream, &welcome, &wish, deadline)?;
    Ok((welcome, AnyTransport::Verbs(OfThisProcess::new(transport))))
}
