//! The programs as processes, and what becomes of the others when one of them is stopped, killed or hostile.

#[path = "../live/mod.rs"]
mod live;

mod bench;
mod crowd;
mod drained;
mod forked;
mod hostile;
mod killed_client;
mod killed_server;
mod other_user;
mod stopped;
