//! RDMA on this host: devices, ports, GIDs, MTU, registration, a READ to itself, losses.

use std::error::Error;
use std::net::IpAddr;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_common::verbs::{Capacity, PortAttributes, PortState};
use kv_common::verbs::{
    CompletionQueue, Completions, Context, Endpoint, LocalPort, MemoryRegion, Mtu, OpenError, Path,
    ProtectionDomain, QueuePair, QueuePairOptions, Rc, ReadSink, RemoteReadable, RemoteRights, RetryPolicy,
    SendBatch, anonymous_words, devices, rank_gids,
};

use super::Finding;
use crate::cli::devices::local_address_towards;

/// Bytes of the READ from this host to itself: more than any MTU.
const LOOPBACK_BYTES: u64 = 64 << 10;
const LOOPBACK_PATIENCE: Duration = Duration::from_secs(10);

/// Counters of a port that count losses and repetitions, as drivers name them.
const LOSS_COUNTERS: [&str; 10] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
    "rcvd_seq_err",
    "completer_retry_err",
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
];

pub(super) fn check(url: &str) -> Vec<Finding> {
    const CHECK: &str = "rdma device";
    let is_wanted = url.starts_with("kv+rdma://");
    let no_device = |found: String, remedy: &str| {
        // Without a device the store runs over shared memory and TCP.
        vec![if is_wanted {
            Finding::failed(CHECK, found, remedy)
        } else {
            Finding::warning(CHECK, found, remedy)
        }]
    };
    let all = match devices() {
        Ok(all) if all.is_empty() => {
            return no_device(
                kv_common::verbs::absence().to_string(),
                "as the line above says; or go on without: shared memory on one host, TCP between hosts",
            );
        }
        Ok(all) => all,
        Err(error) => {
            return no_device(error.to_string(), "install rdma-core (libibverbs1, ibverbs-providers)");
        }
    };
    let reaching = host_of(url).and_then(|host| local_address_towards(host).ok());
    let mut findings: Vec<Finding> =
        all.iter().flat_map(|device| check_device(&device.name, reaching)).collect();
    let protocols: Vec<_> = all.iter().map(|device| device.transport).collect();
    findings.push(super::rdma_cm::check(url, &protocols));
    findings
}

/// The host in a URL `scheme://host[:port][?...]`, without the brackets of an IPv6 address.
fn host_of(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("kv://").or_else(|| url.strip_prefix("kv+rdma://"))?;
    let authority = rest.split(['/', '?']).next()?;
    match authority.strip_prefix('[') {
        Some(inside) => inside.split(']').next(),
        None => authority.split(':').next(),
    }
    .filter(|host| !host.is_empty())
}

fn check_device(name: &str, reaching: Option<IpAddr>) -> Vec<Finding> {
    const CHECK: &str = "rdma device";
    let context = match Context::open(Some(name)) {
        Ok(context) => context,
        Err(error @ (OpenError::None(_) | OpenError::NoSuchDevice { .. } | OpenError::Verb(_))) => {
            let remedy = "the device's files must be open to this user: /dev/infiniband/uverbs*, group rdma";
            return vec![Finding::failed(CHECK, format!("{name}: {error}"), remedy)];
        }
    };
    let attributes = match context.attributes() {
        Ok(attributes) => attributes,
        Err(error) => {
            return vec![Finding::failed(CHECK, error.to_string(), "check dmesg; reload the module")];
        }
    };
    let mut findings = vec![Finding::ok(
        CHECK,
        format!("{name}, {:?}, firmware {}", context.device().transport, attributes.firmware),
    )];
    findings.push(Finding::ok(
        "max_mr_size",
        format!(
            "{name} registers up to {} bytes at once: the most that --memory can be",
            attributes.memory_region_max_bytes
        ),
    ));
    for port in 1..=attributes.ports {
        findings.extend(check_port(&context, port, reaching));
    }
    findings
}

fn check_port(context: &Arc<Context>, number: u8, reaching: Option<IpAddr>) -> Vec<Finding> {
    let at = format!("{}:{number}", context.device().name);
    let port = match context.port(number) {
        Ok(port) => port,
        Err(error) => {
            return vec![Finding::failed("port", error.to_string(), "check dmesg; reload the module")];
        }
    };
    if port.state != PortState::Active {
        let remedy = "check cable and switch, `ip link set DEV up`; on InfiniBand a subnet manager (opensm)";
        return vec![Finding::failed("port", format!("{at} is {}", port.state), remedy)];
    }
    let mut findings = vec![Finding::ok("port", format!("{at} is active, {}", port.link_layer))];
    findings.push(check_gid(context, number, &port, reaching));
    findings.push(check_mtu(&at, &port));
    findings.push(check_loopback(context, number, &at));
    findings.push(check_losses(&context.device().sysfs.join("ports").join(number.to_string()), &at));
    findings
}

fn check_gid(context: &Arc<Context>, number: u8, port: &PortAttributes, reaching: Option<IpAddr>) -> Finding {
    const CHECK: &str = "GID";
    let gids = match context.gids(number) {
        Ok(gids) => gids,
        Err(error) => return Finding::failed(CHECK, error.to_string(), "is sysfs mounted at /sys?"),
    };
    let choice = rank_gids(&gids, port.link_layer, reaching);
    match choice.chosen {
        Some(entry) => {
            let interface = entry.interface.as_deref().unwrap_or("-");
            Finding::ok(
                CHECK,
                format!(
                    "index {} {} ({}, {interface}): {}",
                    entry.index, entry.gid, entry.kind, choice.reason
                ),
            )
        }
        None => Finding::failed(
            CHECK,
            format!("none of the {} entries can be used", gids.len()),
            "give the port's network interface an address: ip addr add ADDRESS/LEN dev DEV; `kv devices` shows the table",
        ),
    }
}

fn check_mtu(at: &str, port: &PortAttributes) -> Finding {
    let found = format!("{at} uses {} bytes of at most {}", port.active_mtu.bytes(), port.max_mtu.bytes());
    if port.active_mtu < port.max_mtu && port.active_mtu < Mtu::B4096 {
        let remedy = "low bandwidth comes from here, too: ip link set DEV mtu 4200 (or 9000) on both hosts and on the switch";
        return Finding::warning("MTU", found, remedy);
    }
    Finding::ok("MTU", found)
}

fn check_loopback(context: &Arc<Context>, number: u8, at: &str) -> Finding {
    const CHECK: &str = "loopback READ";
    if context.is_iwarp() {
        let found =
            format!("{at}: iWARP, which is connected by rdma_cm only; the probe READ of a server shows more");
        return Finding::skipped(CHECK, found);
    }
    match loopback(context, number) {
        Ok(took) => Finding::ok(
            CHECK,
            format!(
                "{at}: queue pairs connected, {LOOPBACK_BYTES} bytes registered and read in {:.1} us",
                took.as_nanos() as f64 / 1e3
            ),
        ),
        Err(error) => Finding::failed(
            CHECK,
            format!("{at}: {error}"),
            "the line names the step: registration (memlock, max_mr_size), the way to ready-to-send (GID, MTU), or the READ \
             itself (firewall on UDP port 4791, a device that fails)",
        ),
    }
}

/// Registers memory, connects two queue pairs of this port with each other, and READs more than an MTU.
fn loopback(context: &Arc<Context>, number: u8) -> Result<Duration, Box<dyn Error>> {
    let (port, _) = LocalPort::choose(context, number, None, None)?;
    let domain = ProtectionDomain::allocate(context)?;
    let queue = CompletionQueue::create(context, 4, 1, None, 0)?;
    let served =
        MemoryRegion::<RemoteReadable>::register(&domain, &anonymous_words(LOOPBACK_BYTES as usize, false)?)?;
    let sink =
        MemoryRegion::<ReadSink>::register(&domain, &anonymous_words(LOOPBACK_BYTES as usize, false)?)?;
    let last = LOOPBACK_BYTES as usize / 8 - 1;
    served.words().store(last, 0x6b76);
    let options = QueuePairOptions {
        domain: &domain,
        send_queue: &queue,
        receive_queue: &queue,
        shared_receive: None,
        capacity: Capacity { sends: 1, receives: 1, inline_bytes: 0 },
    };
    let (reader, target) = (QueuePair::<Rc, _>::create(&options)?, QueuePair::<Rc, _>::create(&options)?);
    let (here, there) = (Endpoint::new(reader.number(), &port)?, Endpoint::new(target.number(), &port)?);
    let retry = RetryPolicy::default();
    let _target = target
        .initialize(port.number(), RemoteRights::Read)?
        .connect(&Path::new(&port, &there, &here, retry)?)?;
    let mut reader = reader
        .initialize(port.number(), RemoteRights::None)?
        .connect(&Path::new(&port, &here, &there, retry)?)?;
    let mut batch = SendBatch::with_capacity(1);
    batch.read(1, sink.range(0, LOOPBACK_BYTES)?, served.remote().range(0, LOOPBACK_BYTES)?)?.signalled();
    let started = Instant::now();
    reader.post_send(&mut batch)?;
    let mut room = Completions::with_capacity(1);
    let result = loop {
        if let Some(completion) = queue.poll(&mut room)?.next() {
            break completion.result();
        }
        if started.elapsed() > LOOPBACK_PATIENCE {
            return Err(format!("no completion within {} s", LOOPBACK_PATIENCE.as_secs()).into());
        }
        std::thread::yield_now();
    };
    result?;
    let took = started.elapsed();
    match sink.words().load(last) {
        0x6b76 => Ok(took),
        other => Err(format!("the READ completed and brought {other:#x} where 0x6b76 is").into()),
    }
}

fn check_losses(port: &FilePath, at: &str) -> Finding {
    const CHECK: &str = "losses";
    let counters = port.join("hw_counters");
    let read = |name: &&'static str| {
        let count: u64 = std::fs::read_to_string(counters.join(name)).ok()?.trim().parse().ok()?;
        Some((*name, count))
    };
    let found: Vec<(&str, u64)> = LOSS_COUNTERS.iter().filter_map(read).collect();
    if found.is_empty() {
        return Finding::skipped(CHECK, format!("{at} has no such counters in {}", counters.display()));
    }
    let lossy: Vec<String> =
        found.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
    if lossy.is_empty() {
        return Finding::ok(CHECK, format!("{at}: none in {} counters", found.len()));
    }
    let remedy = "packets were lost or repeated since the device came up: on RoCE set up PFC or ECN on adapters and switches \
                  (docs/hardware.md), and look for a bad cable";
    Finding::warning(CHECK, format!("{at}: {}", lossy.join(", ")), remedy)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_host_is_found_in_a_url() {
        assert_eq!(host_of("kv+rdma://host:7410?device=rxe0"), Some("host"));
        assert_eq!(host_of("kv://[fe80::1]:7410"), Some("fe80::1"));
        assert_eq!(host_of("kv://10.0.0.1"), Some("10.0.0.1"));
        assert_eq!(host_of("kv+shm:///tmp/x"), None);
        assert_eq!(host_of("kv://"), None);
    }

    #[test]
    fn losses_are_the_counters_that_are_not_zero() {
        let port = tempfile::tempdir().unwrap();
        assert_eq!(check_losses(port.path(), "d:1").level, Level::Skipped);
        std::fs::create_dir(port.path().join("hw_counters")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(port.path().join("hw_counters").join(name), text).unwrap()
        };
        write("out_of_sequence", "0\n");
        assert_eq!(check_losses(port.path(), "d:1").level, Level::Ok);
        write("packet_seq_err", "12\n");
        let finding = check_losses(port.path(), "d:1");
        assert_eq!(finding.level, Level::Warning);
        assert!(finding.found.contains("packet_seq_err 12"), "{}", finding.found);
    }
}
