//! Another user may be allowed to connect; that does not let him write to the region.

use std::fs::{File, set_permissions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;

use kv_client::Client;

use crate::live::helper::{Helper, told};
use crate::live::peer::Peer;
use crate::live::server::{Needs, Site};
use crate::live::{PATIENCE, not_run};

const NOBODY: u32 = 65534;

/// Not a test of its own: what another user tries with the descriptor that he was given.
#[test]
#[ignore = "run by another test, as another user"]
fn helper_attacks() {
    let Some(socket) = told().map(PathBuf::from) else { return };
    let mut client = Client::connect(socket.to_str().unwrap()).unwrap();
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"value");
    client.put(b"other", b"of nobody").unwrap();
    let peer = Peer::connect(&socket);
    let given = File::from(peer.region_fd.try_clone().unwrap());
    let path = format!("/proc/self/fd/{}", given.as_raw_fd());
    for (name, file) in
        [("as given", Ok(given)), ("reopened", File::options().read(true).write(true).open(path))]
    {
        let Ok(file) = file else {
            println!("@denied {name}: open");
            continue;
        };
        let results = [
            ("write", file.write_at(&[1; 8], 0).map(drop)),
            ("truncate", file.set_len(0)),
            ("map", memmap2::MmapOptions::new().map_raw(&file).map(drop)),
        ];
        for (what, result) in results {
            println!("@{} {name}: {what}", if result.is_err() { "denied" } else { "possible" });
        }
    }
    assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"value");
}

#[test]
fn an_allowed_user_reads_the_region_and_cannot_write_it() {
    if !rustix::process::geteuid().is_root() {
        return not_run(
            "an_allowed_user_reads_the_region_and_cannot_write_it",
            "only root can be another user",
        );
    }
    let site = Site::new();
    let _server = site.serve_with(Needs::default(), &["--allow-uid", "any"]);
    let mut client = site.connect(PATIENCE);
    client.put(b"key", b"value").unwrap();
    // He must reach the socket and this program.
    set_permissions(site.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = site.socket();
    let helper = Helper::start_as(
        NOBODY,
        &site.dir.path().join("helper"),
        "other_user::helper_attacks",
        socket.to_str().unwrap(),
    );
    let said = helper.finish();
    assert!(said.len() >= 4 && said.iter().all(|line| line.starts_with("denied")), "{said:?}");
    assert_eq!(client.get(b"other").unwrap().unwrap().bytes, b"of nobody");
}
