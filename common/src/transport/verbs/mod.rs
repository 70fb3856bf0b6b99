//! Client and server by RDMA: GETs are READs that the server's processor never sees, requests are SENDs.
//!
//! | module | what it holds |
//! |---|---|
//! | [`exchange`] | what the two sides tell each other over the control connection after the hello |
//! | [`meeting`] | how they find each other if rdma_cm connects them |
//! | [`port`] | which device, port and GID, and why |
//! | [`connect`] | the client's side of connecting, over the control connection or by rdma_cm |
//! | [`client`] | the client's connection |
//!
//! The TCP connection of the hello stays open as the *control connection*: its end is the end of the session, which both
//! sides notice at once, while a queue pair only notices a dead peer when it waits for it.
//!
//! # Credits
//! No message is ever sent that the other side has no receive for. A client has at most as many requests in flight as the
//! server granted, and the server posts each receive anew before it answers. A server has at most as many replies in flight
//! as the client has receives; the client tells it, in a SEND of [`exchange::CREDIT_BYTES`] bytes, how many it has taken
//! since the beginning, each time that half of them are new. So of these at most [`exchange::CREDITS_IN_FLIGHT_MAX`] are in flight.

mod by_cm;
pub mod client;
pub mod connect;
pub mod exchange;
pub mod meeting;
pub mod port;
mod read_ring;
mod work;
