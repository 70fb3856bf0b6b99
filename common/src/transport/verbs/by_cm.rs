//! The client's side of connecting by rdma_cm: to where the server waits, with the secret that it told.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::connect::{ConnectError, Joined, Own, Talk};
use super::meeting::{Meeting, Protocol};
use crate::limits::HANDSHAKE_TIMEOUT_NS;
use crate::verbs::cm::{CmError, CmOptions, Resolved};
use crate::verbs::{Endpoint, PathError, QueuePair, Rc, RemoteRights, Reset, RetryPolicy};

/// How long the server's reason for a rejection is waited for: it was sent before the rejection.
const REASON_TIMEOUT: Duration = Duration::from_millis(250);

impl ConnectError {
    /// True if beginning anew may help: a packet of rdma_cm was lost, which the system would repeat after seconds only; or
    /// the server's system has to forget a connection of before; or the port that rdma_cm chose for this side is one of
    /// TCP's that is taken, which matters on iWARP.
    pub fn is_passing(&self) -> bool {
        match self {
            ConnectError::Cm(CmError::Timeout { .. }) => true,
            ConnectError::Cm(CmError::Rejected { reason, .. }) => *reason == STALE_CONNECTION,
            ConnectError::Cm(CmError::Verb(error)) => error.errno() == Some(libc::EADDRINUSE),
            _ => false,
        }
    }
}

/// In the terms of the InfiniBand specification.
const STALE_CONNECTION: i32 = 10;

impl Talk<'_> {
    /// Connects the queue pairs by rdma_cm.
    pub(super) fn meet(
        &self,
        own: &Own,
        pair: QueuePair<Rc, Reset>,
        meeting: &Meeting,
    ) -> Result<Joined, ConnectError> {
        let context = self.port.context();
        let protocol = Protocol::of(context);
        if protocol != meeting.protocol {
            let device = context.device().name.clone();
            return Err(ConnectError::OtherProtocol { device, own: protocol, server: meeting.protocol });
        }
        let (mut peer, mut source) = (self.address(TcpSide::Server)?, self.address(TcpSide::Own)?);
        peer.set_port(meeting.port);
        source.set_port(0);
        let resolved = Resolved::resolve(peer, Some(source), self.left())?;
        // The server READs from the staging area, and writes nowhere.
        let mut pair = resolved.initialize(pair, RemoteRights::Read)?;
        own.post_receives(&mut pair)?;
        let endpoint = Endpoint::new(pair.number(), self.port)?;
        self.tell(&own.half(endpoint))?;
        let options = CmOptions {
            rights: RemoteRights::Read,
            reads_started_max: endpoint.reads_started_max.min(self.server.endpoint.reads_served_max),
            reads_served_max: endpoint.reads_served_max.min(self.server.endpoint.reads_started_max),
            mtu_max: self.mtu(),
            retry: RetryPolicy::default(),
            private_data: &meeting.secret.to_request(),
        };
        let connected = resolved.connect(pair, &options, self.left()).map_err(|why| self.rejected(why))?;
        let reads_max = connected.connection.reads_started_max();
        if reads_max == 0 {
            let (started, served) = (options.reads_started_max, self.server.endpoint.reads_served_max);
            return Err(PathError::NoReads { started, served }.into());
        }
        self.hear_verdict()?;
        let path = format!(
            "by rdma_cm from {} to {peer}, MTU {}, READs {reads_max} out and {} in",
            source.ip(),
            self.mtu().bytes(),
            connected.connection.reads_served_max()
        );
        Ok(Joined { pair: connected.pair, cm: Some(connected.connection), reads_max, path })
    }

    /// What is left of the time for one step: the server does not wait longer.
    fn left(&self) -> Duration {
        let left = self.deadline.saturating_duration_since(Instant::now());
        left.min(Duration::from_nanos(HANDSHAKE_TIMEOUT_NS))
    }

    /// The server's own words, if it has said why it rejected.
    fn rejected(&self, why: CmError) -> ConnectError {
        if !matches!(why, CmError::Rejected { .. }) {
            return why.into();
        }
        let deadline = self.deadline.min(Instant::now() + REASON_TIMEOUT);
        match (Talk { deadline, ..*self }).hear_verdict() {
            Err(refused @ ConnectError::Refused { .. }) => refused,
            _ => why.into(),
        }
    }

    fn address(&self, side: TcpSide) -> Result<SocketAddr, ConnectError> {
        let address = match side {
            TcpSide::Own => self.control.local_addr(),
            TcpSide::Server => self.control.peer_addr(),
        };
        Ok(address.map_err(crate::transport::handshake::HelloError::from)?)
    }
}

/// An end of the control connection.
enum TcpSide {
    Own,
    Server,
}
