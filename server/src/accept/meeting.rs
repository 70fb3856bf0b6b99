//! Peers whose queue pairs rdma_cm connects: half and request come by different ways, in any order, and belong together by a
//! secret. Everything comes by one descriptor, and nothing is waited for.
//!
//! Whoever reaches the address can ask for connections. A request without the secret of a peer that waits costs this thread
//! a rejection, a bounded number of times in a turn; the kernel keeps a bounded number waiting and rejects the others itself.

use std::time::Instant;

use kv_common::transport::handshake::PendingHello;
use kv_common::transport::verbs::exchange::Half;
use kv_common::transport::verbs::meeting::{self, Protocol, Secret};
use kv_common::verbs::Reset;
use kv_common::verbs::cm::Incoming;
use tracing::{debug, error, warn};

use super::Acceptor;
use super::invited::{By, Invited};
use crate::rdma::{Introduction, RdmaError};

/// Requests that are looked at before others have their turn.
const REQUESTS_PER_TURN: usize = 64;
/// What a request is told that belongs to nobody.
const UNKNOWN: &str =
    "no session waits for this request: its secret is unknown, used, or too old; say hello anew";

/// What of a peer is there, and what is waited for.
pub(super) struct Meeting {
    introduction: Introduction<Reset>,
    secret: Secret,
    half: Option<Half>,
    incoming: Option<Incoming>,
}

impl Meeting {
    /// Also gives what to tell the peer.
    pub(super) fn new(
        introduction: Introduction<Reset>,
        port: u16,
        protocol: Protocol,
    ) -> Result<(Meeting, [u8; 24]), RdmaError> {
        let secret = Secret::new()?;
        let told = meeting::Meeting { port, protocol, secret }.encode();
        Ok((Meeting { introduction, secret, half: None, incoming: None }, told))
    }

    /// True if this is the secret that it waits for. It is good for one request.
    fn awaits(&self, secret: Secret) -> bool {
        self.incoming.is_none() && self.secret == secret
    }
}

impl Acceptor {
    /// Takes requests.
    pub(super) fn hear_cm(&mut self) {
        for _ in 0..REQUESTS_PER_TURN {
            let listener = self.rdma.as_ref().and_then(|rdma| rdma.cm().ok()).expect("it is watched");
            match listener.next() {
                Ok(None) => return,
                Ok(Some(incoming)) => self.hear_request(incoming),
                Err(error) => {
                    error!(%error, "rdma_cm cannot be heard any more; clients with cm=rdma have to wait for a restart");
                    return self.poller.remove(listener.fd());
                }
            }
        }
    }

    fn hear_request(&mut self, incoming: Incoming) {
        let secret = Secret::from_request(incoming.private_data());
        let token = secret.and_then(|secret| {
            self.peers.iter_mut().find_map(|(&token, newcomer)| {
                let by = newcomer.invited.as_ref().map(|invited| &invited.by);
                matches!(by, Some(By::Meeting(meeting)) if meeting.awaits(secret)).then_some(token)
            })
        });
        let Some(token) = token else { return self.reject(incoming) };
        if let Some(meeting) = self.meeting(token) {
            meeting.incoming = Some(incoming);
        }
        if !self.join(token) {
            // Its half may have arrived and not been read yet.
            self.hear(token);
        }
    }

    fn reject(&mut self, incoming: Incoming) {
        let peer = incoming.peer();
        let rejected = incoming.reject(UNKNOWN.as_bytes());
        if let Some(suppressed) = self.complaints.permits(Instant::now()) {
            warn!(?peer, suppressed, "rejected a connection request by rdma_cm: its secret is nobody's");
        }
        if let Err(error) = rejected {
            debug!(%error, "the peer of a request has given up before it was rejected");
        }
    }

    /// A peer has told its half.
    pub(super) fn half_to_meeting(&mut self, token: u64, half: Half) {
        match self.meeting(token) {
            Some(meeting) if meeting.half.is_none() => meeting.half = Some(half),
            _ => return self.turn_away_invited(token, "it spoke out of turn".to_owned()),
        }
        // From now on the control connection is watched for its end.
        self.peers.get_mut(&token).expect("it is there").pending = PendingHello::new(0);
        self.join(token);
    }

    fn meeting(&mut self, token: u64) -> Option<&mut Meeting> {
        match &mut self.peers.get_mut(&token)?.invited.as_mut()?.by {
            By::Meeting(meeting) => Some(meeting),
            _ => None,
        }
    }

    /// Accepts a peer's request, if that and its half are there. False if one is waited for.
    fn join(&mut self, token: u64) -> bool {
        if self.meeting(token).is_none_or(|meeting| meeting.half.is_none() || meeting.incoming.is_none()) {
            return false;
        }
        let Some((newcomer, Invited { by: By::Meeting(meeting), place })) = self.take_invited(token) else {
            unreachable!("it was just looked at")
        };
        let Meeting { introduction, half: Some(half), incoming: Some(incoming), .. } = meeting else {
            unreachable!("it was just looked at")
        };
        match introduction.accept(incoming, half) {
            Ok(connected) => self.open_invited(newcomer, place, connected),
            Err(reason) => self.refuse_invited(&newcomer, reason),
        }
        true
    }
}
