//! A server inside the process that uses it. One test, because it counts what the process has open.

mod support;

use kv_common::layout::superblock;
use kv_common::transport::shm::mapping::PagePolicy;
use kv_common::transport::shm::owner::OwnerState;
use kv_common::wire::Op;
use kv_server::config::Config;
use kv_server::start;
use support::{Peer, Site, wait_for};

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn an_embedded_server_starts_and_stops_any_number_of_times_and_leaves_nothing() {
    let site = Site::new();
    let config = Config {
        memory_bytes: 16 << 20,
        hugepages: PagePolicy::Off,
        socket: site.socket(),
        workers: 2,
        listen: None,
        ..Config::default()
    };
    let before = (entries("/proc/self/fd"), entries("/proc/self/task"));
    for round in 0..10 {
        let running = start(config.clone()).unwrap();
        assert!(start(config.clone()).is_err(), "the socket is taken");
        let mut peer = Peer::connect(running.socket());
        assert_eq!((running.clients(), running.region_bytes()), (1, 16 << 20));
        peer.call(Op::Put, b"key", &[round]);
        match round % 3 {
            0 => running.stop().unwrap(),
            1 => drop(running),
            _ => {
                running.stopper().stop();
                running.wait().unwrap();
            }
        }
        assert_eq!(OwnerState::load(&peer.region, superblock::OWNER * 8), OwnerState::Died);
        peer.wait_for_end();
        assert!(!site.socket().exists());
    }
    // A joined thread is gone from the kernel's list a moment later.
    wait_for("nothing is left", || {
        ((entries("/proc/self/fd"), entries("/proc/self/task")) == before).then_some(())
    });
}
