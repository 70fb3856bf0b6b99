//! A client made by hand, which can do what the library never does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use kv_common::hello::{Answer, Descriptor, Hello, WELCOME_DESCRIPTORS, Wanted, Welcome};
use kv_common::region::{ReadWords, Words};
use kv_common::ring::PushError;
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::shm::channel::{ChannelLayout, ClientEnd};
use kv_common::transport::shm::doorbell::Doorbell;
use kv_common::transport::shm::mapping::{map_channel, map_region};
use kv_common::transport::shm::socket::connect;
use kv_common::wire::{Op, Request, Value};

use super::{deadline, wait_for};

/// A client that was welcomed.
pub(crate) struct Peer {
    pub(crate) welcome: Welcome,
    pub(crate) layout: ChannelLayout,
    pub(crate) region_fd: OwnedFd,
    pub(crate) region: ReadWords,
    /// All words of the channel: control lines, rings, staging area.
    pub(crate) channel: Words,
    pub(crate) end: ClientEnd,
    pub(crate) bell: Doorbell,
    seq: u64,
}

impl Peer {
    pub(crate) fn connect(socket: &Path) -> Peer {
        let stream = connect(socket, deadline()).unwrap();
        send_hello(&stream, &Hello::ours(Wanted::Shm).encode(), &[], deadline()).unwrap();
        let answer = receive_hello(&stream, WELCOME_DESCRIPTORS, deadline()).unwrap();
        let Answer::Welcome(welcome) = Answer::decode(&answer.bytes).unwrap() else {
            panic!("not welcome: {:?}", answer.bytes)
        };
        let layout = ChannelLayout::new(welcome.ring_bytes, welcome.staging_bytes).unwrap();
        let mut descriptors = answer.descriptors;
        let channel = descriptors.remove(Descriptor::Channel as usize);
        let region_fd = descriptors.remove(Descriptor::Region as usize);
        let region = map_region(region_fd.as_fd(), welcome.region_bytes).unwrap();
        let channel = map_channel(channel.as_fd(), layout.len_bytes()).unwrap();
        let end = layout.client_end(&channel);
        Peer { welcome, layout, region_fd, region, channel, end, bell: Doorbell::new(stream), seq: 0 }
    }

    /// Sends a request; fails if the ring is full.
    pub(crate) fn try_send(&mut self, op: Op, key: &[u8], value: &[u8]) -> Result<u64, PushError> {
        let (seq, session) = (self.seq + 1, self.welcome.session);
        let request = Request::new(seq, session, op, key, Value::Inline(value));
        self.end.requests.try_push(&request.parts(&request.header()))?;
        self.seq = seq;
        self.ring();
        Ok(seq)
    }

    /// Makes the server look at this channel.
    pub(crate) fn ring(&self) {
        // A server that has closed the session shows when that is waited for.
        let _ = self.bell.ring();
    }

    /// The next message from the server.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        wait_for("a reply", || {
            let mut message = Vec::new();
            self.end.replies.try_pop(&mut message).unwrap().map(|_| message)
        })
    }

    /// Waits until the server has closed this session.
    pub(crate) fn wait_for_end(&self) {
        wait_for("the server closes the session", || self.bell.clear().err());
    }
}
