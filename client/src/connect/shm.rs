//! Connecting through shared memory: a Unix socket hands out the region and a channel.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use kv_common::endpoint;
use kv_common::hello::{Descriptor, WELCOME_DESCRIPTORS, Wanted};
use kv_common::transport::shm::channel::ChannelLayout;
use kv_common::transport::shm::client::ShmTransport;
use kv_common::transport::shm::credentials::PeerCredentials;
use kv_common::transport::shm::doorbell::Doorbell;
use kv_common::transport::shm::{mapping, socket};

use super::{Connected, NoConnection, say_hello, welcome};
use crate::transport::AnyTransport;

/// Hello, answer, and the memory that came with it.
pub(super) fn connect(path: &Path, deadline: Instant) -> Result<Connected, NoConnection> {
    let stream = socket::connect(path, deadline)?;
    check_default_socket(path, &stream)?;
    let said_hello = Instant::now();
    let (answer, descriptors) = say_hello(&stream, Wanted::Shm, WELCOME_DESCRIPTORS, deadline)?;
    let welcome = welcome(answer)?;
    if descriptors.len() != WELCOME_DESCRIPTORS {
        let found = descriptors.len();
        let reason = format!("the server sent {found} descriptors, {WELCOME_DESCRIPTORS} are needed");
        return Err(NoConnection::Failed(reason));
    }
    let region = descriptors[Descriptor::Region as usize].as_fd();
    let region = mapping::map_region(region, welcome.region_bytes)?;
    let layout = ChannelLayout::new(welcome.ring_bytes, welcome.staging_bytes)?;
    let channel = descriptors[Descriptor::Channel as usize].as_fd();
    let channel = mapping::map_channel(channel, layout.len_bytes())?;
    let transport = ShmTransport::new(region, layout.client_end(&channel), Doorbell::new(stream));
    Ok(Connected { welcome, transport: AnyTransport::Shm(transport), said_hello })
}

/// The default socket may lie in a directory where anybody can put one: keys and values are for a server of this user,
/// or of root. Who names a socket is taken at their word.
fn check_default_socket(path: &Path, stream: &UnixStream) -> Result<(), NoConnection> {
    if path != endpoint::default_socket() {
        return Ok(());
    }
    let (own, found) = (rustix::process::geteuid().as_raw(), PeerCredentials::of(stream.as_fd())?.uid);
    if found == own || found == 0 {
        return Ok(());
    }
    let path = path.display();
    Err(NoConnection::Failed(format!(
        "the default socket {path} is served by user {found}, not by this user ({own}) or root; name the socket in the \
         URL if that is meant"
    )))
}
