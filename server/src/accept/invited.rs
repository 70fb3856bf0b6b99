//! Peers that were welcomed to RDMA: both sides tell their halves, and the queue pairs are connected.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use kv_common::hello::{Answer, HelloRefusal, Wanted, Welcome};
use kv_common::limits::RDMA_REQUESTS_IN_FLIGHT_MAX;
use kv_common::transport::handshake::OutgoingHello;
use kv_common::transport::tcp::socket::tune;
use kv_common::transport::verbs::exchange::Verdict;
use tracing::{debug, warn};

use super::newcomer::{Newcomer, Socket, say};
use super::{Acceptor, DEVICE, no_resources};
use crate::link::{Link, VerbsLink};
use crate::peer::Peer;
use crate::rdma::{Introduction, Rdma};
use crate::session::Session;
use crate::shared::ClientSlot;

/// What is kept for a peer until it has told its half.
pub(super) struct Invited {
    introduction: Introduction,
    session: u64,
    worker: usize,
    slot: ClientSlot,
}

impl Acceptor {
    /// Welcomes clients to RDMA, too.
    pub(crate) fn with_rdma(mut self, rdma: &Arc<Rdma>) -> std::io::Result<Acceptor> {
        self.poller.add(rdma.context().async_fd(), DEVICE)?;
        self.rdma = Some(Arc::clone(rdma));
        Ok(self)
    }

    pub(super) fn hear_device(&self) {
        self.rdma.as_ref().expect("its device is watched").take_events();
    }

    pub(super) fn end_closing(&self) {
        if let Some(rdma) = &self.rdma {
            rdma.end_closing();
        }
    }

    /// Welcomes a peer, tells it this server's half, and waits for its own.
    pub(super) fn invite(&mut self, stream: TcpStream, peer: Peer) -> Result<(), (Socket, HelloRefusal)> {
        let (slot, worker, introduction) = match self.introduce(&stream) {
            Ok(introduced) => introduced,
            Err(refusal) => return Err((Socket::Tcp(stream), refusal)),
        };
        let session = self.next_session;
        self.next_session += 1;
        let requests_in_flight = RDMA_REQUESTS_IN_FLIGHT_MAX as u32;
        let welcome =
            Answer::Welcome(Welcome { session, ring_bytes: 0, requests_in_flight, ..self.admission.welcome });
        if let Err(error) = tune(&stream) {
            return Err((Socket::Tcp(stream), no_resources(&error)));
        }
        if !say(&stream, &welcome) || !say_bytes(&stream, &introduction.half()) {
            return Ok(());
        }
        let token = self.next_peer;
        self.next_peer += 1;
        if let Err(error) = self.poller.add(&stream, token) {
            return Err((Socket::Tcp(stream), no_resources(&error)));
        }
        let mut newcomer = Newcomer::new(Socket::Tcp(stream), peer);
        newcomer.invited = Some(Invited { introduction, session, worker, slot });
        self.peers.insert(token, newcomer);
        Ok(())
    }

    fn introduce(&self, stream: &TcpStream) -> Result<(ClientSlot, usize, Introduction), HelloRefusal> {
        let rdma = self.rdma.as_ref().ok_or(HelloRefusal::NotOffered { wanted: Wanted::Rdma })?;
        let slot = self.reserve()?;
        let worker = self.shared.idlest_worker();
        let reaching = stream.local_addr().ok().map(|address| address.ip());
        match rdma.introduce(worker, reaching) {
            Ok(Some(introduction)) => Ok((slot, worker, introduction)),
            Ok(None) => Err(HelloRefusal::TooManyClients { limit: rdma.clients_max() as u64 }),
            Err(error) => {
                warn!(%error, "no queue pair for a client");
                Err(no_resources(&std::io::Error::other(error)))
            }
        }
    }

    /// A peer that was invited has told its half.
    pub(super) fn connect_invited(&mut self, token: u64, half: &[u8]) {
        let newcomer = self.peers.remove(&token).expect("it was just heard");
        let Newcomer { socket: Socket::Tcp(stream), peer, invited: Some(invited), .. } = newcomer else {
            unreachable!("only peers by TCP are invited")
        };
        self.poller.remove(&stream);
        let Invited { introduction, session, worker, slot } = invited;
        let rdma = self.rdma.as_ref().expect("it has invited");
        let connected = match introduction.connect(half) {
            Ok(connected) => connected,
            Err(reason) => return self.turn_away_invited(&stream, peer, reason),
        };
        let path = connected.path;
        // Said before the link has the stream; requests that come early wait in the queue pair.
        let link = stream.try_clone().and_then(|control| {
            VerbsLink::new(rdma, connected, control, self.admission.welcome.staging_bytes)
        });
        match link {
            Ok(link) if say_bytes(&stream, &Verdict::Connected.encode()) => {
                debug!(session, %peer, %path, "client connected by RDMA");
                let link = Link::Verbs(Box::new(link));
                self.shared.hand_over(Session::new(session, peer, link, slot), worker);
            }
            Ok(_) => {}
            Err(error) => self.turn_away_invited(&stream, peer, error.to_string()),
        }
    }

    fn turn_away_invited(&mut self, stream: &TcpStream, peer: Peer, reason: String) {
        if let Some(suppressed) = self.complaints.permits(Instant::now()) {
            warn!(%peer, reason, suppressed, "cannot connect to a client by RDMA");
        }
        say_bytes(stream, &Verdict::Refused(reason).encode());
    }
}

/// True if the socket took the message at once.
fn say_bytes(stream: &TcpStream, bytes: &[u8]) -> bool {
    let mut message = OutgoingHello::new(bytes).expect("it has a hello's length");
    matches!(message.feed(stream.as_fd(), &[]), Ok(true))
}
