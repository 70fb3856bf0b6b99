//! The server: the only writer of the region, and the answer of last resort for readers.
//!
//! | module | what it holds |
//! |---|---|
//! | [`args`], [`config`] | what was written on the command line, and what it means |
//! | `startup` | [`start`]: from a configuration to a running server |
//! | `running` | [`Running`]: how a server comes to an end |
//! | `accept` | new peers and their handshakes, the clock, the summary line |
//! | `worker` | the loop that serves clients: its `turn` is the table of contents |
//! | `session`, `peer` | one client, and who it is |
//! | `link` | what carries its requests and replies |
//! | `shared` | what the threads share |
//! | [`dispatch`] | from a request to its replies |
//! | [`table`] | the table |

pub mod args;
pub mod config;
pub mod dispatch;
pub mod log;
pub mod table;

mod accept;
mod clock;
mod descriptors;
mod link;
mod peer;
mod poller;
mod rate;
#[cfg(feature = "verbs")]
mod rdma;
mod running;
mod session;
mod shared;
mod startup;
mod summary;
mod upkeep;
mod worker;

pub use descriptors::TooFewDescriptors;
pub use running::{Failed, Running, Stopper};
pub use startup::{StartError, start};
