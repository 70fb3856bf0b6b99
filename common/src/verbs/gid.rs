//! GIDs: the 128-bit addresses of a port, and the table that holds them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::{fmt, fs, io};

use super::device::Transport;

/// Entries that are looked at; drivers have at most some hundred.
const TABLE_MAX: u32 = 4096;

/// A GID: an IPv6 address, or an IPv4 one mapped into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// True if there is nothing in this entry.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }

    /// True for fe80::/10: reaches only the same link.
    pub fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The subnet prefix, which on InfiniBand says whether two ports are in one subnet.
    pub fn subnet_prefix(self) -> [u8; 8] {
        *self.0.first_chunk().expect("16 bytes have a first 8")
    }

    /// The IP address that this GID was made from.
    pub fn address(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Gid {
        Gid(match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        })
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(address: Ipv4Addr) -> Gid {
        IpAddr::V4(address).into()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// How packets with a GID are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE v1: an Ethernet type of its own, not routed.
    RoceV1,
    /// RoCE v2: UDP port 4791.
    RoceV2,
    /// iWARP: made of the interface's MAC address, and nobody is addressed by it.
    Iwarp,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Iwarp => "iWARP",
        })
    }
}

/// One entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index, which means nothing to any other port.
    pub index: u8,
    /// The GID.
    pub gid: Gid,
    /// Its kind.
    pub kind: GidKind,
    /// The network interface that it belongs to; none on InfiniBand.
    pub interface: Option<String>,
}

/// Reads the table of the port whose directory in sysfs this is.
///
/// The kernel has files `gids/N`, `gid_attrs/types/N` and `gid_attrs/ndevs/N`; the latter two cannot be read for an entry
/// that is empty.
pub(super) fn read_table(port: &Path, transport: Transport) -> io::Result<Vec<GidEntry>> {
    let is_ethernet = fs::read_to_string(port.join("link_layer"))?.trim() == "Ethernet";
    let mut entries = Vec::new();
    for index in 0..TABLE_MAX {
        let text = match fs::read_to_string(port.join("gids").join(index.to_string())) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        let gid = parse_gid(&text).ok_or_else(|| {
            io::Error::other(format!("gids/{index} holds {:?}, which is no GID", text.trim()))
        })?;
        // An entry beyond 255 cannot be named in an address, so it cannot be used either.
        let Ok(index) = u8::try_from(index) else { break };
        if gid.is_zero() {
            continue;
        }
        let attribute =
            |name: &str| fs::read_to_string(port.join("gid_attrs").join(name).join(index.to_string()));
        // An entry can go away between two reads: then it has no type any more.
        let Some(kind) = attribute("types").ok().and_then(|text| parse_kind(&text, is_ethernet)) else {
            continue;
        };
        let kind = if transport == Transport::Iwarp { GidKind::Iwarp } else { kind };
        let interface =
            attribute("ndevs").ok().map(|text| text.trim().to_owned()).filter(|name| !name.is_empty());
        entries.push(GidEntry { index, gid, kind, interface });
    }
    Ok(entries)
}

/// What the kernel writes to `gids/N`: eight groups of four digits, nothing left out.
fn parse_gid(text: &str) -> Option<Gid> {
    text.trim().parse::<Ipv6Addr>().ok().map(|address| Gid(address.octets()))
}

/// What the kernel writes to `gid_attrs/types/N`, but for iWARP, where it is meaningless. It says `IB/RoCE v1` for InfiniBand and for RoCE v1 alike.
fn parse_kind(text: &str, is_ethernet: bool) -> Option<GidKind> {
    match text.trim() {
        "RoCE v2" => Some(GidKind::RoceV2),
        "IB/RoCE v1" if is_ethernet => Some(GidKind::RoceV1),
        "IB/RoCE v1" => Some(GidKind::InfiniBand),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_apart_by_the_link_layer() {
        assert_eq!(parse_kind("IB/RoCE v1\n", false), Some(GidKind::InfiniBand));
        assert_eq!(parse_kind("IB/RoCE v1\n", true), Some(GidKind::RoceV1));
        assert_eq!(parse_kind("RoCE v2\n", true), Some(GidKind::RoceV2));
        assert_eq!(parse_kind("RoCE v3", true), None);
        assert_eq!(parse_kind("", true), None);
    }

    #[test]
    fn gids_are_addresses() {
        let mapped = parse_gid("0000:0000:0000:0000:0000:ffff:c000:0201\n").unwrap();
        assert_eq!(mapped.address(), "192.0.2.1".parse::<IpAddr>().unwrap());
        assert_eq!(mapped, Gid::from(Ipv4Addr::new(192, 0, 2, 1)));
        assert_eq!(mapped.to_string(), "::ffff:192.0.2.1");
        let local = parse_gid("fe80:0000:0000:0000:5054:00ff:fe00:0001").unwrap();
        assert!(local.is_link_local() && !mapped.is_link_local());
        assert_eq!(parse_gid("mlx5_0"), None);
    }

    #[test]
    fn a_table_has_no_empty_entries_and_ends_where_the_files_end() {
        let port = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = port.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("link_layer", "Ethernet\n");
        write("gids/0", "fe80:0000:0000:0000:0000:00ff:fe00:0001\n");
        write("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n");
        write("gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        write("gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0002\n");
        write("gid_attrs/types/0", "IB/RoCE v1\n");
        write("gid_attrs/types/2", "RoCE v2\n");
        write("gid_attrs/ndevs/0", "eth0\n");
        write("gid_attrs/ndevs/2", "eth0.7\n");
        let table = read_table(port.path(), Transport::InfiniBand).unwrap();
        let seen: Vec<_> = table
            .iter()
            .map(|entry| (entry.index, entry.kind, entry.interface.as_deref().unwrap()))
            .collect();
        assert_eq!(seen, [(0, GidKind::RoceV1, "eth0"), (2, GidKind::RoceV2, "eth0.7")]);
        let iwarp = read_table(port.path(), Transport::Iwarp).unwrap();
        assert!(iwarp.iter().all(|entry| entry.kind == GidKind::Iwarp) && iwarp.len() == 2);
    }
}
