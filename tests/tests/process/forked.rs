//! A client handle belongs to the process that made it.
#![allow(unsafe_code, reason = "fork is what the test is about")]

use kv_client::{Client, Error, Registered};

use crate::live::helper::{Helper, told};
use crate::live::server::{Site, Transport};

/// Not a test of its own: forks, in a process where nothing else goes on.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn helper_forks() {
    let Some(url) = told() else { return };
    let mut client = Client::connect(&url).unwrap();
    client.put(b"key", b"of the parent").unwrap();
    let mut buffer = Some(client.register(100).unwrap());
    let of_parent = |client: &mut Client, buffer: &mut Option<Registered>| {
        let found =
            client.get_into(b"key", buffer.as_mut().unwrap()).unwrap().map(|found| found.bytes.to_vec());
        assert_eq!(found.as_deref(), Some(&b"of the parent"[..]));
    };
    of_parent(&mut client, &mut buffer);
    let in_flight = client.submit_put(b"in flight", b"value").unwrap();
    // SAFETY: the child calls only this test's own code, and ends by `_exit`; the C library makes its allocator usable
    // in the child of a process with several threads.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            as_child(&mut client, buffer.take(), &url)
        }));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(is_right.is_err())) };
    }
    let mut status = 0;
    // SAFETY: `status` is there to be written to.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child saw what it should");
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"of the parent");
    of_parent(&mut client, &mut buffer);
    assert_eq!(client.get(b"child").unwrap().unwrap().bytes, b"of the child");
    assert_eq!(client.wait().unwrap().unwrap().ticket, in_flight);
    assert_eq!(client.get(b"in flight").unwrap().unwrap().bytes, b"value");
    println!("@done");
}

fn as_child(client: &mut Client, buffer: Option<Registered>, url: &str) {
    const FORKED: Error = Error::UsedAfterFork;
    let mut buffer = buffer.unwrap();
    assert_eq!(client.get_into(b"key", &mut buffer), Err(FORKED));
    assert_eq!(client.submit_get_into(b"key", buffer).map_err(|refused| refused.error), Err(FORKED));
    assert_eq!(client.register(100), Err(FORKED));
    assert_eq!(client.get(b"key"), Err(FORKED));
    assert_eq!(client.get_to_vec(b"key", &mut Vec::new()), Err(FORKED));
    assert_eq!(client.exists(b"key"), Err(FORKED));
    assert_eq!(client.multi_get(&[b"key"]), [Err(FORKED)]);
    assert_eq!(client.put(b"key", b"of the child"), Err(FORKED));
    assert_eq!(client.delete(b"key"), Err(FORKED));
    assert_eq!(client.compare_and_set(b"key", 1, b"no"), Err(FORKED));
    assert_eq!(client.submit_get(b"key"), Err(FORKED));
    assert_eq!(client.submit_put(b"key", b"no"), Err(FORKED));
    assert_eq!(client.submit_delete(b"key"), Err(FORKED));
    assert_eq!(client.submit_compare_and_set(b"key", 1, b"no"), Err(FORKED));
    assert_eq!(client.poll(), Err(FORKED));
    assert_eq!(client.wait(), Err(FORKED));
    assert_eq!(client.ping(), Err(FORKED));
    assert_eq!(client.warm_up(), Err(FORKED));
    assert_eq!(client.server_stat(), Err(FORKED));
    let mut own = Client::connect(url).unwrap();
    assert_eq!(own.get(b"key").unwrap().unwrap().bytes, b"of the parent");
    own.put(b"child", b"of the child").unwrap();
}

fn a_client_used_after_fork_is_refused_and_the_parent_goes_on(transport: Transport) {
    let site = Site::over(transport);
    let _server = site.serve();
    assert_eq!(Helper::start("forked::helper_forks", &site.url()).finish(), ["done"]);
}

over_each_transport!(a_client_used_after_fork_is_refused_and_the_parent_goes_on);
