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
#[path = "../flow/cache.rs"]
mod cache;
#[path = "../flow/check.rs"]
mod check;
#[path = "../flow/conditions.rs"]
mod conditions;
#[path = "../flow/expiry.rs"]
mod expiry;
#[path = "../flow/full.rs"]
mod full;
#[path = "../flow/growth.rs"]
mod growth;
#[path = "../flow/large.rs"]
mod large;
#[path = "../flow/reads.rs"]
mod reads;
#[path = "../flow/registered.rs"]
mod registered;
#[path = "../flow/scan.rs"]
mod scan;
#[path = "../flow/shared.rs"]
mod shared;
#[path = "../flow/sizes.rs"]
mod sizes;
#[path = "../flow/space.rs"]
mod space;

/// Makes each scenario, a function of a `Transport`, a test over RDMA, connected in both ways.
macro_rules! over_each_transport {
    ($($scenario:ident),+ $(,)?) => {
        mod verbs {
            $(#[test]
            #[ignore = "needs an RDMA device"]
            fn $scenario() {
                super::$scenario(crate::live::server::Transport::Verbs);
            })+
        }
        mod verbs_cm {
            $(#[test]
            #[ignore = "needs an RDMA device"]
            fn $scenario() {
                super::$scenario(crate::live::server::Transport::VerbsCm);
            })+
        }
    };
}

/// Makes a scenario that measures processor time a test over RDMA.
macro_rules! over_quiet_transports {
    ($scenario:ident) => {
        mod quiet {
            #[test]
            #[ignore = "needs an RDMA device"]
            fn over_verbs() {
                super::$scenario(crate::live::server::Transport::Verbs);
            }
        }
    };
}

#[path = "../process/crowd.rs"]
mod crowd;
#[path = "../process/drained.rs"]
mod drained;
#[path = "../process/forked.rs"]
mod forked;
#[path = "../process/killed_client.rs"]
mod killed_client;
#[path = "../process/killed_server.rs"]
mod killed_server;
#[path = "../process/submitted.rs"]
mod submitted;
#[path = "../process/workloads.rs"]
mod workloads;

mod process {
    scenarios!(crate::live::server::verbs_process, #[ignore = "needs an RDMA device"]);
    long_scenarios!(crate::live::server::verbs_process, #[ignore = "needs an RDMA device"]);
}

/// Without the long ones: once they are connected, queue pairs are alike.
mod process_cm {
    scenarios!(crate::live::server::verbs_cm_process, #[ignore = "needs an RDMA device"]);
}
