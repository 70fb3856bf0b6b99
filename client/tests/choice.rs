//! Which transport a client has, and why.

mod support;

use kv_client::{Client, Error};
use kv_server::Running;
use support::config;

fn serve(dir: &tempfile::TempDir) -> (Running, String) {
    let running = kv_server::start(config(dir.path().join("kv.sock"), 32 << 20)).unwrap();
    let address = running.listen_address().unwrap().to_string();
    (running, address)
}

#[test]
fn a_host_is_reached_by_shared_memory_if_its_socket_is_here_and_else_by_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let (running, address) = serve(&dir);
    let url = format!("kv://{address}");
    let mut client = Client::connect(&url).unwrap();
    assert_eq!((client.transport(), client.connection().url.as_str()), ("shm", url.as_str()));
    let why = &client.connection().why;
    assert!(why.contains("kv.sock is on this host"), "{why}");
    client.put(b"key", b"value").unwrap();

    // The socket's file is another one by now: a container's, for instance.
    let socket = running.socket();
    let aside = socket.with_extension("aside");
    std::fs::rename(socket, &aside).unwrap();
    let reason = |part: &str| {
        let mut client = Client::connect(&url).unwrap();
        assert_eq!(client.transport(), "tcp");
        let why = client.connection().why.clone();
        assert!(why.contains(part) && why.contains("no RDMA: the server offers none"), "{why}");
        assert_eq!(client.get(b"key").unwrap().unwrap().bytes, b"value");
    };
    reason("is not to be seen here");
    std::fs::write(socket, b"").unwrap();
    reason("is another file here");
    std::fs::remove_file(socket).unwrap();
    std::fs::rename(&aside, socket).unwrap();
    assert_eq!(Client::connect(&url).unwrap().transport(), "shm");
}

#[test]
fn a_named_transport_is_final() {
    let dir = tempfile::tempdir().unwrap();
    let (running, address) = serve(&dir);
    let tcp = Client::connect(&format!("kv+tcp://{address}")).unwrap();
    assert_eq!((tcp.transport(), tcp.connection().why.as_str()), ("tcp", "the URL names tcp"));
    assert_eq!(tcp.connection().server_pid, Some(std::process::id()));
    let shm = Client::connect(&format!("kv+shm://{}", running.socket().display())).unwrap();
    assert_eq!(shm.transport(), "shm");
    // Everything else is there, and still it is none of these.
    let rdma = format!("kv+rdma://{address}?device=no_such_device");
    let error = Client::connect(&rdma).unwrap_err();
    if cfg!(feature = "verbs") {
        let is_named = |reason: &str| reason.contains("no_such_device") || reason.contains("no RDMA device");
        assert!(matches!(&error, Error::Connect { reason, .. } if is_named(reason)), "{error}");
    } else {
        assert_eq!(error, Error::WithoutRdma { endpoint: rdma });
        let text = error.to_string();
        assert!(text.contains("feature `verbs`") && text.contains("kv+tcp://"), "{text}");
    }
    drop((tcp, shm));
    drop(running);
    for url in [format!("kv://{address}"), format!("kv+tcp://{address}")] {
        let error = Client::connect(&url).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
        assert!(error.to_string().contains("nobody listens there"), "{error}");
    }
}

#[test]
fn without_tcp_a_server_is_reached_by_its_socket_alone() {
    let dir = tempfile::tempdir().unwrap();
    let config = kv_server::config::Config { listen: None, ..config(dir.path().join("kv.sock"), 32 << 20) };
    let running = kv_server::start(config).unwrap();
    assert_eq!(running.listen_address(), None);
    let mut client = Client::connect(running.socket().to_str().unwrap()).unwrap();
    client.put(b"key", b"value").unwrap();
}
