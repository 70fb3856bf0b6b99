//! The programs as processes, and what becomes of the others when one of them is stopped, killed or hostile.

#[path = "../live/mod.rs"]
mod live;

/// Makes each scenario, a function of a `Transport`, a test over each of them.
macro_rules! over_each_transport {
    ($($scenario:ident),+ $(,)?) => {
        mod shm {
            $(#[test]
            fn $scenario() {
                super::$scenario(crate::live::server::Transport::Shm);
            })+
        }
        mod tcp {
            $(#[test]
            fn $scenario() {
                super::$scenario(crate::live::server::Transport::Tcp);
            })+
        }
    };
}

/// Makes a scenario that measures processor time a test over each transport of this machine.
macro_rules! over_quiet_transports {
    ($scenario:ident) => {
        mod quiet {
            #[test]
            fn over_shm() {
                super::$scenario(crate::live::server::Transport::Shm);
            }
            #[test]
            fn over_tcp() {
                super::$scenario(crate::live::server::Transport::Tcp);
            }
        }
    };
}

mod bench;
mod check;
mod crowd;
mod drained;
mod expiry;
mod forked;
mod hostile;
mod hostile_tcp;
mod killed_client;
mod killed_server;
mod large;
mod other_user;
mod stopped;
mod submitted;
mod workloads;
