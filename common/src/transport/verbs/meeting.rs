//! How two sides that are connected by rdma_cm find each other: what the server tells over the control connection, and what
//! the client's connection request carries.
//!
//! ```text
//! meeting  | kind:32 = 4 | port:16 | protocol:16 | secret:128 |                                             24 bytes
//! request  | "KVRDMACM":64 | secret:128 |        24 bytes, the beginning of the request's private data
//! ```
//!
//! Little-endian. The server sends the meeting after its half, framed as that is. `port` is where it listens by rdma_cm, at
//! the address by which the client reached it; protocol 0 is InfiniBand or RoCE, 1 iWARP. The secret is random, of this
//! session, and good for one request.

use std::fmt;

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::exchange::{ExchangeError, kind_error};
use crate::verbs::cm::REQUEST_DATA_MAX_BYTES;
use crate::verbs::{Context, VerbError};

const MEETING: u32 = 4;
const REQUEST_MAGIC: [u8; 8] = *b"KVRDMACM";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MeetingWords {
    kind: U32,
    port: U16,
    protocol: U16,
    secret: [u8; 16],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RequestWords {
    magic: [u8; 8],
    secret: [u8; 16],
}

const _: () = assert!(size_of::<MeetingWords>() == 24 && size_of::<RequestWords>() == 24);
const _: () = assert!(size_of::<RequestWords>() <= REQUEST_DATA_MAX_BYTES);

/// Whoever has it may ask for the connection of one session, once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; 16]);

/// Its value is nobody's business.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Which packets a device speaks. Devices of different protocols cannot be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Protocol {
    /// InfiniBand, or RoCE.
    InfiniBand = 0,
    /// iWARP.
    Iwarp = 1,
}

/// Where and with what the server waits for the client's connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Port of rdma_cm, never 0.
    pub port: u16,
    /// What the server's device speaks.
    pub protocol: Protocol,
    /// What the request has to carry.
    pub secret: Secret,
}

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// If the kernel has no random bytes.
    pub fn new() -> Result<Secret, VerbError> {
        let mut bytes = [0; 16];
        // The kernel gives up to 256 bytes whole once it is seeded.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| VerbError::from_errno("getrandom", "a secret", errno.raw_os_error()))?;
        Ok(Secret(bytes))
    }

    /// The private data of a connection request.
    pub fn to_request(self) -> [u8; 24] {
        let words = RequestWords { magic: REQUEST_MAGIC, secret: self.0 };
        words.as_bytes().try_into().expect("a request has its size")
    }

    /// The secret in a connection request's private data, which may be filled with zeroes to more; none if that is nothing of
    /// ours.
    pub fn from_request(private_data: &[u8]) -> Option<Secret> {
        let (words, rest) = RequestWords::ref_from_prefix(private_data).ok()?;
        let is_ours = words.magic == REQUEST_MAGIC && rest.iter().all(|&byte| byte == 0);
        is_ours.then_some(Secret(words.secret))
    }
}

impl Protocol {
    /// That of a device.
    pub fn of(context: &Context) -> Protocol {
        if context.is_iwarp() { Protocol::Iwarp } else { Protocol::InfiniBand }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::InfiniBand => "InfiniBand or RoCE",
            Protocol::Iwarp => "iWARP",
        })
    }
}

impl Meeting {
    /// As bytes.
    pub fn encode(&self) -> [u8; 24] {
        let words = MeetingWords {
            kind: MEETING.into(),
            port: self.port.into(),
            protocol: (self.protocol as u16).into(),
            secret: self.secret.0,
        };
        words.as_bytes().try_into().expect("a meeting has its size")
    }

    /// The meeting in a message.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn decode(message: &[u8]) -> Result<Meeting, ExchangeError> {
        let words = MeetingWords::ref_from_bytes(message)
            .ok()
            .filter(|words| words.kind.get() == MEETING)
            .ok_or_else(|| kind_error(MEETING, message))?;
        let field = |field, found: u16| ExchangeError::Field { field, found: found.into() };
        let port = words.port.get();
        if port == 0 {
            return Err(field("the port of rdma_cm", port));
        }
        let protocol = match words.protocol.get() {
            0 => Protocol::InfiniBand,
            1 => Protocol::Iwarp,
            found => return Err(field("the device's protocol", found)),
        };
        Ok(Meeting { port, protocol, secret: Secret(words.secret) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret(*b"0123456789abcdef");

    /// Written down by hand from the picture above; docs/layout.md shows the same.
    #[test]
    fn bytes_are_as_described() {
        let meeting = Meeting { port: 0x1cf2, protocol: Protocol::Iwarp, secret: SECRET };
        let bytes = *b"\x04\0\0\0\xf2\x1c\x01\x000123456789abcdef";
        assert_eq!(meeting.encode(), bytes);
        assert_eq!(Meeting::decode(&bytes), Ok(meeting));
        assert_eq!(&SECRET.to_request(), b"KVRDMACM0123456789abcdef");
    }

    #[test]
    fn a_request_is_ours_or_nothing() {
        let request = SECRET.to_request();
        assert_eq!(Secret::from_request(&request), Some(SECRET));
        assert_eq!(Secret::from_request(&[&request[..], &[0; 32]].concat()), Some(SECRET));
        assert_eq!(Secret::from_request(&[&request[..], b"x"].concat()), None);
        assert_eq!(Secret::from_request(&request[..23]), None);
        assert_eq!(Secret::from_request(&[0; 56]), None);
        assert_eq!(Secret::from_request(b"kvrdmacm0123456789abcdef"), None);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = *b"\x04\0\0\0\xf2\x1c\0\x000123456789abcdef";
            bytes[at] = byte;
            Meeting::decode(&bytes)
        };
        assert!(with(7, 0).is_ok());
        assert!(matches!(with(0, 3), Err(ExchangeError::Kind { expected: 4, found: 3, .. })));
        assert_eq!(with(6, 2), Err(ExchangeError::Field { field: "the device's protocol", found: 2 }));
        let mut no_port = with(7, 0).unwrap().encode();
        no_port[4..6].fill(0);
        assert_eq!(
            Meeting::decode(&no_port),
            Err(ExchangeError::Field { field: "the port of rdma_cm", found: 0 })
        );
        assert!(Meeting::decode(&[]).is_err());
    }

    #[test]
    fn secrets_differ_and_are_not_shown() {
        let (a, b) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_ne!(a, b);
        assert_eq!(format!("{a:?}"), "Secret");
    }
}
