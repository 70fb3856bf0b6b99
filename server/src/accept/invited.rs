//! Peers that were welcomed to RDMA: both sides tell their halves, and the queue pairs are connected, by what these say or
//! by rdma_cm (`meeting.rs`).

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use kv_common::hello::{Answer, HelloRefusal, Wanted, Welcome};
use kv_common::limits::RDMA_REQUESTS_IN_FLIGHT_MAX;
use kv_common::transport::handshake::OutgoingHello;
use kv_common::transport::tcp::socket::tune;
use kv_common::transport::verbs::exchange::{Half, Side, Verdict};
use kv_common::transport::verbs::meeting::Protocol;
use kv_common::verbs::{Init, Reset};
use tracing::{debug, warn};

use super::meeting::Meeting;
use super::newcomer::{Newcomer, Socket, say};
use super::{Acceptor, CM, DEVICE, no_resources};
use crate::link::{Link, VerbsLink};
use crate::peer::Peer;
use crate::rdma::{Connected, Introduction, Rdma};
use crate::session::Session;
use crate::shared::ClientSlot;

/// What is kept for a peer until its queue pair is connected.
pub(super) struct Invited {
    pub(super) by: By,
    pub(super) place: Place,
}

/// What its session will have.
pub(super) struct Place {
    session: u64,
    worker: usize,
    slot: ClientSlot,
}

/// What it waits for.
pub(super) enum By {
    /// The client's half.
    Exchange(Introduction<Init>),
    /// The client's half, its request by rdma_cm, or both.
    Meeting(Meeting),
}

impl Acceptor {
    /// Welcomes clients to RDMA, too.
    pub(crate) fn with_rdma(mut self, rdma: &Arc<Rdma>) -> std::io::Result<Acceptor> {
        self.poller.add(rdma.context().async_fd(), DEVICE)?;
        if let Ok(listener) = rdma.cm() {
            self.poller.add(listener.fd(), CM)?;
        }
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
    pub(super) fn invite(
        &mut self,
        stream: TcpStream,
        peer: Peer,
        wanted: Wanted,
    ) -> Result<(), (Socket, HelloRefusal)> {
        let (slot, worker, introduction) = match self.introduce(&stream, wanted) {
            Ok(introduced) => introduced,
            Err(refusal) => return Err((Socket::Tcp(stream), refusal)),
        };
        let half = introduction.half();
        let (by, meeting) = match self.prepare(introduction, wanted) {
            Ok(prepared) => prepared,
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
        let is_told = say(&stream, &welcome) && say_bytes(&stream, &half);
        if !is_told || meeting.is_some_and(|meeting| !say_bytes(&stream, &meeting)) {
            return Ok(());
        }
        let token = self.next_peer;
        self.next_peer += 1;
        if let Err(error) = self.poller.add(&stream, token) {
            return Err((Socket::Tcp(stream), no_resources(&error)));
        }
        let mut newcomer = Newcomer::new(Socket::Tcp(stream), peer);
        newcomer.invited = Some(Invited { by, place: Place { session, worker, slot } });
        self.peers.insert(token, newcomer);
        Ok(())
    }

    fn introduce(
        &self,
        stream: &TcpStream,
        wanted: Wanted,
    ) -> Result<(ClientSlot, usize, Introduction<Reset>), HelloRefusal> {
        let rdma = self.rdma.as_ref().ok_or(HelloRefusal::NotOffered { wanted })?;
        match wanted {
            Wanted::RdmaCm if rdma.cm().is_err() => return Err(HelloRefusal::NotOffered { wanted }),
            Wanted::Rdma if rdma.protocol() == Protocol::Iwarp => return Err(HelloRefusal::RdmaCmOnly),
            _ => {}
        }
        let slot = self.reserve()?;
        let worker = self.shared.idlest_worker();
        let reaching = stream.local_addr().ok().map(|address| address.ip());
        match rdma.introduce(worker, reaching) {
            Ok(Some(introduction)) => Ok((slot, worker, introduction)),
            Ok(None) => Err(HelloRefusal::TooManyClients { limit: rdma.clients_max() as u64 }),
            Err(error) => Err(no_pair(&error)),
        }
    }

    /// What the peer is waited for with, and what it is told of that.
    fn prepare(
        &self,
        introduction: Introduction<Reset>,
        wanted: Wanted,
    ) -> Result<(By, Option<[u8; 24]>), HelloRefusal> {
        if wanted != Wanted::RdmaCm {
            let introduction = introduction.initialize().map_err(|error| no_pair(&error))?;
            return Ok((By::Exchange(introduction), None));
        }
        let rdma = self.rdma.as_ref().expect("it has introduced");
        let listener = rdma.cm().map_err(|_| HelloRefusal::NotOffered { wanted })?;
        let (meeting, told) = Meeting::new(introduction, listener.address().port(), rdma.protocol())
            .map_err(|error| no_pair(&error))?;
        Ok((By::Meeting(meeting), Some(told)))
    }

    /// A peer that was invited has told its half.
    pub(super) fn hear_half(&mut self, token: u64, message: &[u8]) {
        let half = Half::decode(Side::Client, message).map_err(|error| error.to_string());
        let invited = self.peers.get(&token).and_then(|newcomer| newcomer.invited.as_ref());
        let is_meeting = matches!(invited.expect("it was just heard").by, By::Meeting(_));
        match half {
            Err(reason) => self.turn_away_invited(token, reason),
            Ok(half) if is_meeting => self.half_to_meeting(token, half),
            Ok(half) => self.connect_invited(token, half),
        }
    }

    fn connect_invited(&mut self, token: u64, half: Half) {
        let Some((newcomer, Invited { by: By::Exchange(introduction), place })) = self.take_invited(token)
        else {
            unreachable!("it was just heard, and waits for its half")
        };
        match introduction.connect(half) {
            Ok(connected) => self.open_invited(newcomer, place, connected),
            Err(reason) => self.refuse_invited(&newcomer, reason),
        }
    }

    /// Opens the session of a peer whose queue pair is connected.
    pub(super) fn open_invited(&mut self, newcomer: Newcomer, place: Place, connected: Connected) {
        let Place { session, worker, slot } = place;
        let Newcomer { socket: Socket::Tcp(stream), peer, .. } = newcomer else {
            unreachable!("only peers by TCP are invited")
        };
        debug!(session, %peer, path = connected.path, "client connected by RDMA");
        // Said before the link has the stream; requests that come early wait in the queue pair.
        let link = stream
            .try_clone()
            .and_then(|control| VerbsLink::new(connected, control, self.admission.welcome.staging_bytes));
        match link {
            Ok(link) if say_bytes(&stream, &Verdict::Connected.encode()) => {
                let link = Link::Verbs(Box::new(link));
                self.shared.hand_over(Session::new(session, peer, link, slot), worker);
            }
            Ok(_) => {}
            Err(error) => self.refuse_stream(&stream, peer, error.to_string()),
        }
    }

    /// Takes a peer out of those that are waited for.
    pub(super) fn take_invited(&mut self, token: u64) -> Option<(Newcomer, Invited)> {
        let mut newcomer = self.peers.remove(&token)?;
        let invited = newcomer.invited.take()?;
        self.poller.remove(&newcomer.socket);
        Some((newcomer, invited))
    }

    /// Ends a peer's handshake and tells it why.
    pub(super) fn turn_away_invited(&mut self, token: u64, reason: String) {
        // Said before what it waits for is dropped, which rdma_cm tells it, too.
        if let Some((newcomer, _invited)) = self.take_invited(token) {
            self.refuse_invited(&newcomer, reason);
        }
    }

    pub(super) fn refuse_invited(&mut self, newcomer: &Newcomer, reason: String) {
        let Socket::Tcp(stream) = &newcomer.socket else { unreachable!("only peers by TCP are invited") };
        self.refuse_stream(stream, newcomer.peer, reason);
    }

    fn refuse_stream(&mut self, stream: &TcpStream, peer: Peer, reason: String) {
        if let Some(suppressed) = self.complaints.permits(Instant::now()) {
            warn!(%peer, reason, suppressed, "cannot connect to a client by RDMA");
        }
        say_bytes(stream, &Verdict::Refused(reason).encode());
    }
}

fn no_pair(error: &dyn std::fmt::Display) -> HelloRefusal {
    warn!(%error, "no queue pair for a client");
    no_resources(&std::io::Error::other(error.to_string()))
}

/// True if the socket took the message at once.
fn say_bytes(stream: &TcpStream, bytes: &[u8]) -> bool {
    let mut message = OutgoingHello::new(bytes).expect("it has a hello's length");
    matches!(message.feed(stream.as_fd(), &[]), Ok(true))
}
