//! What server and client share: the region's layout, the rules for reading it, messages, and transports.
//!
//! The way of a GET: [`probe`] says what to read, a [`transport`] reads it, [`verify`] says what it was.

#[cfg(not(loom))]
pub mod adversary;
pub mod region;
pub mod ring;
pub mod sync;
#[cfg(not(loom))]
pub mod transport;
