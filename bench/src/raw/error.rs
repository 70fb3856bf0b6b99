//! Why a measurement of the bare verbs did not come to an end.

use thiserror::Error;

use super::plan::PlanError;
use crate::report::Exit;

/// Why.
#[derive(Debug, Error)]
pub enum RawError {
    /// What cannot be measured.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The program has no RDMA.
    #[error(
        "this kv-bench was built without the feature `verbs`; build it with that (cargo build -p kv-bench)"
    )]
    NoVerbs,
    /// Something on this side.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Here(#[from] HereError),
    /// Something between the sides.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Between(#[from] BetweenError),
    /// Something on the other side.
    #[error("the other side refuses: {0}")]
    Refused(String),
}

/// A device, or memory, of this side.
#[cfg(feature = "verbs")]
#[derive(Debug, Error)]
pub enum HereError {
    /// No device.
    #[error(transparent)]
    Open(#[from] kv_common::verbs::OpenError),
    /// No port or GID.
    #[error(transparent)]
    Port(#[from] kv_common::verbs::LocalPortError),
    /// No way to the peer.
    #[error(transparent)]
    Path(#[from] kv_common::verbs::PathError),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] kv_common::verbs::VerbError),
    /// Memory cannot be registered.
    #[error(transparent)]
    Register(#[from] kv_common::verbs::RegisterError),
    /// There is no memory.
    #[error("no memory for the buffers: {0}")]
    Memory(#[source] std::io::Error),
    /// The peer's memory is smaller than it has to be.
    #[error("the peer lends less memory than the measurement needs: {0}")]
    Range(#[from] kv_common::verbs::OutOfRange),
    /// A request does not fit its batch.
    #[error(transparent)]
    Batch(#[from] kv_common::verbs::BatchError),
    /// A request was not posted.
    #[error(transparent)]
    Post(#[from] kv_common::verbs::PostError),
    /// The device is connected by rdma_cm alone.
    #[error("{0} is an iWARP device, whose queue pairs only rdma_cm can connect; use perftest with -R")]
    Iwarp(String),
    /// It measured nothing.
    #[error("the clock told no times apart")]
    NoTimes,
}

/// The connections to the other side.
#[cfg(feature = "verbs")]
#[derive(Debug, Error)]
pub enum BetweenError {
    /// The address to listen on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// It.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The address to connect to.
    #[error("cannot connect to {address}: {source}; is `kv-bench raw --listen {address}` running there?")]
    Connect {
        /// It.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The control connection failed.
    #[error("the control connection failed: {0}")]
    Control(#[source] std::io::Error),
    /// The peer ended.
    #[error("the other side closed the control connection; what it printed says why")]
    Closed,
    /// The peer does not answer.
    #[error("the other side sent no {awaited} within {waited_s} s")]
    Silent {
        /// What should have come.
        awaited: &'static str,
        /// How long was waited.
        waited_s: u64,
    },
    /// What the peer sent is no message.
    #[error(transparent)]
    Wire(#[from] super::wire::WireError),
    /// What the peer sent comes at the wrong moment.
    #[error("the other side sent {found} where {awaited} should come")]
    Unexpected {
        /// What should have come.
        awaited: &'static str,
        /// What came.
        found: &'static str,
    },
    /// A request failed.
    #[error(transparent)]
    Completion(#[from] kv_common::verbs::CompletionError),
    /// Nothing completes, or arrives.
    #[error(
        "nothing came for {waited_s} s ({awaited}); on UC and UD a message that is lost is not repeated, and a ping-pong \
         then waits for ever: try again, or measure on rc"
    )]
    Stalled {
        /// What should have come.
        awaited: &'static str,
        /// How long was waited.
        waited_s: u64,
    },
}

impl RawError {
    /// How the program ends.
    pub const fn exit(&self) -> Exit {
        match self {
            Self::Plan(_) => Exit::Usage,
            #[cfg(feature = "verbs")]
            Self::Here(_) => Exit::Refused,
            #[cfg(feature = "verbs")]
            Self::Between(_) => Exit::NoConnection,
            Self::NoVerbs | Self::Refused(_) => Exit::Refused,
        }
    }
}

/// Errors of the wrappers are this side's, or between the sides.
#[cfg(feature = "verbs")]
macro_rules! through {
    ($($outer:ident: $($inner:ty)*;)*) => {$($(
        impl From<$inner> for RawError {
            fn from(error: $inner) -> Self {
                Self::$outer(error.into())
            }
        }
    )*)*};
}

#[cfg(feature = "verbs")]
through! {
    Here: kv_common::verbs::OpenError kv_common::verbs::LocalPortError kv_common::verbs::PathError
        kv_common::verbs::VerbError kv_common::verbs::RegisterError kv_common::verbs::OutOfRange
        kv_common::verbs::BatchError kv_common::verbs::PostError;
    Between: super::wire::WireError kv_common::verbs::CompletionError;
}
