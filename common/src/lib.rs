//! What server and client share: the region's layout, the rules for reading it, messages, and transports.
//!
//! The way of a GET: [`probe`] says what to read, a [`transport`] reads it, [`block`] says what it was.

#[cfg(not(loom))]
pub mod adversary;
#[cfg(not(loom))]
pub mod block;
#[cfg(not(loom))]
pub mod check;
#[cfg(not(loom))]
pub mod counter;
#[cfg(not(loom))]
pub mod endpoint;
#[cfg(not(loom))]
pub mod hash;
#[cfg(not(loom))]
pub mod hello;
#[cfg(not(loom))]
pub mod large;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
pub mod probe;
pub mod region;
pub mod ring;
pub mod sync;
#[cfg(not(loom))]
pub mod transport;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod verbs;
#[cfg(not(loom))]
pub mod wire;
