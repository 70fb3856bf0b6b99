//! Ways to reach a server.

pub mod shm;
