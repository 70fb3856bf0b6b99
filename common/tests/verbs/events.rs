//! Events that belong to no request.

use std::process::Command;
use std::time::Instant;

use kv_common::verbs::{AsyncEvent, Context};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::setup::{PATIENCE, side};
use crate::support::{is_root, not_run};

/// Waits for an event that `is` accepts.
fn wait_for(context: &Context, is: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let begun = Instant::now();
    loop {
        if let Some(event) = context.next_event().unwrap() {
            println!("{event}");
            if is(&event) {
                return event;
            }
            continue;
        }
        let left = PATIENCE.checked_sub(begun.elapsed()).expect("the event comes in time");
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed() + 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&context.async_fd(), PollFlags::IN)], Some(&timeout)).unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_new_address_is_a_change_of_gids() {
    let test = "a_new_address_is_a_change_of_gids";
    let Some(a) = side(test) else { return };
    let interface = a.port.gid().interface.clone().expect("RoCE has an interface");
    // Soft-RoCE on one end of a pair of virtual interfaces, as the rig makes it; others are not this test's to change.
    let is_pair = ["veth", "kvrig"].iter().any(|name| interface.starts_with(name));
    if !is_pair || !is_root() {
        return not_run(test, "addresses are added by root, and to the rig's interface only");
    }
    let ip = |action: &str| {
        let done =
            Command::new("ip").args(["addr", action, "198.51.100.7/32", "dev", &interface]).status().unwrap();
        assert!(done.success());
    };
    assert_eq!(a.context.next_event().unwrap(), None, "nothing waits where nothing happened");
    ip("add");
    wait_for(&a.context, |event| matches!(event, AsyncEvent::GidChange(1)));
    let has = || {
        let gids = a.context.gids(1).unwrap();
        gids.iter().any(|entry| entry.gid.to_string() == "::ffff:198.51.100.7")
    };
    assert!(has());
    ip("del");
    wait_for(&a.context, |event| matches!(event, AsyncEvent::GidChange(1)));
    assert!(!has());
}
