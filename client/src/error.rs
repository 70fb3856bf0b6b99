//! Everything that can go wrong, with what was expected, what was found, and the remedy.

use kv_common::hello::HelloRefusal;
use kv_common::limits::KEY_MAX_BYTES;
use kv_common::probe::IdentityError;
use kv_common::transport::Broken;
use kv_common::wire::Refusal;

/// An error of the client library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The key is empty.
    #[error("the key is empty; keys have 1 to {KEY_MAX_BYTES} bytes")]
    KeyEmpty,
    /// The key is longer than the limit.
    #[error("the key has {found_bytes} bytes; keys have 1 to {KEY_MAX_BYTES} bytes")]
    KeyTooLong {
        /// Bytes of the key.
        found_bytes: usize,
    },
    /// The value is larger than the limit.
    #[error("the value has {found_bytes} bytes; values have at most {limit_bytes} bytes")]
    ValueTooLarge {
        /// Bytes of the value.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// The value is larger than the registered memory that it was wanted in.
    #[error(
        "the value has {value_bytes} bytes and the registered memory {room_bytes}; register memory for {value_bytes} bytes"
    )]
    BufferTooSmall {
        /// Bytes of the value.
        value_bytes: usize,
        /// Bytes of the memory.
        room_bytes: usize,
    },
    /// There is no memory for a value that is there.
    #[error("no memory for a value of {bytes} bytes")]
    NoMemory {
        /// Bytes of the value.
        bytes: usize,
    },
    /// Memory cannot be had, or the device does not register it.
    #[error("{bytes} bytes of memory for values cannot be registered: {reason}")]
    NotRegistered {
        /// Bytes of the memory.
        bytes: usize,
        /// Why: the limits, and the remedy.
        reason: String,
    },
    /// The URL names no server that this library can reach.
    #[error("cannot use the URL {url:?}: {reason}")]
    Url {
        /// The URL as given.
        url: String,
        /// What is wrong with it, and what is right.
        reason: String,
    },
    /// No connection: the server is not there, or silent, or no server.
    #[error("no connection to {endpoint}: {reason}")]
    Connect {
        /// Where.
        endpoint: String,
        /// Why, and the remedy.
        reason: String,
    },
    /// There is a server and it does not take this client.
    #[error("the server at {endpoint} refused the connection: {refusal}")]
    NotAdmitted {
        /// Where.
        endpoint: String,
        /// Its reason.
        refusal: HelloRefusal,
    },
    /// The URL asks for RDMA, which this build has not.
    #[error(
        "no connection to {endpoint}: this program was built without RDMA; build it with the feature `verbs`, or use \
         kv+tcp:// or kv://"
    )]
    WithoutRdma {
        /// Where.
        endpoint: String,
    },
    /// The region is not one that this library can read.
    #[error("the server's region cannot be read: {0}")]
    Identity(#[from] IdentityError),
    /// The connection is no more. Reads that were under way did not happen; see [`Error::OutcomeUnknown`] for writes.
    #[error("connection lost: {0}; the next calls connect again, unless that is switched off")]
    Broken(Broken),
    /// The server refused. Nothing was changed.
    #[error("refused by the server: {0}")]
    Refused(Refusal),
    /// The deadline passed before there was an answer, or before a large value came any further. Nothing was changed.
    #[error("no answer within {waited_ms} ms: the server is stopped, overloaded, or gone")]
    Timeout {
        /// How long was waited.
        waited_ms: u64,
    },
    /// A write was sent and its answer did not come: it may have happened, or happen still.
    #[error("the outcome of the write is unknown: {cause}; read the key to find out")]
    OutcomeUnknown {
        /// Why there is no answer.
        cause: String,
    },
    /// The handle was made before a fork and used in the child.
    #[error("this client belongs to the process before the fork; connect again in the child")]
    UsedAfterFork,
    /// More operations were submitted than a client may have in flight.
    #[error("{limit} operations are in flight, which is the limit; take completions by poll or wait first")]
    TooManyInFlight {
        /// The limit.
        limit: usize,
    },
}
