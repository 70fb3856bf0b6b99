//! `kv devices`: the RDMA devices of this host, their ports and GIDs, and which GID would be used for which peer.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::Arc;

use kv_common::verbs::cm::check_device_file;
use kv_common::verbs::{Context, DeviceAttributes, GidChoice, PortState, VerbError, devices, rank_gids};
use serde_json::{Value, json};

use super::{CliError, End, print};

/// Arguments of `kv devices`.
#[derive(clap::Args)]
pub(super) struct DevicesArguments {
    /// Show which GID would be used to reach this host (name or address).
    #[arg(long, value_name = "HOST")]
    peer: Option<String>,
    /// As one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints what there is. Ends as "not found" if no port could be used.
pub(super) fn run(arguments: &DevicesArguments) -> Result<End, CliError> {
    let reaching = arguments.peer.as_deref().map(local_address_towards).transpose()?;
    let all = devices().map_err(verb)?;
    if all.is_empty() {
        eprintln!("kv: {}", kv_common::verbs::absence());
    }
    let mut shown = Vec::new();
    let mut is_usable = false;
    for device in &all {
        let context = match Context::open(Some(&device.name)) {
            Ok(context) => context,
            Err(error) => {
                shown.push(json!({ "name": device.name, "error": error.to_string() }));
                continue;
            }
        };
        let attributes = context.attributes().map_err(verb)?;
        let ports: Vec<Value> = (1..=attributes.ports)
            .map(|port| describe_port(&context, port, reaching, &mut is_usable))
            .collect();
        shown.push(json!({
            "name": device.name,
            "node_type": format!("{:?}", device.node_type),
            "protocol": format!("{:?}", device.transport),
            "guid": format!("{:016x}", device.guid),
            "firmware": attributes.firmware,
            "connected_by": connected_by(&context),
            "vendor": format!("{:#06x}", attributes.vendor),
            "limits": limits(&attributes),
            "ports": ports,
        }));
    }
    let reaching = reaching.map(|address| address.to_string());
    let object = json!({ "schema": 1, "peer": arguments.peer, "reached_from": reaching, "devices": shown });
    if arguments.json {
        print(format_args!("{object:#}"))?;
    } else {
        print_text(&object)?;
    }
    Ok(if is_usable { End::Done } else { End::NotFoundOrDiffers })
}

/// The address of this host from which packets to `host` leave. Nothing is sent.
pub(super) fn local_address_towards(host: &str) -> Result<IpAddr, CliError> {
    let failed = |error| super::io(&format!("finding the way to {host:?}"), error);
    let peer: SocketAddr = (host, 7410).to_socket_addrs().map_err(failed)?.next().ok_or_else(|| {
        failed(std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"))
    })?;
    let any: SocketAddr = if peer.is_ipv4() { ([0; 4], 0).into() } else { ([0; 16], 0).into() };
    let socket = UdpSocket::bind(any).map_err(failed)?;
    socket.connect(peer).map_err(failed)?;
    Ok(socket.local_addr().map_err(failed)?.ip())
}

fn verb(error: VerbError) -> CliError {
    CliError::Rdma(error.to_string())
}

/// What a URL's `cm=` may be for this device.
fn connected_by(context: &Context) -> Vec<&'static str> {
    let by_tcp = (!context.is_iwarp()).then_some("tcp");
    let by_cm = check_device_file().is_ok().then_some("rdma");
    by_tcp.into_iter().chain(by_cm).collect()
}

fn limits(attributes: &DeviceAttributes) -> Value {
    json!({
        "memory_region_max_bytes": attributes.memory_region_max_bytes,
        "memory_regions_max": attributes.memory_regions_max,
        "queue_pairs_max": attributes.queue_pairs_max,
        "requests_per_queue_max": attributes.requests_per_queue_max,
        "completions_max": attributes.completions_max,
        "shared_receive_queues_max": attributes.shared_receive_queues_max,
        "reads_started_max": attributes.reads_started_max,
        "reads_served_max": attributes.reads_served_max,
    })
}

fn describe_port(context: &Arc<Context>, port: u8, reaching: Option<IpAddr>, is_usable: &mut bool) -> Value {
    let (attributes, gids) = match (context.port(port), context.gids(port)) {
        (Ok(attributes), Ok(gids)) => (attributes, gids),
        (Err(error), _) | (_, Err(error)) => {
            return json!({ "port": port, "error": error.to_string() });
        }
    };
    let choice = rank_gids(&gids, attributes.link_layer, reaching);
    *is_usable |= attributes.state == PortState::Active && choice.chosen.is_some();
    json!({
        "port": port,
        "state": attributes.state.to_string(),
        "link_layer": attributes.link_layer.to_string(),
        "lid": attributes.lid,
        "active_mtu_bytes": attributes.active_mtu.bytes(),
        "max_mtu_bytes": attributes.max_mtu.bytes(),
        "rate_gbit_s": attributes.rate_gbit_s(),
        "gids": describe_gids(&choice),
    })
}

/// All entries in the order of the table, the chosen one marked, the others with the reason against them.
fn describe_gids(choice: &GidChoice) -> Vec<Value> {
    let rejected = choice.rejected.iter().map(|one| (&one.entry, false, one.why.to_string()));
    let chosen = choice.chosen.iter().map(|entry| (entry, true, choice.reason.to_owned()));
    let mut all: Vec<_> = rejected.chain(chosen).collect();
    all.sort_by_key(|(entry, ..)| entry.index);
    all.into_iter()
        .map(|(entry, is_chosen, why)| {
            json!({
                "index": entry.index,
                "gid": entry.gid.to_string(),
                "type": entry.kind.to_string(),
                "interface": entry.interface,
                "chosen": is_chosen,
                "why": why,
            })
        })
        .collect()
}

fn print_text(object: &Value) -> Result<(), CliError> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for device in object["devices"].as_array().into_iter().flatten() {
        if let Some(error) = device["error"].as_str() {
            print(format_args!("{}: {error}", text(&device["name"])))?;
            continue;
        }
        print(format_args!(
            "{}: {}, {}, guid {}, firmware {}",
            text(&device["name"]),
            text(&device["node_type"]),
            text(&device["protocol"]),
            text(&device["guid"]),
            text(&device["firmware"]),
        ))?;
        let by: Vec<String> = device["connected_by"].as_array().into_iter().flatten().map(text).collect();
        let by = if by.is_empty() {
            "nothing: /dev/infiniband/rdma_cm is missing".into()
        } else {
            by.join(" or ")
        };
        print(format_args!("  {:<28} {by}", "connected by (cm=)"))?;
        for (name, value) in device["limits"].as_object().into_iter().flatten() {
            print(format_args!("  {:<28} {value}", name.replace('_', " ")))?;
        }
        for port in device["ports"].as_array().into_iter().flatten() {
            print_port(port)?;
        }
    }
    Ok(())
}

fn print_port(port: &Value) -> Result<(), CliError> {
    let text = |name: &str| port[name].as_str().map_or_else(|| port[name].to_string(), str::to_owned);
    if let Some(error) = port["error"].as_str() {
        print(format_args!("  port {}: {error}", port["port"]))?;
        return Ok(());
    }
    let rate =
        port["rate_gbit_s"].as_f64().map_or("of unknown rate".to_owned(), |rate| format!("{rate} Gbit/s"));
    print(format_args!(
        "  port {}: {}, {}, MTU {} of at most {}, {rate}, LID {}",
        port["port"],
        text("state"),
        text("link_layer"),
        port["active_mtu_bytes"],
        port["max_mtu_bytes"],
        port["lid"],
    ))?;
    for gid in port["gids"].as_array().into_iter().flatten() {
        let of = |name: &str| gid[name].as_str().unwrap_or("-").to_owned();
        let mark = if gid["chosen"] == true { "->" } else { "  " };
        print(format_args!(
            "  {mark} GID {:<3} {:<39} {:<10} {:<8} {}",
            gid["index"].to_string(),
            of("gid"),
            of("type"),
            of("interface"),
            of("why"),
        ))?;
    }
    Ok(())
}
