//! Verbs: safe wrappers over libibverbs and librdmacm, used by both sides and bypassed nowhere.
//!
//! What a value of these types promises:
//!
//! * **What it depends on lives.** A protection domain keeps its context, a memory region its domain and its memory, a
//!   queue pair its domain and its queues. Whatever the order in which a program drops them, the device's objects end
//!   in the order that the verbs ask for.
//! * **A queue pair's type knows its state**, and its kind: requests can be posted only when it is ready to send, a READ
//!   only on a reliable connection, a READ only into memory that the device may write to, and a remote key exists only
//!   for memory that was registered for remote access.
//! * **The device never touches memory that was given back.** Registered memory is only reachable as words that are loaded
//!   and stored atomically ([`crate::region`]), so a device that writes to it at any moment is no data race. (The one
//!   exception, [`crate::transport::user_memory`], has its own proof that no device writes when it is looked at.) It is
//!   deregistered before it is unmapped, and after that the device refuses the key. So an operation in flight never needs
//!   a borrow to be sound; it needs one to be *useful*: give a buffer to another use only after its completion, or after
//!   the queue pair was driven to the error state and its completions were taken ([`QueuePair::into_error`]).
//! * **Errors say which verb, with its errno, and a remedy**; each completion status has its name, usual cause and remedy.

pub mod cm;

mod access;
mod address_handle;
mod async_event;
mod completion;
mod completion_channel;
mod completion_queue;
mod context;
mod device;
mod domain;
mod endpoint;
mod error;
mod gid;
mod gid_rank;
mod memory;
mod memory_limits;
mod path;
mod port;
mod queue_pair;
mod receive;
mod requests;
mod shared_receive;
mod status;

pub use access::{
    Access, Local, ReadSink, ReadTarget, Remote, RemoteReadable, RemoteWritable, SendOnly, Writable,
};
pub use address_handle::AddressHandle;
pub use async_event::{AsyncEvent, QueuePairEvent};
pub use completion::{Completed, Completion, CompletionError};
pub use completion_channel::CompletionChannel;
pub use completion_queue::{CompletionQueue, Completions};
pub use context::{Context, DeviceAttributes, OpenError};
pub use device::{Absence, Device, NodeType, Transport, absence, devices};
pub use domain::ProtectionDomain;
pub use endpoint::{ENDPOINT_BYTES, Endpoint, EndpointError, LocalPort, LocalPortError};
pub use error::VerbError;
pub use gid::{Gid, GidEntry, GidKind};
pub use gid_rank::{GidChoice, Rejected, Rejection, rank_gids};
pub use memory::{LocalRange, MemoryRegion, OutOfRange, RemoteMemory, RemoteRange, anonymous_words};
pub use memory_limits::{MemoryLimits, RegisterError};
pub use path::{Path, PathError, RetryPolicy};
pub use port::{LinkLayer, Mtu, PortAttributes, PortState};
pub use queue_pair::{
    Capacity, Connected, Error, Init, Kind, Posts, QueuePair, QueuePairOptions, Rc, ReadyToReceive,
    ReadyToSend, Receives, RemoteRights, Reset, State, Uc, Ud, Writes,
};
pub use receive::ReceiveBatch;
pub use requests::{BatchError, PostError, Request, SendBatch};
pub use shared_receive::SharedReceiveQueue;
pub use status::CompletionStatus;
