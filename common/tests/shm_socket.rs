//! The socket, the hello and the doorbell against everything that may be at a path or at the other end.

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kv_common::transport::handshake::{
    DESCRIPTORS_MAX, HELLO_MAX_BYTES, HelloError, OutgoingHello, PendingHello, receive_hello, send_hello,
};
use kv_common::transport::shm::doorbell::{Doorbell, PeerGone};
use kv_common::transport::shm::socket::{
    Accepted, BindError, ConnectError, DEFAULT_MODE, Listener, PATH_MAX_BYTES, PathError, connect,
};
use rustix::event::{PollFd, PollFlags, poll};
use support::{is_root, not_run};
use tempfile::TempDir;

const NOBODY: u32 = 65534;
const CONNECT_TO: &str = "KV_TEST_CONNECT_TO";

fn place() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("kv.sock");
    (place, path)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A time for which something is waited that does not come.
fn in_a_moment() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn accept(listener: &Listener) -> Accepted {
    poll(&mut [PollFd::new(listener, PollFlags::IN)], None).unwrap();
    listener.accept().unwrap().expect("poll said that somebody waits")
}

fn bind(path: &Path) -> Result<Listener, BindError> {
    Listener::bind(path, DEFAULT_MODE)
}

#[test]
fn a_client_and_a_server_meet_and_exchange_descriptors() {
    let (_place, path) = place();
    let listener = bind(&path).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let client = connect(&path, soon()).unwrap();
    let Accepted { stream, peer } = accept(&listener);
    assert_eq!(peer.pid, Some(std::process::id()));
    assert_eq!(
        (peer.uid, peer.gid),
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    );

    send_hello(&client, b"hello, server", &[], soon()).unwrap();
    let hello = receive_hello(&stream, 0, soon()).unwrap();
    assert_eq!((hello.bytes.as_slice(), hello.descriptors.len()), (&b"hello, server"[..], 0));

    let (reader, writer) = rustix::pipe::pipe().unwrap();
    send_hello(&stream, &[7; HELLO_MAX_BYTES], &[reader.as_fd(), writer.as_fd()], soon()).unwrap();
    // What follows the hello is not part of it.
    (&stream).write_all(b"bell").unwrap();
    drop((reader, writer));
    let hello = receive_hello(&client, 2, soon()).unwrap();
    assert_eq!(hello.bytes, [7; HELLO_MAX_BYTES]);
    let [reader, writer] = <[OwnedFd; 2]>::try_from(hello.descriptors).unwrap();
    assert!(rustix::io::fcntl_getfd(&reader).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    File::from(writer).write_all(b"through the pipe").unwrap();
    let mut text = String::new();
    File::from(reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the pipe");
    let mut rest = [0; 16];
    assert_eq!((&client).read(&mut rest).unwrap(), 4);
}

#[test]
fn impossible_paths_are_errors_for_both_sides() {
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(PATH_MAX_BYTES - 4)));
    let cases = [
        (PathBuf::new(), PathError::Empty),
        (PathBuf::from("/tmp/a\0b"), PathError::ZeroByte),
        (long, PathError::TooLong { limit_bytes: 107, found_bytes: 108 }),
    ];
    for (path, expected) in cases {
        assert!(matches!(bind(&path).err(), Some(BindError::Path(found)) if found == expected));
        assert!(matches!(connect(&path, soon()), Err(ConnectError::Path(found)) if found == expected));
    }
}

#[test]
fn the_longest_path_works() {
    let place = tempfile::tempdir().unwrap();
    let fill = PATH_MAX_BYTES - place.path().as_os_str().as_bytes().len() - 1;
    let path = place.path().join("x".repeat(fill));
    let listener = bind(&path).unwrap();
    connect(&path, soon()).unwrap();
    accept(&listener);
}

#[test]
fn of_two_servers_on_one_path_the_second_is_refused() {
    let (_place, path) = place();
    let first = bind(&path).unwrap();
    let error = bind(&path).err().unwrap();
    assert!(
        matches!(error, BindError::AnotherServer { pid: Some(pid), .. } if pid == std::process::id()),
        "{error}"
    );
    connect(&path, soon()).unwrap();
    accept(&first);
    drop(first);
    bind(&path).unwrap();
}

#[test]
fn a_server_leaves_no_file_behind() {
    let (place, path) = place();
    drop(bind(&path).unwrap());
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn a_server_of_another_kind_is_left_alone() {
    let (_place, path) = place();
    let other = UnixListener::bind(&path).unwrap();
    assert!(matches!(bind(&path), Err(BindError::AnotherServer { .. })));
    drop(other);
    bind(&path).unwrap();
    let (_place, path) = place_of_datagrams();
    assert!(matches!(bind(&path), Err(BindError::AnotherServer { .. })));
    assert!(matches!(connect(&path, soon()), Err(ConnectError::NotASocket { .. })));
}

fn place_of_datagrams() -> ((TempDir, UnixDatagram), PathBuf) {
    let (place, path) = place();
    let socket = UnixDatagram::bind(&path).unwrap();
    ((place, socket), path)
}

#[test]
fn a_full_queue_counts_as_alive_and_a_client_gives_up_in_time() {
    let (_place, path) = place();
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let mut waiting = Vec::new();
    let error = loop {
        match connect(&path, in_a_moment()) {
            Ok(stream) => waiting.push(stream),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100, "a queue of length 0 takes few");
    };
    assert!(matches!(error, ConnectError::Timeout { .. }), "{error}");
    assert!(matches!(bind(&path), Err(BindError::AnotherServer { .. })));
}

#[test]
fn a_stale_socket_is_an_error_for_clients_and_replaced_by_a_server() {
    let (_place, path) = place();
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(connect(&path, soon()), Err(ConnectError::NoServer { stale: true, .. })));
    // The lock file of a killed server is still there, unlocked.
    fs::write(path.with_extension("sock.lock"), "4194304\n").unwrap();
    let listener = bind(&path).unwrap();
    connect(&path, soon()).unwrap();
    accept(&listener);
}

#[test]
fn what_is_no_socket_is_never_removed() {
    let (place, path) = place();
    fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
    assert!(matches!(connect(&path, soon()), Err(ConnectError::NotASocket { .. })));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let link = place.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(matches!(bind(&link), Err(BindError::NotASocket { .. })));
    assert!(matches!(bind(place.path()), Err(BindError::NotASocket { .. })));
}

#[test]
fn a_link_or_a_directory_in_the_place_of_the_lock_is_an_error() {
    let (place, path) = place();
    let precious = place.path().join("precious");
    fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, path.with_extension("sock.lock")).unwrap();
    assert!(matches!(bind(&path), Err(BindError::Os { .. })));
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    let other = place.path().join("other.sock");
    fs::create_dir(other.with_extension("sock.lock")).unwrap();
    assert!(matches!(bind(&other), Err(BindError::Os { .. })));
}

#[test]
fn a_missing_directory_is_named() {
    let (place, _) = place();
    let directory = place.path().join("not/there");
    let path = directory.join("kv.sock");
    match bind(&path) {
        Err(BindError::MissingDirectory { directory: named }) => assert!(named.starts_with(&directory)),
        other => panic!("{:?}", other.err()),
    }
    assert!(matches!(connect(&path, soon()), Err(ConnectError::NoServer { stale: false, .. })));
    fs::write(place.path().join("not"), "a file").unwrap();
    assert!(matches!(bind(&path), Err(BindError::MissingDirectory { .. })));
    assert!(matches!(connect(&path, soon()), Err(ConnectError::NoServer { stale: false, .. })));
}

#[test]
fn the_mode_is_exactly_what_was_asked_for() {
    for mode in [0o600, 0o660, 0o666, 0o000] {
        let (_place, path) = place();
        let _listener = Listener::bind(&path, mode).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
    }
}

#[test]
fn the_mode_decides_who_may_connect() {
    if !is_root() {
        return not_run("the_mode_decides_who_may_connect", "only root can become another user");
    }
    let (place, path) = place();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let listener = Listener::bind(&path, 0o600).unwrap();
    assert_eq!(as_nobody(&place, "connect", &path), "PermissionDenied");
    drop(listener);
    let listener = Listener::bind(&path, 0o666).unwrap();
    assert_eq!(as_nobody(&place, "connect", &path), "connected");
    let peer = accept(&listener).peer;
    assert_eq!((peer.uid, peer.gid), (NOBODY, NOBODY));
    // Nor may another user start a server in a directory that is not his, or take the lock of a running one.
    assert_eq!(as_nobody(&place, "bind", &path), "PermissionDenied");
}

/// What happens to another user who does `action` at `path`.
fn as_nobody(place: &TempDir, action: &str, path: &Path) -> String {
    let program = place.path().join("visitor");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(program)
        .args(["--exact", "visitor", "--nocapture", "--test-threads=1"])
        .env(CONNECT_TO, format!("{action} {}", path.display()))
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let outcome = report.lines().find_map(|line| line.strip_prefix("outcome "));
    outcome.unwrap_or_else(|| panic!("{report}")).to_owned()
}

/// Another user's process; does nothing when the tests run as usual.
#[test]
fn visitor() {
    let Ok(task) = std::env::var(CONNECT_TO) else { return };
    let outcome = match task.split_once(' ').unwrap() {
        ("connect", path) => match connect(Path::new(path), soon()) {
            Ok(_) => "connected".to_owned(),
            Err(error) => name_of(&error),
        },
        (_, path) => bind(Path::new(path)).err().map_or("bound".to_owned(), |error| name_of(&error)),
    };
    println!("\noutcome {outcome}");
}

fn name_of(error: &dyn std::fmt::Debug) -> String {
    format!("{error:?}").split([' ', '(']).next().unwrap().to_owned()
}

/// Threads race for one path, again and again: never do two hold it, and a holder can always be reached.
#[test]
fn many_servers_race_for_one_path_and_one_has_it() {
    let (_place, path) = place();
    let held = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    match bind(&path) {
                        Ok(listener) => {
                            assert!(!held.swap(true, Ordering::SeqCst), "two servers hold the path");
                            connect(&path, soon()).unwrap();
                            accept(&listener);
                            held.store(false, Ordering::SeqCst);
                        }
                        Err(BindError::AnotherServer { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

/// The error that `sent` and then `end` make of a hello with up to `limit` descriptors.
fn refused(sent: &[u8], descriptors: &[BorrowedFd<'_>], limit: usize, close: bool) -> HelloError {
    let (near, far) = UnixStream::pair().unwrap();
    if !descriptors.is_empty() {
        send_raw(&near, sent, descriptors);
    } else {
        (&near).write_all(sent).unwrap();
    }
    let deadline = if close { soon() } else { in_a_moment() };
    let kept = (!close).then_some(near);
    let error = receive_hello(&far, limit, deadline).unwrap_err();
    drop(kept);
    error
}

/// Sends any bytes with any descriptors, however malformed.
fn send_raw(socket: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let sent = sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

#[test]
fn garbage_truncation_and_silence_are_errors() {
    let too_long = (HELLO_MAX_BYTES as u32 + 1).to_le_bytes();
    assert!(matches!(
        refused(b"GET / HTTP/1.1\r\n", &[], 0, false),
        HelloError::Length { found_bytes: 0x2054_4547 }
    ));
    assert!(matches!(refused(&too_long, &[], 0, false), HelloError::Length { found_bytes: 4097 }));
    assert!(matches!(refused(&[0; 4], &[], 0, false), HelloError::Length { found_bytes: 0 }));
    assert!(matches!(refused(b"", &[], 0, true), HelloError::Closed { found_bytes: 0 }));
    assert!(matches!(refused(&[5, 0], &[], 0, true), HelloError::Closed { found_bytes: 2 }));
    assert!(matches!(
        refused(&[5, 0, 0, 0, 1, 2, 3, 4], &[], 0, true),
        HelloError::Closed { found_bytes: 8 }
    ));
    assert!(matches!(refused(b"", &[], 0, false), HelloError::Timeout));
    assert!(matches!(refused(&[5, 0, 0, 0, 1, 2, 3, 4], &[], 0, false), HelloError::Timeout));
}

#[test]
fn a_hello_that_cannot_be_sent_is_refused() {
    for length in [0, HELLO_MAX_BYTES + 1] {
        let error = OutgoingHello::new(&vec![0; length]).err().unwrap();
        assert!(matches!(error, HelloError::Length { found_bytes } if found_bytes == length));
    }
    let (near, far) = UnixStream::pair().unwrap();
    let many = vec![far.as_fd(); DESCRIPTORS_MAX + 1];
    let error = send_hello(&near, b"x", &many, soon()).unwrap_err();
    assert!(matches!(error, HelloError::TooManyDescriptors { limit: DESCRIPTORS_MAX }));
    drop(far);
    assert!(matches!(send_hello(&near, b"x", &[], soon()), Err(HelloError::Closed { .. })));
}

#[test]
fn a_peer_that_does_not_read_costs_the_sender_its_deadline_only() {
    let (near, _far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    while (&near).write(&[0; 4096]).is_ok() {}
    assert!(matches!(send_hello(&near, &[1; 4096], &[], in_a_moment()), Err(HelloError::Timeout)));
}

/// Whatever is wrong, received descriptors are closed: the reader of a pipe whose writer was sent sees the end of it.
#[test]
fn descriptors_are_closed_on_every_error() {
    let good = [4, 0, 0, 0, 1, 2, 3, 4];
    let cases: [(&str, &[u8], usize, usize, bool); 6] = [
        ("more than expected", &good, 2, 1, false),
        ("none expected", &good, 1, 0, false),
        ("more than any hello has", &good, 40, DESCRIPTORS_MAX, false),
        ("a bad length", &[255; 4], 1, 1, false),
        ("closed too early", &good[..6], 1, 1, true),
        ("silent", &good[..6], 1, 1, false),
    ];
    for (what, bytes, count, limit, close) in cases {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let error = refused(bytes, &vec![writer.as_fd(); count], limit, close);
        assert_eq!(matches!(error, HelloError::TooManyDescriptors { .. }), count > limit, "{what}: {error}");
        drop(writer);
        assert_eq!(File::from(reader).read(&mut [0]).unwrap(), 0, "{what}");
    }
}

/// An error closes them at once, not only when the state is given up.
#[test]
fn a_failed_hello_holds_no_descriptors() {
    let (near, far) = UnixStream::pair().unwrap();
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    send_raw(&near, &[255; 4], &[writer.as_fd()]);
    drop((near, writer));
    let mut pending = PendingHello::new(1);
    pending.feed(far.as_fd()).unwrap_err();
    assert_eq!(File::from(reader).read(&mut [0]).unwrap(), 0);
    drop(pending);
}

#[test]
fn a_hello_may_come_byte_by_byte_and_many_at_once() {
    let pairs: Vec<_> = (0..50).map(|_| UnixStream::pair().unwrap()).collect();
    let mut pending: Vec<_> = pairs.iter().map(|_| PendingHello::new(1)).collect();
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    let frame = [3, 0, 0, 0, b'a', b'b', b'c'];
    for (at, byte) in frame.iter().enumerate() {
        for ((near, far), pending) in pairs.iter().zip(&mut pending) {
            // A descriptor may ride on any byte.
            if at == 5 {
                send_raw(near, &[*byte], &[reader.as_fd()])
            } else {
                (&*near).write_all(&[*byte]).unwrap()
            }
            let hello = pending.feed(far.as_fd()).unwrap();
            assert_eq!(hello.is_some(), at == 6);
            if let Some(hello) = hello {
                assert_eq!((hello.bytes.as_slice(), hello.descriptors.len()), (&b"abc"[..], 1));
            }
        }
    }
}

#[test]
fn bells_wake_and_the_end_of_the_peer_shows() {
    let (near, far) = UnixStream::pair().unwrap();
    let (near, far) = (Doorbell::new(near), Doorbell::new(far));
    assert_eq!(far.clear(), Ok(false));
    assert_eq!(far.wait(Duration::ZERO), Ok(false));
    near.ring().unwrap();
    near.ring().unwrap();
    assert_eq!(far.wait(Duration::MAX), Ok(true));
    assert_eq!(far.clear(), Ok(false), "both were taken");
    let waiting = std::thread::spawn(move || (far.wait(Duration::MAX), far));
    near.ring().unwrap();
    let (woken, far) = waiting.join().unwrap();
    assert_eq!(woken, Ok(true));
    drop(near);
    assert_eq!(far.wait(Duration::MAX), Err(PeerGone));
    assert_eq!(far.ring(), Err(PeerGone));
}

/// A peer that never takes its bells, or rings without end, neither blocks nor occupies us.
#[test]
fn a_peer_that_ignores_its_bells_blocks_nobody() {
    let (near, far) = UnixStream::pair().unwrap();
    // Blocking sockets on purpose: the flag must not matter.
    let (near, far) = (Doorbell::new(near), Doorbell::new(far));
    for _ in 0..100_000 {
        near.ring().unwrap();
    }
    assert_eq!(far.clear(), Ok(true));
    assert_eq!(far.clear(), Ok(true), "a bounded number is taken at once");
}
