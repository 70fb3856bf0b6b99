//! The wrappers over verbs, on a real (or soft-RoCE) device: both ends of each connection are in this process.
//!
//! Every test here needs a device and is ignored otherwise; the guests of the rig run them all.

mod cm;
mod connected;
mod datagrams;
mod events;
mod facts;
mod faults;
mod setup;
#[path = "../support/mod.rs"]
mod support;
