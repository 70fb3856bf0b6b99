//! Two machines, a server on the one and clients on the other, and a wire between them that loses packets or is cut, or
//! whose ends die. Needs two guests with an RDMA device each: `scripts/guest/tests.sh` boots them, and every test runs
//! in both at once. The clients' machine decides what happens; the server's does what it is told.

#[path = "../live/mod.rs"]
mod live;

mod choice;
mod cut;
mod hand;
mod killed;
mod link;
mod load;
mod loss;
mod world;

/// The scenario of `../process/killed_client.rs` is used here, against a server of another machine.
macro_rules! over_each_transport {
    ($($scenario:ident),+ $(,)?) => {
        $(const _: fn(crate::live::server::Transport) = $scenario;)+
    };
}

#[path = "../process/killed_client.rs"]
mod killed_client;
