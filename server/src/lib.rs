//! The server of the store.

pub mod args;
pub mod config;
