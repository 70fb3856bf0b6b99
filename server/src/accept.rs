//! The accept thread: new peers, their handshakes, the superblock's clock, and a line about what happened.
//!
//! Peers that have not said their hello are served side by side; none waits for another, and each has until its
//! deadline, or until its place is needed: then the user who takes most places loses the oldest of them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::hello::{Answer, Hello, HelloRefusal, Wanted, Welcome};
use kv_common::limits::{HANDSHAKE_TIMEOUT_NS, HANDSHAKES_MAX};
use kv_common::transport::handshake::{HelloError, OutgoingHello, PendingHello};
use kv_common::transport::shm::channel::ChannelLayout;
use kv_common::transport::shm::credentials::PeerCredentials;
use kv_common::transport::shm::doorbell::Doorbell;
use kv_common::transport::shm::mapping::{ChannelMemory, CreateError, create_channel};
use kv_common::transport::shm::socket::{Accepted, Listener};
use tracing::{debug, warn};

use crate::clock::wall_clock_ns;
use crate::config::Allow;
use crate::link::{Link, ShmLink};
use crate::peer::Peer;
use crate::poller::Poller;
use crate::rate::RateLimit;
use crate::session::Session;
use crate::shared::{ClientSlot, Shared};
use crate::summary::Summary;
use crate::table::Table;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_nanos(HANDSHAKE_TIMEOUT_NS);
/// How often the superblock's clock is set while clients are connected.
const CLOCK_TICK: Duration = Duration::from_millis(20);
/// Peers that are accepted before those accepted earlier have their turn.
const ACCEPTS_PER_TURN: usize = 64;
/// How long nobody is accepted after the system refused to.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = 0;
const WAKER: u64 = 1;
const FIRST_PEER: u64 = 2;

/// What every client is told, and who may be one.
pub(crate) struct Admission {
    /// What is the same in each welcome; the session number is not.
    pub(crate) welcome: Welcome,
    pub(crate) channel: ChannelLayout,
    /// The sealed region.
    pub(crate) region: OwnedFd,
    pub(crate) allow: Allow,
    pub(crate) own_uid: u32,
}

/// The accept thread's state.
pub(crate) struct Acceptor {
    shared: Arc<Shared>,
    table: Arc<Table>,
    listener: Listener,
    admission: Admission,
    poller: Poller,
    /// By token, hence the oldest first.
    peers: BTreeMap<u64, Newcomer>,
    next_peer: u64,
    next_session: u64,
    /// Whether the listener is watched; if not, until when.
    paused: Option<Instant>,
    summary: Summary,
    complaints: RateLimit,
    tokens: Vec<u64>,
}

/// Someone who has not said hello yet.
struct Newcomer {
    stream: UnixStream,
    credentials: PeerCredentials,
    pending: PendingHello,
    since: Instant,
}

impl Newcomer {
    fn deadline(&self) -> Instant {
        self.since + HANDSHAKE_TIMEOUT
    }
}

impl Acceptor {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        table: &Arc<Table>,
        listener: Listener,
        admission: Admission,
    ) -> std::io::Result<Acceptor> {
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER)?;
        poller.add(&shared.accept_waker, WAKER)?;
        Ok(Acceptor {
            shared: Arc::clone(shared),
            table: Arc::clone(table),
            listener,
            admission,
            poller,
            peers: BTreeMap::new(),
            next_peer: FIRST_PEER,
            next_session: 1,
            paused: None,
            summary: Summary::new(table),
            complaints: RateLimit::default(),
            tokens: Vec::new(),
        })
    }

    /// Accepts until the server is told to stop; then nobody is accepted any more, but the path stays taken.
    pub(crate) fn run(mut self) {
        while !self.shared.is_stopping() {
            self.turn();
        }
        for peer in self.peers.values() {
            refuse(&peer.stream, HelloRefusal::ShuttingDown);
        }
        *self.shared.retired_listener.lock() = Some(self.listener);
    }

    fn turn(&mut self) {
        let mut tokens = std::mem::take(&mut self.tokens);
        self.poller
            .wait(self.timeout(), &mut tokens)
            .expect("waiting for descriptors of our own does not fail");
        self.set_clock();
        for token in tokens.drain(..) {
            match token {
                LISTENER => self.accept_some(),
                WAKER => self.shared.accept_waker.clear(),
                peer => self.hear(peer),
            }
        }
        self.tokens = tokens;
        self.drop_late();
        self.resume();
        self.summary.tick(&self.table, self.shared.clients());
    }

    fn timeout(&self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let clock = (self.shared.clients() > 0).then_some(CLOCK_TICK);
        let deadline = self.peers.values().map(Newcomer::deadline).min().map(left);
        let pause = self.paused.map(left);
        clock.into_iter().chain(deadline).chain(pause).chain(self.summary.due_in()).min()
    }

    fn set_clock(&self) {
        self.table.set_clock(wall_clock_ns());
    }

    fn accept_some(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listener.accept() {
                Ok(Some(accepted)) => self.receive(accepted),
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

    /// Leaves new peers in the kernel's queue for a while.
    fn pause(&mut self) {
        self.poller.remove(&self.listener);
        self.paused = Some(Instant::now() + ACCEPT_PAUSE);
    }

    fn resume(&mut self) {
        if self.paused.is_some_and(|until| until <= Instant::now()) {
            self.paused = match self.poller.add(&self.listener, LISTENER) {
                Ok(()) => None,
                Err(_) => Some(Instant::now() + ACCEPT_PAUSE),
            };
        }
    }

    /// A new peer: its user decides whether it is heard.
    fn receive(&mut self, accepted: Accepted) {
        let Accepted { stream, peer: credentials } = accepted;
        if !self.admission.allow.permits(credentials.uid, self.admission.own_uid) {
            return self.turn_away(&stream, credentials, HelloRefusal::NotPermitted { uid: credentials.uid });
        }
        self.make_room();
        let token = self.next_peer;
        self.next_peer += 1;
        if let Err(error) = self.poller.add(&stream, token) {
            return self.turn_away(&stream, credentials, no_resources(&error));
        }
        let (pending, since) = (PendingHello::new(0), Instant::now());
        self.peers.insert(token, Newcomer { stream, credentials, pending, since });
    }

    /// Frees a place for one more peer if all are taken. Whoever keeps silent must not keep others out.
    fn make_room(&mut self) {
        if self.peers.len() < HANDSHAKES_MAX {
            return;
        }
        let pending = self.peers.iter().map(|(&token, peer)| (token, peer.credentials.uid));
        let Some(token) = least_deserving(pending) else { return };
        // What it says may have arrived and not been read yet.
        self.hear(token);
        if let Some(peer) = self.peers.remove(&token) {
            self.drop_silent(&peer);
        }
    }

    /// Reads what a peer has to say so far.
    fn hear(&mut self, token: u64) {
        let Some(peer) = self.peers.get_mut(&token) else { return };
        let verdict = match peer.pending.feed(peer.stream.as_fd()) {
            Ok(None) => return,
            Ok(Some(hello)) => Hello::decode(&hello.bytes),
            Err(HelloError::Closed { .. } | HelloError::Os(_)) => {
                self.peers.remove(&token);
                return;
            }
            Err(HelloError::Length { .. } | HelloError::TooManyDescriptors { .. } | HelloError::Timeout) => {
                Err(HelloRefusal::Garbage)
            }
        };
        let Newcomer { stream, credentials, .. } = self.peers.remove(&token).expect("it was just heard");
        self.poller.remove(&stream);
        match verdict.and_then(|hello| self.lend(hello.wanted)) {
            Ok((slot, channel)) => self.welcome(stream, credentials, slot, &channel),
            Err(refusal) => self.turn_away(&stream, credentials, refusal),
        }
    }

    /// What a new client needs, if there is any left.
    fn lend(&self, wanted: Wanted) -> Result<(ClientSlot, ChannelMemory), HelloRefusal> {
        if wanted != Wanted::Shm {
            return Err(HelloRefusal::NotOffered { wanted });
        }
        if self.shared.is_stopping() {
            return Err(HelloRefusal::ShuttingDown);
        }
        let limit = self.shared.clients_max() as u64;
        let slot = self.shared.reserve_client().ok_or(HelloRefusal::TooManyClients { limit })?;
        let channel = create_channel(self.admission.channel.len_bytes()).map_err(|error| match error {
            CreateError::Os { source, .. } => no_resources(&source),
            error => no_resources(&std::io::Error::other(error)),
        })?;
        Ok((slot, channel))
    }

    /// Opens a session for a peer that said hello.
    fn welcome(
        &mut self,
        stream: UnixStream,
        peer: PeerCredentials,
        slot: ClientSlot,
        channel: &ChannelMemory,
    ) {
        let number = self.next_session;
        let welcome = Answer::Welcome(Welcome { session: number, ..self.admission.welcome });
        let descriptors = [self.admission.region.as_fd(), channel.fd.as_fd()];
        let mut answer = OutgoingHello::new(&welcome.encode()).expect("an answer has a hello's length");
        if !matches!(answer.feed(stream.as_fd(), &descriptors), Ok(true)) {
            // It is gone, or has filled its own socket so that a hundred bytes do not fit: no client of ours.
            return;
        }
        self.next_session += 1;
        debug!(session = number, pid = peer.pid.unwrap_or(0), uid = peer.uid, "client connected");
        let end = self.admission.channel.server_end(&channel.words);
        let link = Link::Shm(ShmLink::new(end, Doorbell::new(stream)));
        self.shared.hand_over(Session::new(number, Peer::Local(peer), link, slot));
    }

    /// Drops peers whose hello did not come in time.
    fn drop_late(&mut self) {
        let now = Instant::now();
        while let Some(oldest) = self.peers.first_entry().filter(|oldest| oldest.get().deadline() <= now) {
            let peer = oldest.remove();
            self.drop_silent(&peer);
        }
    }

    fn drop_silent(&mut self, peer: &Newcomer) {
        let waited_ms = peer.since.elapsed().as_millis() as u64;
        self.turn_away(&peer.stream, peer.credentials, HelloRefusal::TooLate { waited_ms });
    }

    fn turn_away(&mut self, stream: &UnixStream, peer: PeerCredentials, refusal: HelloRefusal) {
        refuse(stream, refusal);
        if let Some(suppressed) = self.complaints.permits(Instant::now()) {
            warn!(pid = peer.pid.unwrap_or(0), uid = peer.uid, reason = %refusal, suppressed, "turned a peer away");
        }
    }
}

/// Of the user with the most of the `pending` tokens, each with its user and the oldest first, the oldest.
fn least_deserving(pending: impl Iterator<Item = (u64, u32)> + Clone) -> Option<u64> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for (_, uid) in pending.clone() {
        *counts.entry(uid).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    pending.into_iter().find(|(_, uid)| counts[uid] == most).map(|(token, _)| token)
}

/// Says why, if the socket takes it at once.
fn refuse(stream: &UnixStream, refusal: HelloRefusal) {
    if let Ok(mut answer) = OutgoingHello::new(&Answer::Refused(refusal).encode()) {
        let _ = answer.feed(stream.as_fd(), &[]);
    }
}

fn no_resources(error: &std::io::Error) -> HelloRefusal {
    HelloRefusal::NoResources { os_error: error.raw_os_error().unwrap_or(0).unsigned_abs() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_with_the_most_silent_peers_loses_the_oldest() {
        let loser = |pending: &[(u64, u32)]| least_deserving(pending.iter().copied());
        assert_eq!(loser(&[]), None);
        assert_eq!(loser(&[(3, 7), (4, 7)]), Some(3));
        assert_eq!(loser(&[(2, 0), (3, 7), (4, 0), (5, 7), (6, 7)]), Some(3));
        assert_eq!(loser(&[(2, 7), (3, 0), (5, 0), (6, 7)]), Some(2), "as many each: the oldest of all");
    }
}
