//! What a peer gets that may be a client.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use kv_common::hello::{Answer, HelloRefusal, Offer, Welcome};
use kv_common::region::ReadWords;
use kv_common::transport::handshake::OutgoingHello;
use kv_common::transport::shm::channel::ChannelLayout;
use kv_common::transport::shm::doorbell::Doorbell;
use kv_common::transport::shm::mapping::{ChannelMemory, CreateError, create_channel};

use super::newcomer::{Socket, say, say_no_more};
use super::no_resources;
use crate::config::Allow;
use crate::link::{Link, ShmLink, TcpLink};
use crate::peer::Peer;

/// What every client is told, and who may be one.
pub(crate) struct Admission {
    /// What is the same in each welcome; the session number is not, and a network has no rings.
    pub(crate) welcome: Welcome,
    pub(crate) offer: Offer,
    pub(crate) channel: ChannelLayout,
    /// The sealed region.
    pub(crate) region: OwnedFd,
    pub(crate) allow: Allow,
    pub(crate) own_uid: u32,
}

impl Admission {
    /// Whether a peer is heard. Who reaches the TCP socket is not asked who they are.
    pub(super) fn permits(&self, peer: &Peer) -> Result<(), HelloRefusal> {
        match peer {
            Peer::Local(credentials) if !self.allow.permits(credentials.uid, self.own_uid) => {
                Err(HelloRefusal::NotPermitted { uid: credentials.uid })
            }
            Peer::Local(_) | Peer::Remote(_) => Ok(()),
        }
    }

    /// Memory for the rings of a new client.
    pub(super) fn channel(&self) -> Result<ChannelMemory, HelloRefusal> {
        create_channel(self.channel.len_bytes()).map_err(|error| match error {
            CreateError::Os { source, .. } => no_resources(&source),
            error => no_resources(&std::io::Error::other(error)),
        })
    }

    /// Welcomes a client to shared memory; `None` if it does not take the answer at once.
    pub(super) fn welcome_shm(
        &self,
        stream: UnixStream,
        session: u64,
        channel: &ChannelMemory,
    ) -> Option<Link> {
        let welcome = Answer::Welcome(Welcome { session, ..self.welcome });
        let descriptors = [self.region.as_fd(), channel.fd.as_fd()];
        let mut answer = OutgoingHello::new(&welcome.encode()).expect("an answer has a hello's length");
        if !matches!(answer.feed(stream.as_fd(), &descriptors), Ok(true)) {
            return None;
        }
        let end = self.channel.server_end(&channel.words);
        Some(Link::Shm(ShmLink::new(end, Doorbell::new(stream))))
    }

    /// Welcomes a client by TCP; `None` as before.
    pub(super) fn welcome_tcp(
        &self,
        stream: TcpStream,
        session: u64,
        region: ReadWords,
    ) -> Result<Option<Link>, (Socket, HelloRefusal)> {
        let refused = |stream, error| (Socket::Tcp(stream), no_resources(&error));
        let socket = match stream.try_clone() {
            Ok(socket) => socket,
            Err(error) => return Err(refused(stream, error)),
        };
        let link = match TcpLink::new(socket, region, self.welcome.staging_bytes) {
            Ok(link) => link,
            Err(error) => return Err(refused(stream, error)),
        };
        let welcome = Answer::Welcome(Welcome { session, ring_bytes: 0, ..self.welcome });
        Ok(say(&stream, &welcome).then_some(Link::Tcp(link)))
    }

    /// Says what there is to choose from.
    pub(super) fn make_offer(&self, stream: &TcpStream) {
        say(stream, &Answer::Offer(self.offer.clone()));
        say_no_more(stream);
    }
}
