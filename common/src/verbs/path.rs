//! The way to a peer: address, MTU, READ depth, retries.

use std::fmt;

use super::endpoint::{Endpoint, LocalPort};
use super::gid::Gid;
use super::port::{LinkLayer, Mtu, PortAttributes};

/// Queue pair numbers and packet sequence numbers have 24 bits.
pub(super) const NUMBER_MAX: u32 = (1 << 24) - 1;
/// Hops that a packet may take; link-local ones need 1, and a router takes one off.
const HOP_LIMIT: u8 = 64;

/// When a reliable queue pair repeats and when it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The wait for an acknowledgement, as the exponent of verbs: 4.096 us times 2 to this, 1 to 31 (0 would be for ever).
    pub timeout_exponent: u8,
    /// Repetitions before it gives up, at most 6. (Verbs have a 7th, which soft-RoCE takes for "for ever".)
    pub retries: u8,
    /// Repetitions to a receiver that is not ready, at most 6 (7 would be for ever).
    pub receiver_retries: u8,
    /// The wait that this side asks of a sender when it is not ready itself, in the code of verbs: 12 is 0.64 ms; 0 would
    /// be 655 ms.
    pub receiver_timer: u8,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy { timeout_exponent: 14, retries: 6, receiver_retries: 6, receiver_timer: 12 }
    }
}

impl RetryPolicy {
    /// The wait for one acknowledgement, in ns.
    pub fn timeout_ns(self) -> u64 {
        4096 << self.timeout_exponent.min(31)
    }

    /// The least time after which a peer that never answers is given up, in ns. Adapters wait up to four times longer.
    pub fn gives_up_after_ns(self) -> u64 {
        self.timeout_ns() * (u64::from(self.retries) + 1)
    }

    /// The policy within what verbs can express, without the endless settings.
    pub(super) fn bounded(self) -> RetryPolicy {
        RetryPolicy {
            timeout_exponent: self.timeout_exponent.clamp(1, 31),
            retries: self.retries.min(6),
            receiver_retries: self.receiver_retries.min(6),
            receiver_timer: self.receiver_timer.clamp(1, 31),
        }
    }
}

/// Everything that a queue pair has to know about its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Port of this side.
    pub port: u8,
    /// The peer's local identifier; 0 on Ethernet.
    pub remote_lid: u16,
    /// Set if packets carry a global route header.
    pub route: Option<Route>,
    /// The peer's queue pair.
    pub remote_queue_pair: u32,
    /// The first packet that is sent has this number.
    pub local_sequence: u32,
    /// The first packet that is received has this number.
    pub remote_sequence: u32,
    /// The smaller of both active MTUs.
    pub mtu: Mtu,
    /// READs that this side may have in flight: what it can, and the peer can serve.
    pub reads_started_max: u8,
    /// READs of the peer that this side serves at once: what it can, and the peer can start.
    pub reads_served_max: u8,
    /// Repetitions.
    pub retry: RetryPolicy,
}

/// The part of an address that a global route header needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Index of this side's GID.
    pub local_gid_index: u8,
    /// The peer's GID.
    pub remote_gid: Gid,
}

/// Why two ports cannot be connected like this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The peer has no GID.
    #[error(
        "the peer's GID is all zero: its port has no usable GID; give its interface an address (`kv devices` there)"
    )]
    NoRemoteGid,
    /// The peer has no LID.
    #[error(
        "the peer's LID is 0: no subnet manager has configured its port; start opensm on one host of the fabric"
    )]
    NoRemoteLid,
    /// The peer sent a number that is none.
    #[error("the peer sent {what} {number:#x}, which has more than 24 bits")]
    Number {
        /// Which.
        what: &'static str,
        /// The number.
        number: u32,
    },
    /// Neither side could READ.
    #[error(
        "this side can start {started} READs at once and the peer can serve {served}: with 0 there is no reading; is the \
         device able to do RDMA READ?"
    )]
    NoReads {
        /// By this side.
        started: u8,
        /// By the peer.
        served: u8,
    },
}

impl Path {
    /// The path from `local`, on `port`, to `remote`.
    ///
    /// # Errors
    /// If what the peer sent cannot be used.
    pub fn new(
        port: &LocalPort,
        local: &Endpoint,
        remote: &Endpoint,
        retry: RetryPolicy,
    ) -> Result<Path, PathError> {
        Path::between(port.number(), port.attributes(), port.gid().index, local, remote, retry)
    }

    fn between(
        port: u8,
        attributes: &PortAttributes,
        local_gid_index: u8,
        local: &Endpoint,
        remote: &Endpoint,
        retry: RetryPolicy,
    ) -> Result<Path, PathError> {
        for (what, number) in [("queue pair", remote.queue_pair), ("packet sequence number", remote.sequence)]
        {
            if number > NUMBER_MAX {
                return Err(PathError::Number { what, number });
            }
        }
        let is_infiniband = attributes.link_layer == LinkLayer::InfiniBand;
        let needs_route = !is_infiniband
            || attributes.grh_required
            || remote.gid.subnet_prefix() != local.gid.subnet_prefix();
        if is_infiniband && remote.lid == 0 {
            return Err(PathError::NoRemoteLid);
        }
        if needs_route && remote.gid.is_zero() {
            return Err(PathError::NoRemoteGid);
        }
        let reads_started_max = local.reads_started_max.min(remote.reads_served_max);
        if reads_started_max == 0 {
            return Err(PathError::NoReads {
                started: local.reads_started_max,
                served: remote.reads_served_max,
            });
        }
        Ok(Path {
            port,
            remote_lid: if is_infiniband { remote.lid } else { 0 },
            route: needs_route.then_some(Route { local_gid_index, remote_gid: remote.gid }),
            remote_queue_pair: remote.queue_pair,
            local_sequence: local.sequence,
            remote_sequence: remote.sequence,
            mtu: local.mtu.min(remote.mtu),
            reads_started_max,
            reads_served_max: local.reads_served_max.min(remote.reads_started_max),
            retry: retry.bounded(),
        })
    }

    pub(super) fn to_raw(self) -> rdma_sys::ibv_ah_attr {
        let (gid, index) =
            self.route.map_or((Gid::default(), 0), |route| (route.remote_gid, route.local_gid_index));
        rdma_sys::ibv_ah_attr {
            grh: rdma_sys::ibv_global_route {
                dgid: rdma_sys::ibv_gid { raw: gid.0 },
                flow_label: 0,
                sgid_index: index,
                hop_limit: HOP_LIMIT,
                traffic_class: 0,
            },
            dlid: self.remote_lid,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            is_global: u8::from(self.route.is_some()),
            port_num: self.port,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "port {}, MTU {}, READs {} out and {} in",
            self.port,
            self.mtu.bytes(),
            self.reads_started_max,
            self.reads_served_max
        )?;
        if self.remote_lid != 0 {
            write!(f, ", LID {:#x}", self.remote_lid)?;
        }
        if let Some(route) = self.route {
            write!(f, ", GID {} from index {}", route.remote_gid, route.local_gid_index)?;
        }
        write!(
            f,
            ", acknowledgements within {} ms, gives up after {} ms",
            self.retry.timeout_ns() / 1_000_000,
            self.retry.gives_up_after_ns() / 1_000_000
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::port::PortState;

    fn endpoint() -> Endpoint {
        Endpoint {
            queue_pair: 0x12,
            sequence: 0xff_ffff,
            lid: 0,
            gid: Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1)),
            mtu: Mtu::B1024,
            reads_started_max: 16,
            reads_served_max: 16,
        }
    }

    fn between(link_layer: LinkLayer, local: &Endpoint, remote: &Endpoint) -> Result<Path, PathError> {
        let attributes = PortAttributes {
            state: PortState::Active,
            link_layer,
            active_mtu: Mtu::B4096,
            max_mtu: Mtu::B4096,
            lid: local.lid,
            grh_required: false,
            gid_table_len: 1,
            message_max_bytes: 1 << 31,
            active_speed: 1,
            active_width: 1,
        };
        Path::between(1, &attributes, 3, local, remote, RetryPolicy::default())
    }

    fn roce(local: &Endpoint, remote: &Endpoint) -> Result<Path, PathError> {
        between(LinkLayer::Ethernet, local, remote)
    }

    #[test]
    fn the_smaller_of_both_sides_counts() {
        let local = Endpoint { mtu: Mtu::B4096, reads_started_max: 16, reads_served_max: 4, ..endpoint() };
        let remote = Endpoint { mtu: Mtu::B1024, reads_started_max: 2, reads_served_max: 8, ..endpoint() };
        let path = roce(&local, &remote).unwrap();
        assert_eq!((path.mtu, path.reads_started_max, path.reads_served_max), (Mtu::B1024, 8, 2));
        let back = roce(&remote, &local).unwrap();
        assert_eq!((back.reads_started_max, back.reads_served_max), (2, 8), "both sides agree");
    }

    #[test]
    fn ethernet_needs_a_gid_and_infiniband_a_lid() {
        let roce = |remote: Endpoint| roce(&endpoint(), &remote);
        assert_eq!(roce(Endpoint { gid: Gid::default(), ..endpoint() }), Err(PathError::NoRemoteGid));
        let path = roce(Endpoint { lid: 9, ..endpoint() }).unwrap();
        assert_eq!((path.remote_lid, path.route.unwrap().remote_gid), (0, endpoint().gid));

        let infiniband = |remote: Endpoint| between(LinkLayer::InfiniBand, &endpoint(), &remote);
        assert_eq!(infiniband(Endpoint { lid: 0, ..endpoint() }), Err(PathError::NoRemoteLid));
        let near = infiniband(Endpoint { lid: 9, ..endpoint() }).unwrap();
        assert_eq!((near.remote_lid, near.route), (9, None), "one subnet: the LID is enough");
        let elsewhere = Gid([0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        let far = infiniband(Endpoint { lid: 9, gid: elsewhere, ..endpoint() }).unwrap();
        assert_eq!(far.route.unwrap().remote_gid, elsewhere, "another subnet: a global route header");
    }

    #[test]
    fn what_a_peer_sends_is_not_trusted() {
        let path = |remote: Endpoint| roce(&endpoint(), &remote);
        let wide = 1 << 24;
        assert!(matches!(path(Endpoint { queue_pair: wide, ..endpoint() }), Err(PathError::Number { .. })));
        assert!(matches!(path(Endpoint { sequence: wide, ..endpoint() }), Err(PathError::Number { .. })));
        assert!(matches!(
            path(Endpoint { reads_served_max: 0, ..endpoint() }),
            Err(PathError::NoReads { .. })
        ));
    }

    #[test]
    fn retries_are_never_endless() {
        let endless =
            RetryPolicy { timeout_exponent: 0, retries: 200, receiver_retries: 7, receiver_timer: 0 };
        let bounded = endless.bounded();
        assert_eq!((bounded.timeout_exponent, bounded.retries, bounded.receiver_retries), (1, 6, 6));
        assert_ne!(bounded.receiver_timer, 0);
        assert_eq!(RetryPolicy::default().timeout_ns(), 67_108_864);
    }
}
