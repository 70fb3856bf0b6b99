//! The store by RDMA: the scenarios of the other transports. Needs an RDMA device.

#[path = "../live/mod.rs"]
mod live;
#[path = "../flow/scenarios.rs"]
#[macro_use]
mod scenarios;

#[path = "../flow/basics.rs"]
mod basics;
#[path = "../flow/batches.rs"]
mod batches;
#[path = "../flow/conditions.rs"]
mod conditions;
#[path = "../flow/expiry.rs"]
mod expiry;
#[path = "../flow/full.rs"]
#[allow(dead_code, reason = "what fills an index takes too long in an emulated machine")]
mod full;
#[path = "../flow/reads.rs"]
#[allow(dead_code, reason = "what fills an index takes too long in an emulated machine")]
mod reads;
#[path = "../flow/registered.rs"]
mod registered;
#[path = "../flow/shared.rs"]
mod shared;
#[path = "../flow/sizes.rs"]
mod sizes;

/// Makes each scenario, a function of a `Transport`, a test over RDMA.
macro_rules! over_each_transport {
    ($($scenario:ident),+ $(,)?) => {
        mod verbs {
            $(#[test]
            #[ignore = "needs an RDMA device"]
            fn $scenario() {
                super::$scenario(crate::live::server::Transport::Verbs);
            })+
        }
    };
}

/// What measures processor time is not tested in an emulated machine, where a thread's time is its host's, too.
macro_rules! over_quiet_transports {
    ($scenario:ident) => {
        const _: fn(crate::live::server::Transport) = $scenario;
    };
}

#[path = "../process/crowd.rs"]
mod crowd;
#[path = "../process/killed_client.rs"]
mod killed_client;
#[path = "../process/killed_server.rs"]
mod killed_server;

mod process {
    scenarios!(@short crate::live::server::verbs_process, #[ignore = "needs an RDMA device"]);
}
