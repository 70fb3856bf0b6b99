//! Every scenario over every transport: what a user sees of the store, whatever carries it.
//!
//! A scenario is a function that starts a server and uses the client library. The table below is the one list of them;
//! each module behind it is one transport.

#[path = "../live/mod.rs"]
mod live;

#[macro_use]
mod scenarios;

mod basics;
mod batches;
mod cache;
mod check;
mod conditions;
mod expiry;
mod full;
mod growth;
mod large;
mod reads;
mod registered;
mod scan;
mod shared;
mod sizes;
mod space;

mod shm_in_process {
    scenarios!(crate::live::server::shm_in_process);
    long_scenarios!(crate::live::server::shm_in_process);
}

mod shm_process {
    scenarios!(crate::live::server::shm_process);
    long_scenarios!(crate::live::server::shm_process);
}

mod tcp_in_process {
    scenarios!(crate::live::server::tcp_in_process);
    long_scenarios!(crate::live::server::tcp_in_process);
}

mod tcp_process {
    scenarios!(crate::live::server::tcp_process);
    long_scenarios!(crate::live::server::tcp_process);
}
