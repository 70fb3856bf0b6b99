//! Which GID of a port to use for which peer, and why not the others.

use std::fmt;
use std::net::IpAddr;

use super::gid::{Gid, GidEntry, GidKind};
use super::port::LinkLayer;

/// The GID to use, and the others with the reasons against them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The one to use; none if no entry can be used at all.
    pub chosen: Option<GidEntry>,
    /// Why it, for people.
    pub reason: &'static str,
    /// All others.
    pub rejected: Vec<Rejected>,
}

/// An entry that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The entry.
    pub entry: GidEntry,
    /// Why.
    pub why: Rejection,
}

/// Why an entry is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// There is nothing in it.
    AllZero,
    /// An entry of Ethernet on an InfiniBand port or the other way round.
    WrongLinkLayer,
    /// The peer is reached from another address.
    OtherAddress {
        /// The address that reaches the peer.
        reaching: IpAddr,
    },
    /// RoCE v1, and there is v2.
    Version1,
    /// Link-local, and there is one that is routed.
    LinkLocal,
    /// As good as the chosen one, with a higher index.
    LaterIndex,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rejection::AllZero => f.write_str("empty"),
            Rejection::WrongLinkLayer => f.write_str("not of this port's link layer"),
            Rejection::OtherAddress { reaching } => write!(f, "the peer is reached from {reaching}"),
            Rejection::Version1 => f.write_str("RoCE v1, and v2 is there"),
            Rejection::LinkLocal => f.write_str("link-local, and a routable one is there"),
            Rejection::LaterIndex => f.write_str("equal to the chosen one, later in the table"),
        }
    }
}

/// How good an entry is; the order of the fields is the order of importance. True is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Merit {
    /// Its address is the one that packets to the peer leave from.
    reaches_peer: bool,
    not_version_1: bool,
    routable: bool,
}

impl Merit {
    fn of(entry: &GidEntry, reaching: Option<IpAddr>) -> Merit {
        Merit {
            reaches_peer: reaching.is_some_and(|address| Gid::from(address) == entry.gid),
            not_version_1: entry.kind != GidKind::RoceV1,
            // The default prefix of InfiniBand looks link-local and is what everybody there has.
            routable: matches!(entry.kind, GidKind::InfiniBand | GidKind::Iwarp)
                || !entry.gid.is_link_local(),
        }
    }
}

/// Chooses among the entries of a port.
///
/// `reaching` is the local address from which the peer is reached, if it is known. An entry with that address comes first,
/// because the network is known to carry its packets; then v2 before v1, routable before link-local, and the lowest
/// index. Empty entries are never used.
pub fn rank_gids(entries: &[GidEntry], link_layer: LinkLayer, reaching: Option<IpAddr>) -> GidChoice {
    let fits = |entry: &GidEntry| match link_layer {
        LinkLayer::InfiniBand => entry.kind == GidKind::InfiniBand,
        LinkLayer::Ethernet => entry.kind != GidKind::InfiniBand,
        LinkLayer::Unspecified => true,
    };
    let usable = entries.iter().filter(|entry| !entry.gid.is_zero() && fits(entry));
    let chosen = usable.max_by_key(|entry| (Merit::of(entry, reaching), u8::MAX - entry.index)).cloned();
    let best = chosen.as_ref().map(|entry| Merit::of(entry, reaching));
    let rejected = entries
        .iter()
        .filter(|entry| chosen.as_ref() != Some(entry))
        .map(|entry| {
            let why = if entry.gid.is_zero() {
                Rejection::AllZero
            } else if let (true, Some(best)) = (fits(entry), best) {
                worse(Merit::of(entry, reaching), best, reaching)
            } else {
                Rejection::WrongLinkLayer
            };
            Rejected { entry: entry.clone(), why }
        })
        .collect();
    GidChoice {
        reason: match &chosen {
            Some(entry) if entry.kind == GidKind::Iwarp => "iWARP: peers are addressed by IP",
            _ => best.map_or("no entry can be used", |best| why_chosen(best, link_layer)),
        },
        chosen,
        rejected,
    }
}

/// The first point in which an entry is worse than the best.
fn worse(merit: Merit, best: Merit, reaching: Option<IpAddr>) -> Rejection {
    match reaching {
        Some(reaching) if best.reaches_peer && !merit.reaches_peer => Rejection::OtherAddress { reaching },
        _ if best.not_version_1 && !merit.not_version_1 => Rejection::Version1,
        _ if best.routable && !merit.routable => Rejection::LinkLocal,
        _ => Rejection::LaterIndex,
    }
}

fn why_chosen(best: Merit, link_layer: LinkLayer) -> &'static str {
    match best {
        _ if link_layer == LinkLayer::InfiniBand => "InfiniBand",
        Merit { reaches_peer: true, not_version_1: true, .. } => "its address reaches the peer, RoCE v2",
        Merit { reaches_peer: true, .. } => "its address reaches the peer, RoCE v1 only",
        Merit { not_version_1: true, routable: true, .. } => "RoCE v2, routable",
        Merit { not_version_1: true, .. } => "RoCE v2, but link-local: only peers on the same link",
        Merit { routable: true, .. } => "RoCE v1 only: not routed",
        _ => "RoCE v1 only, link-local",
    }
}

#[cfg(test)]
mod tests {
    use super::GidKind::{InfiniBand, Iwarp, RoceV1, RoceV2};
    use super::*;

    fn entry(index: u8, gid: &str, kind: GidKind) -> GidEntry {
        let gid = gid.parse::<IpAddr>().unwrap().into();
        GidEntry { index, gid, kind, interface: Some("eth0".into()) }
    }

    /// Link layer, address that reaches the peer, table, index that is chosen, rejections by index.
    type Case<'a> =
        (LinkLayer, Option<&'a str>, &'a [(u8, &'a str, GidKind)], Option<u8>, &'a [(u8, Rejection)]);

    #[test]
    fn cases() {
        let reaching = |text: &str| Rejection::OtherAddress { reaching: text.parse().unwrap() };
        let usual: &[_] = &[
            (0, "fe80::1", RoceV1),
            (1, "fe80::1", RoceV2),
            (2, "10.0.0.1", RoceV1),
            (3, "10.0.0.1", RoceV2),
            (4, "10.7.0.1", RoceV1),
            (5, "10.7.0.1", RoceV2),
        ];
        let cases: &[Case] = &[
            // What a ConnectX shows, nothing known about the peer: v2, routable, lowest index.
            (
                LinkLayer::Ethernet,
                None,
                usual,
                Some(3),
                &[
                    (0, Rejection::Version1),
                    (1, Rejection::LinkLocal),
                    (2, Rejection::Version1),
                    (4, Rejection::Version1),
                    (5, Rejection::LaterIndex),
                ],
            ),
            // The peer is on the VLAN.
            (
                LinkLayer::Ethernet,
                Some("10.7.0.1"),
                usual,
                Some(5),
                &[
                    (0, reaching("10.7.0.1")),
                    (1, reaching("10.7.0.1")),
                    (2, reaching("10.7.0.1")),
                    (3, reaching("10.7.0.1")),
                    (4, Rejection::Version1),
                ],
            ),
            // The peer is reached through another interface: its address is no entry, so the best by kind.
            (LinkLayer::Ethernet, Some("192.0.2.9"), &usual[2..4], Some(3), &[(2, Rejection::Version1)]),
            // The peer is named by a link-local address.
            (
                LinkLayer::Ethernet,
                Some("fe80::1"),
                &usual[..4],
                Some(1),
                &[(0, Rejection::Version1), (2, reaching("fe80::1")), (3, reaching("fe80::1"))],
            ),
            // soft-RoCE before and after the interface got an address.
            (LinkLayer::Ethernet, None, &[(0, "fe80::2", RoceV2)], Some(0), &[]),
            (
                LinkLayer::Ethernet,
                None,
                &[(0, "fe80::2", RoceV2), (1, "192.0.2.1", RoceV2)],
                Some(1),
                &[(0, Rejection::LinkLocal)],
            ),
            // IPv6.
            (
                LinkLayer::Ethernet,
                Some("2001:db8::7"),
                &[(0, "10.0.0.1", RoceV2), (1, "2001:db8::7", RoceV2)],
                Some(1),
                &[(0, reaching("2001:db8::7"))],
            ),
            // Never an empty one.
            (LinkLayer::Ethernet, None, &[(0, "::", RoceV2)], None, &[(0, Rejection::AllZero)]),
            (LinkLayer::Ethernet, None, &[], None, &[]),
            // v1 alone is better than nothing.
            (LinkLayer::Ethernet, None, &[(0, "10.0.0.1", RoceV1)], Some(0), &[]),
            // iWARP has one, made of the MAC address.
            (LinkLayer::Ethernet, Some("10.0.0.1"), &[(0, "5254:0:1::", Iwarp)], Some(0), &[]),
            // InfiniBand's default prefix is no reason against an entry.
            (
                LinkLayer::InfiniBand,
                None,
                &[(0, "fe80::3", InfiniBand), (1, "fec0::3", InfiniBand)],
                Some(0),
                &[(1, Rejection::LaterIndex)],
            ),
            (
                LinkLayer::InfiniBand,
                None,
                &[(0, "10.0.0.1", RoceV2)],
                None,
                &[(0, Rejection::WrongLinkLayer)],
            ),
        ];
        for (number, (link_layer, reaching, table, chosen, rejected)) in cases.iter().enumerate() {
            let table: Vec<_> = table.iter().map(|&(index, gid, kind)| entry(index, gid, kind)).collect();
            let choice = rank_gids(&table, *link_layer, reaching.map(|text| text.parse().unwrap()));
            assert_eq!(choice.chosen.map(|entry| entry.index), *chosen, "case {number}");
            let found: Vec<_> = choice.rejected.iter().map(|one| (one.entry.index, one.why)).collect();
            assert_eq!(&found[..], *rejected, "case {number}");
        }
    }
}
