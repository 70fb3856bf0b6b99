//! Connection requests by rdma_cm that come to nothing: they leave nothing, and hold nobody up.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kv_client::{Client, Error};
use kv_common::hello::{Answer, Hello, HelloRefusal, Wanted};
use kv_common::transport::handshake::{receive_hello, send_hello};
use kv_common::transport::tcp::socket::connect;
use kv_common::transport::verbs::exchange::Verdict;
use kv_common::transport::verbs::meeting::{Meeting, Secret};
use kv_common::verbs::cm::{CmError, CmOptions, Connected, Requested, Resolved};
use kv_common::verbs::{
    Capacity, CompletionQueue, Context, Mtu, ProtectionDomain, QueuePair, QueuePairOptions, Rc, RemoteRights,
    Reset, RetryPolicy,
};

use super::handshakes::{assert_failures_leave_nothing, half_of};
use crate::live::bystander::{assert_unharmed, good};
use crate::live::server::{Site, Transport};
use crate::live::{PATIENCE, deadline, programs};

/// This side's device, as far as a request needs it.
struct Adapter {
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
}

impl Adapter {
    fn open() -> Adapter {
        let context = Context::open(None).unwrap();
        let domain = ProtectionDomain::allocate(&context).unwrap();
        let queue = CompletionQueue::create(&context, 64, 0, None, 0).unwrap();
        Adapter { context, domain, queue }
    }

    /// Asks for a connection with a queue pair of its own.
    fn ask(&self, to: SocketAddr, private_data: &[u8]) -> Requested {
        let is_taken = |error: &CmError| {
            let CmError::Verb(error) = error else { return false };
            error.source.kind() == std::io::ErrorKind::AddrInUse
        };
        // On iWARP the port that rdma_cm chooses may be one of TCP's that is taken.
        loop {
            match self.try_ask(to, private_data) {
                Err(error) if is_taken(&error) => {}
                asked => return asked.unwrap(),
            }
        }
    }

    fn try_ask(&self, to: SocketAddr, private_data: &[u8]) -> Result<Requested, CmError> {
        let resolved = Resolved::resolve(to, None, PATIENCE)?;
        assert_eq!(resolved.device(), self.context.device().name);
        let options = QueuePairOptions {
            domain: &self.domain,
            send_queue: &self.queue,
            receive_queue: &self.queue,
            shared_receive: None,
            capacity: Capacity { sends: 4, receives: 4, inline_bytes: 0 },
        };
        let pair: QueuePair<Rc, Reset> = QueuePair::create(&options)?;
        let pair = resolved.initialize(pair, RemoteRights::Read)?;
        resolved.request(pair, &cm_options(private_data))
    }

    fn finish(&self, requested: Requested) -> Result<Connected, CmError> {
        requested.finish(&cm_options(&[]), PATIENCE)
    }

    /// Asserts that the server rejects this because it is nobody's.
    fn assert_rejected(&self, to: SocketAddr, private_data: &[u8]) {
        let error = self.finish(self.ask(to, private_data)).err().unwrap();
        assert!(
            matches!(error, CmError::Rejected { .. }) && error.to_string().contains("no session waits"),
            "{error}"
        );
    }
}

fn cm_options(private_data: &[u8]) -> CmOptions<'_> {
    CmOptions {
        rights: RemoteRights::Read,
        reads_started_max: 4,
        reads_served_max: 4,
        mtu_max: Mtu::B1024,
        retry: RetryPolicy::default(),
        private_data,
    }
}

/// A peer that said hello, and what it was told.
struct Peer {
    control: TcpStream,
    half: Vec<u8>,
    to: SocketAddr,
    secret: Secret,
}

impl Peer {
    fn invited(site: &Site) -> Peer {
        let control = connect(&site.listen, deadline()).unwrap();
        send_hello(&control, &Hello::ours(Wanted::RdmaCm).encode(), &[], deadline()).unwrap();
        let hear = || receive_hello(&control, 0, deadline()).unwrap().bytes;
        let answer = Answer::decode(&hear()).unwrap();
        assert!(matches!(answer, Answer::Welcome(_)), "{answer:?}");
        let half = hear();
        let Meeting { port, secret, .. } = Meeting::decode(&hear()).unwrap();
        let to = SocketAddr::new(control.peer_addr().unwrap().ip(), port);
        Peer { control, half, to, secret }
    }

    fn tell(&self, message: &[u8]) {
        send_hello(&self.control, message, &[], deadline()).unwrap();
    }

    fn tell_half(&self) {
        self.tell(&half_of(&self.half));
    }

    fn hear(&self) -> Vec<u8> {
        receive_hello(&self.control, 0, deadline()).unwrap().bytes
    }

    fn assert_refused(&self, why: &str) {
        let Ok(Verdict::Refused(reason)) = Verdict::decode(&self.hear()) else { panic!("not refused") };
        assert!(reason.contains(why), "{reason}");
    }
}

/// One connection that fails, in one of several ways.
fn fail(site: &Site, adapter: &Adapter, how: usize) {
    let peer = Peer::invited(site);
    let request = peer.secret.to_request();
    match how % 9 {
        // It goes without a word, or with half of what is needed.
        0 => {}
        1 => peer.tell_half(),
        2 => drop(adapter.ask(peer.to, &request)),
        3 => {
            peer.tell(b"not what was asked for");
            peer.assert_refused("expected kind 2");
        }
        4 => {
            peer.tell_half();
            peer.tell_half();
            peer.assert_refused("out of turn");
        }
        // It takes its request back, before or after it was answered.
        5 => {
            peer.tell_half();
            drop(adapter.ask(peer.to, &request));
        }
        6 => adapter.assert_rejected(peer.to, &[0x5a; 56]),
        7 => adapter.assert_rejected(peer.to, &Secret::new().unwrap().to_request()),
        _ => {
            // All is well, and then it is not needed. A secret is good for one.
            let requested = adapter.ask(peer.to, &request);
            peer.tell_half();
            let _connected = adapter.finish(requested).unwrap();
            assert_eq!(Verdict::decode(&peer.hear()), Ok(Verdict::Connected));
            adapter.assert_rejected(peer.to, &request);
        }
    }
}

/// An emulated machine takes 20 ms for each.
fn failures() -> usize {
    std::env::var("KV_TESTS_HANDSHAKES").map_or(270, |count| count.parse().unwrap())
}

#[test]
#[ignore = "needs an RDMA device"]
fn handshakes_by_rdma_cm_that_fail_leave_nothing() {
    let _alone = crate::alone();
    let site = Site::over(Transport::VerbsCm);
    let adapter = Adapter::open();
    assert_failures_leave_nothing(&site, 90, failures(), |count| {
        (0..count).for_each(|how| fail(&site, &adapter, how));
    });
}

#[test]
#[ignore = "needs an RDMA device"]
fn a_flood_of_requests_stops_nobody() {
    let _alone = crate::alone();
    let (site, server, mut client) = good(Transport::VerbsCm, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let (is_over, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for flooder in 0..2_u8 {
            let (site, is_over, asked) = (&site, &is_over, &asked);
            scope.spawn(move || {
                let adapter = Adapter::open();
                let to = Peer::invited(site).to;
                // Many are under way at once, and nobody waits for the answers.
                let mut under_way = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    if under_way.len() == 50 {
                        under_way.clear();
                    }
                    under_way.push(adapter.ask(to, &[flooder; 24]));
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..10 {
            assert_unharmed(&mut client, round);
            let mut newcomer = site.connect(PATIENCE);
            assert_eq!(newcomer.get(b"absent"), Ok(None));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    server.wait_for_footprint(before, &mut client);
    println!("{} requests of nobody", asked.into_inner());
}

/// They have a session like any client that keeps silent; whoever does not ask at all has until the handshake's deadline.
#[test]
#[ignore = "needs an RDMA device"]
fn peers_that_never_ask_or_never_confirm_hold_nobody_up() {
    let _alone = crate::alone();
    let (site, server, mut client) = good(Transport::VerbsCm, "32MiB");
    let before = server.footprint_of_one(&mut client);
    let adapter = Adapter::open();
    let invited = || {
        let peer = Peer::invited(&site);
        peer.tell_half();
        peer
    };
    let never_ask: Vec<Peer> = (0..10).map(|_| invited()).collect();
    let never_confirm: Vec<(Peer, Requested)> = (0..10)
        .map(|_| {
            let peer = invited();
            let requested = adapter.ask(peer.to, &peer.secret.to_request());
            (peer, requested)
        })
        .collect();
    assert_unharmed(&mut client, 1);
    let newcomer = site.connect(PATIENCE);
    for peer in &never_ask {
        let answer = Answer::decode(&peer.hear());
        assert!(matches!(answer, Ok(Answer::Refused(HelloRefusal::TooLate { .. }))), "{answer:?}");
    }
    for (peer, _) in &never_confirm {
        assert_eq!(Verdict::decode(&peer.hear()), Ok(Verdict::Connected));
    }
    drop((newcomer, never_ask, never_confirm));
    server.wait_for_footprint(before, &mut client);
    assert_unharmed(&mut client, 2);
}

/// The default is the loopback, where the kernel's rdma_cm would listen on all addresses.
#[test]
#[ignore = "needs an RDMA device"]
fn nobody_listens_by_rdma_cm_at_the_loopback() {
    let _alone = crate::alone();
    let site = Site::over(Transport::Verbs);
    let server = site.serve();
    assert!(server.log().contains("clients with cm=rdma are refused"), "{}", server.log());
    let control = connect(&site.listen, deadline()).unwrap();
    send_hello(&control, &Hello::ours(Wanted::RdmaCm).encode(), &[], deadline()).unwrap();
    let answer = Answer::decode(&receive_hello(&control, 0, deadline()).unwrap().bytes);
    let expected = HelloRefusal::NotOffered { wanted: Wanted::RdmaCm };
    assert_eq!(answer, Ok(Answer::Refused(expected)));
    let listed = Command::new("rdma").args(["resource", "show", "cm_id"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("LISTEN"), "{listed:?}");
    assert_reason(&format!("{}?cm=rdma", site.url()), "has the address 127.");
}

fn assert_reason(url: &str, why: &str) {
    let Err(Error::Connect { reason, .. }) = Client::connect(url) else { panic!("connected") };
    assert!(reason.contains(why), "{reason}");
}

#[test]
#[ignore = "needs an RDMA device"]
fn what_rdma_cm_cannot_choose_is_named() {
    let _alone = crate::alone();
    let site = Site::over(Transport::VerbsCm);
    let _server = site.serve();
    assert_reason(&format!("{}&gid=1", site.url()), "gid=1 cannot be had with cm=rdma");
    assert_reason(&format!("{}&device=no_such_device", site.url()), "which is not what the URL names");
    let client = Client::connect(&site.url()).unwrap();
    assert!(client.connection().why.contains("connected by rdma_cm, as asked"));
    // The address that is asked for is somebody else's: TEST-NET-3.
    let begun = std::time::Instant::now();
    let options = kv_client::Options { timeout: Duration::from_secs(2), ..Default::default() };
    assert!(Client::connect_with("kv+rdma://203.0.113.1:7410?cm=rdma", &options).is_err());
    assert!(begun.elapsed() < PATIENCE);
}

/// As in a container that was given no device files.
#[test]
#[ignore = "needs an RDMA device"]
fn a_client_without_the_device_file_says_what_to_do() {
    let _alone = crate::alone();
    let site = Site::over(Transport::VerbsCm);
    let _server = site.serve();
    let script = "mount -t tmpfs none /dev/infiniband && exec \"$@\"";
    let ran = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(programs::kv_bench())
        .args(["load", "--workload", "b", "--recordcount", "1", "--url", &site.url()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("modprobe rdma_ucm"), "{said}");
}
