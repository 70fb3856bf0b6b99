//! Client and server on one host: the region is mapped read-only by the client, requests and replies go through a ring
//! in memory that only these two share, and a Unix socket hands out the descriptors.
//!
//! | module | what it holds |
//! |---|---|
//! | [`mapping`] | making, sealing, prefaulting and checking memory that is shared |
//! | [`channel`] | what lies where in a client's private memory: two rings and a staging area |
//! | [`socket`] | the Unix socket: one server per path |
//! | [`credentials`] | who is at the other end |
//! | [`doorbell`] | waking a peer that sleeps, noticing one that is gone |
//! | [`owner`] | the word by which clients see that the server's process is gone |
//! | [`spin`] | how long to look before going to sleep |

pub mod channel;
pub mod client;
pub mod credentials;
pub mod doorbell;
mod hugepages;
mod mapped;
pub mod mapping;
pub mod owner;
mod prefault;
pub mod socket;
pub mod spin;
