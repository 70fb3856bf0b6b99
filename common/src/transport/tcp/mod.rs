//! Client and server by a TCP connection: everything works everywhere, but READs are answered by the server's CPU.
//!
//! | module | what it holds |
//! |---|---|
//! | [`frame`] | the bytes of a frame, and what no frame can be |
//! | [`stream`] | a connection that never waits, used by both sides |
//! | [`socket`] | listening and connecting |
//! | [`client`] | the client's side |

pub mod client;
pub mod frame;
pub mod socket;
pub mod stream;
