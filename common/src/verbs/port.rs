//! Ports: state, link layer, MTU.

use std::fmt;

use rdma_sys::{ibv_port_attr, ibv_port_state};

/// `IBV_LINK_LAYER_*` of verbs.h, which has no named type.
const LINK_LAYER_INFINIBAND: u8 = 1;
const LINK_LAYER_ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED` of verbs.h, a bit of a port's flags.
const GRH_REQUIRED: u8 = 1;

/// What a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// Addressed by LID.
    InfiniBand,
    /// Addressed by GID (RoCE), or by IP (iWARP).
    Ethernet,
    /// The driver does not say.
    Unspecified,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unspecified",
        })
    }
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link, but no subnet manager has configured it.
    Initializing,
    /// Configured, not yet in use.
    Armed,
    /// Usable.
    Active,
    /// Another number of `enum ibv_port_state`.
    Other(u32),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::Down => f.write_str("down"),
            PortState::Initializing => f.write_str("initializing (is a subnet manager running?)"),
            PortState::Armed => f.write_str("armed"),
            PortState::Active => f.write_str("active"),
            PortState::Other(number) => write!(f, "state {number}"),
        }
    }
}

/// The largest payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// The MTU with this number in `enum ibv_mtu`.
    pub fn from_code(code: u32) -> Option<Mtu> {
        Some(match code {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return None,
        })
    }

    /// Its number in `enum ibv_mtu`.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Bytes.
    pub fn bytes(self) -> u32 {
        128 << self.code()
    }
}

/// What is known about a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Its state.
    pub state: PortState,
    /// What it is plugged into.
    pub link_layer: LinkLayer,
    /// The MTU in use.
    pub active_mtu: Mtu,
    /// The largest MTU that it could use.
    pub max_mtu: Mtu,
    /// Its local identifier; 0 on Ethernet, and on InfiniBand until a subnet manager has given one.
    pub lid: u16,
    /// True if packets need a global route header although this is InfiniBand.
    pub grh_required: bool,
    /// Entries of its GID table, empty ones included.
    pub gid_table_len: u32,
    /// Bytes of the largest message.
    pub message_max_bytes: u32,
    /// Speed of one lane, as verbs count it.
    pub active_speed: u8,
    /// Lanes, as verbs count them.
    pub active_width: u8,
}

impl PortAttributes {
    pub(super) fn from_raw(raw: &ibv_port_attr) -> PortAttributes {
        PortAttributes {
            state: match raw.state {
                ibv_port_state::IBV_PORT_DOWN => PortState::Down,
                ibv_port_state::IBV_PORT_INIT => PortState::Initializing,
                ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
                ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
            link_layer: match raw.link_layer {
                LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            // A port that is down may report none; the smallest is always right.
            active_mtu: Mtu::from_code(raw.active_mtu).unwrap_or(Mtu::B256),
            max_mtu: Mtu::from_code(raw.max_mtu).unwrap_or(Mtu::B256),
            lid: raw.lid,
            grh_required: raw.flags & GRH_REQUIRED != 0,
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            message_max_bytes: raw.max_msg_sz,
            active_speed: raw.active_speed,
            active_width: raw.active_width,
        }
    }

    /// Gbit/s of the link before encoding and headers, if the driver's numbers are known ones.
    pub fn rate_gbit_s(&self) -> Option<f64> {
        let lanes = match self.active_width {
            1 => 1.0,
            2 => 4.0,
            4 => 8.0,
            8 => 12.0,
            16 => 2.0,
            _ => return None,
        };
        let lane = match self.active_speed {
            1 => 2.5,
            2 => 5.0,
            4 | 8 => 10.0,
            16 => 14.0,
            32 => 25.0,
            64 => 50.0,
            128 => 100.0,
            _ => return None,
        };
        Some(lanes * lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_what_verbs_number_them() {
        let all: Vec<_> = (0..7).map(|code| Mtu::from_code(code).map(Mtu::bytes)).collect();
        assert_eq!(all, [None, Some(256), Some(512), Some(1024), Some(2048), Some(4096), None]);
        assert!(Mtu::from_code(3) < Mtu::from_code(5));
    }
}
