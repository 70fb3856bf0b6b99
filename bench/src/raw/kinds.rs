//! The three kinds of queue pairs, behind one trait.

use std::sync::Arc;

use kv_common::verbs::{
    AddressHandle, BatchError, Kind, LocalRange, Path, QueuePair, Rc, ReadyToSend, RemoteRange, RemoteRights,
    RemoteWritable, Request, Reset, SendBatch, Uc, Ud,
};

use super::error::RawError;
use super::plan::{Connection, Operation, PlanError};

/// The key of all datagrams. Whoever can send to the queue pair may; so does perftest.
const DATAGRAM_KEY: u32 = 0x1111_1111;

/// What one request moves.
pub(super) struct Transfer<'a> {
    pub(super) id: u64,
    pub(super) operation: Operation,
    pub(super) local: LocalRange<RemoteWritable>,
    /// The bytes, if the request carries them itself.
    pub(super) inline: Option<&'a [u8]>,
    /// For READ and WRITE.
    pub(super) remote: RemoteRange,
    pub(super) signalled: bool,
}

/// A kind of queue pair that can be measured.
pub(super) trait Measured: Kind + Sized {
    /// What a request needs to know of the peer.
    type Peer;

    /// True if a request can carry its bytes itself.
    const INLINE: bool;

    fn connect(
        pair: QueuePair<Self, Reset>,
        path: &Path,
        rights: RemoteRights,
    ) -> Result<(QueuePair<Self, ReadyToSend>, Self::Peer), RawError>;

    fn push(batch: &mut SendBatch<Self>, what: &Transfer<'_>, peer: &Self::Peer) -> Result<(), RawError>;
}

fn signalled(request: Result<Request<'_>, BatchError>, what: &Transfer<'_>) -> Result<(), RawError> {
    let request = request?;
    if what.signalled {
        request.signalled();
    }
    Ok(())
}

impl Measured for Rc {
    type Peer = ();
    const INLINE: bool = true;

    fn connect(
        pair: QueuePair<Self, Reset>,
        path: &Path,
        rights: RemoteRights,
    ) -> Result<(QueuePair<Self, ReadyToSend>, ()), RawError> {
        Ok((pair.initialize(path.port, rights)?.connect(path)?, ()))
    }

    #[inline]
    fn push(batch: &mut SendBatch<Self>, what: &Transfer<'_>, (): &()) -> Result<(), RawError> {
        let request = match (what.operation, what.inline) {
            (Operation::Read, _) => batch.read(what.id, what.local, what.remote),
            (Operation::Write, None) => batch.write(what.id, what.local, what.remote),
            (Operation::Write, Some(bytes)) => batch.write_inline(what.id, bytes, what.remote),
            (Operation::Send, None) => batch.send(what.id, what.local),
            (Operation::Send, Some(bytes)) => batch.send_inline(what.id, bytes),
        };
        signalled(request, what)
    }
}

impl Measured for Uc {
    type Peer = ();
    const INLINE: bool = true;

    fn connect(
        pair: QueuePair<Self, Reset>,
        path: &Path,
        rights: RemoteRights,
    ) -> Result<(QueuePair<Self, ReadyToSend>, ()), RawError> {
        Ok((pair.initialize(path.port, rights)?.connect(path)?, ()))
    }

    #[inline]
    fn push(batch: &mut SendBatch<Self>, what: &Transfer<'_>, (): &()) -> Result<(), RawError> {
        let request = match (what.operation, what.inline) {
            (Operation::Read, _) => return Err(PlanError::ReadUnreliable(Connection::Uc).into()),
            (Operation::Write, None) => batch.write(what.id, what.local, what.remote),
            (Operation::Write, Some(bytes)) => batch.write_inline(what.id, bytes, what.remote),
            (Operation::Send, None) => batch.send(what.id, what.local),
            (Operation::Send, Some(bytes)) => batch.send_inline(what.id, bytes),
        };
        signalled(request, what)
    }
}

impl Measured for Ud {
    type Peer = (Arc<AddressHandle>, u32);
    const INLINE: bool = false;

    fn connect(
        pair: QueuePair<Self, Reset>,
        path: &Path,
        _rights: RemoteRights,
    ) -> Result<(QueuePair<Self, ReadyToSend>, Self::Peer), RawError> {
        let address = AddressHandle::create(pair.domain(), path)?;
        let pair = pair.open(path.port, DATAGRAM_KEY, path.local_sequence)?;
        Ok((pair, (address, path.remote_queue_pair)))
    }

    #[inline]
    fn push(
        batch: &mut SendBatch<Self>,
        what: &Transfer<'_>,
        (address, queue_pair): &Self::Peer,
    ) -> Result<(), RawError> {
        match what.operation {
            Operation::Read => Err(PlanError::ReadUnreliable(Connection::Ud).into()),
            Operation::Write => Err(PlanError::WriteDatagram.into()),
            Operation::Send => {
                signalled(batch.send_to(what.id, what.local, address, *queue_pair, DATAGRAM_KEY), what)
            }
        }
    }
}
