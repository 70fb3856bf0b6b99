//! The accept thread: new peers, their handshakes, the superblock's clock, and a line about what happened.
//!
//! Peers that have not said their hello are served side by side; none waits for another, and each has until its
//! deadline, or until its place is needed: then the user or host that takes most places loses the oldest of them.
//! `newcomer.rs` has what such a peer is, `admission.rs` what it gets, `invited.rs` how those who want RDMA go on, and
//! `meeting.rs` those among them whose queue pairs rdma_cm connects.

mod admission;
#[cfg(feature = "verbs")]
mod invited;
#[cfg(feature = "verbs")]
mod meeting;
mod newcomer;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::hello::{Hello, HelloRefusal, Wanted};
use kv_common::limits::HANDSHAKES_MAX;
use kv_common::transport::handshake::HelloError;
use kv_common::transport::{shm, tcp};
use tracing::{debug, warn};

use crate::link::Link;
use crate::peer::Peer;
use crate::poller::Poller;
use crate::rate::RateLimit;
use crate::session::Session;
use crate::shared::{ClientSlot, Shared};
use crate::summary::Summary;
use crate::table::Table;

/// How often the superblock's clock is set while clients are connected, for people who look at it ...
const CLOCK_TICK: Duration = Duration::from_millis(20);
/// ... and for clients who judge by it whether the time of keys is over.
const EXPIRY_CLOCK_TICK: Duration = Duration::from_millis(5);
/// Peers that are accepted before those accepted earlier have their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long nobody is accepted after the system refused to.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const WAKER: u64 = 0;
const UNIX_LISTENER: u64 = 1;
const TCP_LISTENER: u64 = 2;
#[cfg(feature = "verbs")]
const DEVICE: u64 = 3;
#[cfg(feature = "verbs")]
const CM: u64 = 4;
const FIRST_PEER: u64 = 5;

pub(crate) use admission::Admission;
use newcomer::{Newcomer, Socket, least_deserving};

/// Where clients come.
pub(crate) struct Listeners {
    pub(crate) unix: shm::socket::Listener,
    pub(crate) tcp: Option<tcp::socket::Listener>,
}

/// The accept thread's state.
pub(crate) struct Acceptor {
    shared: Arc<Shared>,
    table: Arc<Table>,
    listeners: Listeners,
    admission: Admission,
    poller: Poller,
    /// By token, hence the oldest first.
    peers: BTreeMap<u64, Newcomer>,
    next_peer: u64,
    next_session: u64,
    /// Whether the listeners are watched; if not, until when.
    paused: Option<Instant>,
    summary: Summary,
    complaints: RateLimit,
    tokens: Vec<u64>,
    #[cfg(feature = "verbs")]
    rdma: Option<Arc<crate::rdma::Rdma>>,
}

impl Acceptor {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        table: &Arc<Table>,
        listeners: Listeners,
        admission: Admission,
    ) -> io::Result<Acceptor> {
        let poller = Poller::new()?;
        poller.add(&shared.accept_waker, WAKER)?;
        listeners.watch(&poller)?;
        Ok(Acceptor {
            shared: Arc::clone(shared),
            table: Arc::clone(table),
            listeners,
            admission,
            poller,
            peers: BTreeMap::new(),
            next_peer: FIRST_PEER,
            next_session: 1,
            paused: None,
            summary: Summary::new(table),
            complaints: RateLimit::default(),
            tokens: Vec::new(),
            #[cfg(feature = "verbs")]
            rdma: None,
        })
    }

    /// Accepts until the server is told to stop; then nobody is accepted any more, but path and port stay taken.
    pub(crate) fn run(mut self) {
        while !self.shared.is_stopping() {
            self.turn();
        }
        for peer in self.peers.values() {
            peer.socket.refuse(HelloRefusal::ShuttingDown);
        }
        *self.shared.retired_listeners.lock() = Some(self.listeners);
    }

    fn turn(&mut self) {
        let mut tokens = std::mem::take(&mut self.tokens);
        self.poller
            .wait(self.timeout(), &mut tokens)
            .expect("waiting for descriptors of our own does not fail");
        self.set_clock();
        for token in tokens.drain(..) {
            match token {
                WAKER => self.shared.accept_waker.clear(),
                UNIX_LISTENER | TCP_LISTENER => self.accept_some(token),
                #[cfg(feature = "verbs")]
                DEVICE => self.hear_device(),
                #[cfg(feature = "verbs")]
                CM => self.hear_cm(),
                peer => self.hear(peer),
            }
        }
        self.tokens = tokens;
        self.drop_late();
        self.resume();
        #[cfg(feature = "verbs")]
        self.end_closing();
        self.summary.tick(&self.table, self.shared.clients());
    }

    fn timeout(&self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let tick = if self.table.has_expiring_keys() { EXPIRY_CLOCK_TICK } else { CLOCK_TICK };
        let clock = (self.shared.clients() > 0).then_some(tick);
        let deadline = self.peers.values().map(Newcomer::deadline).min().map(left);
        let pause = self.paused.map(left);
        #[cfg(feature = "verbs")]
        let closing = self.rdma.as_ref().and_then(|rdma| rdma.closing_due()).map(left);
        #[cfg(not(feature = "verbs"))]
        let closing = None;
        clock.into_iter().chain(deadline).chain(pause).chain(closing).chain(self.summary.due_in()).min()
    }

    fn set_clock(&self) {
        self.table.publish_clock();
    }

    fn accept_some(&mut self, listener: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listeners.accept(listener) {
                Ok(Some((socket, peer))) => self.receive(socket, peer),
                Ok(None) => return,
                Err(error) => {
                    if let Some(suppressed) = self.complaints.permits(Instant::now()) {
                        warn!(%error, suppressed, "cannot accept a connection; trying again (descriptors: ulimit -n)");
                    }
                    return self.pause();
                }
            }
        }
    }

    /// Leaves new peers in the kernel's queues for a while.
    fn pause(&mut self) {
        self.listeners.unwatch(&self.poller);
        self.paused = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn resume(&mut self) {
        if self.paused.is_some_and(|until| until <= Instant::now()) {
            self.listeners.unwatch(&self.poller);
            self.paused = match self.listeners.watch(&self.poller) {
                Ok(()) => None,
                Err(_) => Some(Instant::now() + ACCEPT_PAUSE),
            };
        }
    }

    /// A new peer: who it is decides whether it is heard.
    fn receive(&mut self, socket: Socket, peer: Peer) {
        if let Err(refusal) = self.admission.permits(&peer) {
            return self.turn_away(&socket, peer, refusal);
        }
        self.make_room();
        let token = self.next_peer;
        self.next_peer += 1;
        if let Err(error) = self.poller.add(&socket, token) {
            return self.turn_away(&socket, peer, no_resources(&error));
        }
        self.peers.insert(token, Newcomer::new(socket, peer));
    }

    /// Frees a place for one more peer if all are taken. Whoever keeps silent must not keep others out.
    fn make_room(&mut self) {
        if self.peers.len() < HANDSHAKES_MAX {
            return;
        }
        let pending = self.peers.iter().map(|(&token, peer)| (token, peer.peer.origin()));
        let Some(token) = least_deserving(pending) else { return };
        // What it says may have arrived and not been read yet.
        self.hear(token);
        if let Some(peer) = self.peers.remove(&token) {
            self.drop_silent(&peer);
        }
    }

    /// Reads what a peer has to say so far.
    fn hear(&mut self, token: u64) {
        let Some(newcomer) = self.peers.get_mut(&token) else { return };
        let verdict = match newcomer.pending.feed(newcomer.socket.as_fd()) {
            Ok(None) => return,
            #[cfg(feature = "verbs")]
            Ok(Some(half)) if newcomer.invited.is_some() => return self.hear_half(token, &half.bytes),
            Ok(Some(hello)) => Hello::decode(&hello.bytes),
            Err(HelloError::Closed { .. } | HelloError::Os(_)) => {
                self.peers.remove(&token);
                return;
            }
            Err(HelloError::Length { .. } | HelloError::TooManyDescriptors { .. } | HelloError::Timeout) => {
                Err(HelloRefusal::Garbage)
            }
        };
        let Newcomer { socket, peer, .. } = self.peers.remove(&token).expect("it was just heard");
        self.poller.remove(&socket);
        if let Err((socket, refusal)) = self.answer(socket, peer, verdict) {
            self.turn_away(&socket, peer, refusal);
        }
    }

    /// Gives a peer what it wants.
    fn answer(
        &mut self,
        socket: Socket,
        peer: Peer,
        verdict: Result<Hello, HelloRefusal>,
    ) -> Result<(), (Socket, HelloRefusal)> {
        match (verdict.map(|hello| hello.wanted), socket) {
            (Err(refusal), socket) => Err((socket, refusal)),
            (Ok(Wanted::Shm), Socket::Unix(stream)) => {
                let (slot, channel) =
                    match self.reserve().and_then(|slot| Ok((slot, self.admission.channel()?))) {
                        Ok(lent) => lent,
                        Err(refusal) => return Err((Socket::Unix(stream), refusal)),
                    };
                let link = self.admission.welcome_shm(stream, self.next_session, &channel);
                self.open(link, peer, slot);
                Ok(())
            }
            (Ok(Wanted::Tcp), Socket::Tcp(stream)) => {
                let slot = match self.reserve() {
                    Ok(slot) => slot,
                    Err(refusal) => return Err((Socket::Tcp(stream), refusal)),
                };
                let region = self.table.region().read_only().clone();
                let link = self.admission.welcome_tcp(stream, self.next_session, region)?;
                self.open(link, peer, slot);
                Ok(())
            }
            #[cfg(feature = "verbs")]
            (Ok(wanted @ (Wanted::Rdma | Wanted::RdmaCm)), Socket::Tcp(stream)) => {
                self.invite(stream, peer, wanted)
            }
            (Ok(Wanted::Offer), Socket::Tcp(stream)) => {
                self.admission.make_offer(&stream);
                Ok(())
            }
            (Ok(wanted), socket) => Err((socket, HelloRefusal::NotOffered { wanted })),
        }
    }

    /// The right to be a client, if one is left.
    fn reserve(&self) -> Result<ClientSlot, HelloRefusal> {
        if self.shared.is_stopping() {
            return Err(HelloRefusal::ShuttingDown);
        }
        let limit = self.shared.clients_max() as u64;
        self.shared.reserve_client().ok_or(HelloRefusal::TooManyClients { limit })
    }

    /// Opens a session for a peer that was welcomed; there is no link if it did not take the answer.
    fn open(&mut self, link: Option<Link>, peer: Peer, slot: ClientSlot) {
        // It is gone, or has filled its own socket so that a hundred bytes do not fit: no client of ours.
        let Some(link) = link else { return };
        let number = self.next_session;
        self.next_session += 1;
        debug!(session = number, %peer, transport = link.name(), "client connected");
        self.shared.hand_over(Session::new(number, peer, link, slot), self.shared.idlest_worker());
    }

    /// Drops peers whose hello did not come in time.
    fn drop_late(&mut self) {
        let now = Instant::now();
        while let Some(oldest) = self.peers.first_entry().filter(|oldest| oldest.get().deadline() <= now) {
            let peer = oldest.remove();
            self.drop_silent(&peer);
        }
    }

    fn drop_silent(&mut self, newcomer: &Newcomer) {
        let waited_ms = newcomer.since.elapsed().as_millis() as u64;
        self.turn_away(&newcomer.socket, newcomer.peer, HelloRefusal::TooLate { waited_ms });
    }

    fn turn_away(&mut self, socket: &Socket, peer: Peer, refusal: HelloRefusal) {
        socket.refuse(refusal);
        if let Some(suppressed) = self.complaints.permits(Instant::now()) {
            warn!(%peer, reason = %refusal, suppressed, "turned a peer away");
        }
    }
}

impl Listeners {
    fn watch(&self, poller: &Poller) -> io::Result<()> {
        poller.add(&self.unix, UNIX_LISTENER)?;
        self.tcp.as_ref().map_or(Ok(()), |tcp| poller.add(tcp, TCP_LISTENER))
    }

    fn unwatch(&self, poller: &Poller) {
        poller.remove(&self.unix);
        if let Some(tcp) = &self.tcp {
            poller.remove(tcp);
        }
    }

    fn accept(&self, listener: u64) -> io::Result<Option<(Socket, Peer)>> {
        if listener == UNIX_LISTENER {
            let accepted = self.unix.accept()?;
            return Ok(accepted.map(|accepted| (Socket::Unix(accepted.stream), Peer::Local(accepted.peer))));
        }
        let tcp = self.tcp.as_ref().expect("it is watched, so it is there");
        Ok(tcp.accept()?.map(|(stream, address)| (Socket::Tcp(stream), Peer::Remote(address))))
    }
}

fn no_resources(error: &io::Error) -> HelloRefusal {
    HelloRefusal::NoResources { os_error: error.raw_os_error().unwrap_or(0).unsigned_abs() }
}
