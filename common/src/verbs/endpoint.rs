//! What two sides tell each other to connect, and the port that this side uses.

use std::net::IpAddr;
use std::sync::Arc;

use super::context::Context;
use super::error::VerbError;
use super::gid::{Gid, GidEntry};
use super::gid_rank::{GidChoice, rank_gids};
use super::path::NUMBER_MAX;
use super::port::{LinkLayer, Mtu, PortAttributes, PortState};

/// One side's half of a connection, as it is sent to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Number of its queue pair, 24 bits.
    pub queue_pair: u32,
    /// Number of its first packet, 24 bits, random.
    pub sequence: u32,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Its GID: the value; an index would mean nothing to the other side.
    pub gid: Gid,
    /// Its active MTU.
    pub mtu: Mtu,
    /// READs in flight that it can start.
    pub reads_started_max: u8,
    /// READs in flight that it can serve.
    pub reads_served_max: u8,
}

/// Bytes of an encoded [`Endpoint`].
pub const ENDPOINT_BYTES: usize = 32;

/// Why bytes are no endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No MTU has this code.
    #[error("MTU code {0} is none of 1 to 5 (256 to 4096 bytes)")]
    Mtu(u8),
    /// More than 24 bits.
    #[error("{what} {number:#x} has more than 24 bits")]
    Number {
        /// Which.
        what: &'static str,
        /// The number.
        number: u32,
    },
    /// Bytes that are reserved are not zero.
    #[error("reserved bytes are not zero: the peer speaks a newer version")]
    Reserved,
}

impl Endpoint {
    /// The half of the queue pair with this number, on `port`, with a random packet sequence number.
    ///
    /// # Errors
    /// If the device does not answer or the kernel has no random bytes.
    pub fn new(queue_pair: u32, port: &LocalPort) -> Result<Endpoint, VerbError> {
        let attributes = port.context.attributes()?;
        let mut random = [0; 4];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
            VerbError::from_errno("getrandom", "a packet sequence number", errno.raw_os_error())
        })?;
        Ok(Endpoint {
            queue_pair,
            sequence: u32::from_le_bytes(random) & NUMBER_MAX,
            lid: port.attributes.lid,
            gid: port.gid.gid,
            mtu: port.attributes.active_mtu,
            reads_started_max: attributes.reads_started_max,
            reads_served_max: attributes.reads_served_max,
        })
    }

    /// As bytes: queue pair, sequence (4 each), LID (2), MTU code, READs started, READs served (1 each), 3 zeroes, GID (16).
    /// Numbers are little-endian.
    pub fn to_bytes(&self) -> [u8; ENDPOINT_BYTES] {
        let mut bytes = [0; ENDPOINT_BYTES];
        bytes[0..4].copy_from_slice(&self.queue_pair.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_le_bytes());
        bytes[10] = self.mtu.code();
        bytes[11] = self.reads_started_max;
        bytes[12] = self.reads_served_max;
        bytes[16..32].copy_from_slice(&self.gid.0);
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are not what [`Endpoint::to_bytes`] makes.
    pub fn from_bytes(bytes: &[u8; ENDPOINT_BYTES]) -> Result<Endpoint, EndpointError> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let number = |what, at| match word(at) {
            number if number > NUMBER_MAX => Err(EndpointError::Number { what, number }),
            number => Ok(number),
        };
        if bytes[13..16] != [0; 3] {
            return Err(EndpointError::Reserved);
        }
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[16..32]);
        Ok(Endpoint {
            queue_pair: number("queue pair", 0)?,
            sequence: number("packet sequence number", 4)?,
            lid: u16::from_le_bytes([bytes[8], bytes[9]]),
            gid: Gid(gid),
            mtu: Mtu::from_code(u32::from(bytes[10])).ok_or(EndpointError::Mtu(bytes[10]))?,
            reads_started_max: bytes[11],
            reads_served_max: bytes[12],
        })
    }
}

/// A port of this side with the GID that is used on it.
#[derive(Clone)]
pub struct LocalPort {
    context: Arc<Context>,
    number: u8,
    attributes: PortAttributes,
    gid: GidEntry,
}

/// Why a port cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LocalPortError {
    /// It is not active.
    #[error(
        "{device}:{port} is {state}; check cable and switch, and `ip link set DEV up`; on InfiniBand a subnet manager"
    )]
    Down {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: PortState,
    },
    /// No LID on InfiniBand.
    #[error(
        "{device}:{port} has LID 0: no subnet manager has configured it; start opensm on one host of the fabric"
    )]
    NoLid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// No entry of the GID table can be used.
    #[error(
        "{device}:{port} has no usable GID; give its network interface an address, and look at `kv devices`"
    )]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The entry that was asked for is not there.
    #[error("{device}:{port} has no GID at index {wanted}; there are: {found}")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index asked for.
        wanted: u8,
        /// Those that there are.
        found: String,
    },
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] VerbError),
}

impl LocalPort {
    /// Looks at a port and chooses its GID: the one at `gid_index` if that is given, else by [`rank_gids`]. The choice comes
    /// with its reasons, to be logged.
    ///
    /// # Errors
    /// If the port is not active or has no such GID.
    pub fn choose(
        context: &Arc<Context>,
        port: u8,
        gid_index: Option<u8>,
        reaching: Option<IpAddr>,
    ) -> Result<(LocalPort, GidChoice), LocalPortError> {
        let attributes = context.port(port)?;
        let device = || context.device().name.clone();
        if attributes.state != PortState::Active {
            return Err(LocalPortError::Down { device: device(), port, state: attributes.state });
        }
        if attributes.link_layer == LinkLayer::InfiniBand && attributes.lid == 0 {
            return Err(LocalPortError::NoLid { device: device(), port });
        }
        let entries = context.gids(port)?;
        let mut choice = rank_gids(&entries, attributes.link_layer, reaching);
        if let Some(wanted) = gid_index {
            let Some(entry) = entries.iter().find(|entry| entry.index == wanted) else {
                let found =
                    entries.iter().map(|entry| format!("{} ({}, {})", entry.index, entry.gid, entry.kind));
                let found = found.collect::<Vec<_>>().join(", ");
                return Err(LocalPortError::NoSuchGid { device: device(), port, wanted, found });
            };
            choice = GidChoice {
                chosen: Some(entry.clone()),
                reason: "its index was given",
                rejected: Vec::new(),
            };
        }
        let Some(gid) = choice.chosen.clone() else {
            return Err(LocalPortError::NoGid { device: device(), port });
        };
        Ok((LocalPort { context: Arc::clone(context), number: port, attributes, gid }, choice))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The port's number.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// What is known about it.
    pub fn attributes(&self) -> &PortAttributes {
        &self.attributes
    }

    /// The GID that is used on it.
    pub fn gid(&self) -> &GidEntry {
        &self.gid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written down by hand from the description of the format.
    const BYTES: [u8; ENDPOINT_BYTES] = [
        0x12, 0x03, 0, 0, 0xff, 0xff, 0xff, 0, 0x09, 0x01, 3, 16, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0xff, 0xff, 192, 0, 2, 1,
    ];

    #[test]
    fn bytes_are_as_described() {
        let endpoint = Endpoint {
            queue_pair: 0x312,
            sequence: 0xff_ffff,
            lid: 0x109,
            gid: Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1)),
            mtu: Mtu::B1024,
            reads_started_max: 16,
            reads_served_max: 128,
        };
        assert_eq!(endpoint.to_bytes(), BYTES);
        assert_eq!(Endpoint::from_bytes(&BYTES), Ok(endpoint));
    }

    #[test]
    fn other_bytes_are_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BYTES;
            bytes[at] = byte;
            Endpoint::from_bytes(&bytes)
        };
        assert_eq!(with(10, 0), Err(EndpointError::Mtu(0)));
        assert_eq!(with(10, 6), Err(EndpointError::Mtu(6)));
        assert_eq!(with(15, 1), Err(EndpointError::Reserved));
        assert!(matches!(with(3, 1), Err(EndpointError::Number { what: "queue pair", .. })));
        assert!(matches!(with(7, 1), Err(EndpointError::Number { .. })));
    }
}
