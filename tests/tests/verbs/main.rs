//! The store by RDMA: the scenarios of the other transports, and what only RDMA can show. Needs an RDMA device.

#[path = "../live/mod.rs"]
mod live;
#[path = "../flow/scenarios.rs"]
#[macro_use]
mod scenarios;

#[path = "../flow/basics.rs"]
mod basics;
#[path = "../flow/batches.rs"]
mod batches;
#[path = "../flow/full.rs"]
mod full;
#[path = "../flow/reads.rs"]
mod reads;
#[path = "../flow/shared.rs"]
mod shared;
#[path = "../flow/sizes.rs"]
mod sizes;

mod in_process {
    scenarios!(crate::live::server::verbs_in_process, #[ignore = "needs an RDMA device"]);
}

mod process {
    scenarios!(crate::live::server::verbs_process, #[ignore = "needs an RDMA device"]);
}
