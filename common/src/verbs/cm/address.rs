//! Socket addresses as the C library has them.
#![allow(unsafe_code, reason = "reads and writes the C library's socket addresses")]

use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};

/// Room for an address of any family.
pub(super) struct RawAddress(sockaddr_storage);

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> RawAddress {
        // SAFETY: all zeroes are a value of this struct of integers.
        let mut raw: sockaddr_storage = unsafe { mem::zeroed() };
        match address {
            SocketAddr::V4(address) => {
                // SAFETY: the storage is large enough and aligned for every kind of address, and nobody else has it.
                let v4 = unsafe { &mut *(&raw mut raw).cast::<sockaddr_in>() };
                v4.sin_family = AF_INET as u16;
                v4.sin_port = address.port().to_be();
                v4.sin_addr.s_addr = u32::from(*address.ip()).to_be();
            }
            SocketAddr::V6(address) => {
                // SAFETY: as above.
                let v6 = unsafe { &mut *(&raw mut raw).cast::<sockaddr_in6>() };
                v6.sin6_family = AF_INET6 as u16;
                v6.sin6_port = address.port().to_be();
                v6.sin6_flowinfo = address.flowinfo();
                v6.sin6_addr.s6_addr = address.ip().octets();
                v6.sin6_scope_id = address.scope_id();
            }
        }
        RawAddress(raw)
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }

    /// The address in `storage`; none if it is of another family.
    pub(super) fn read(storage: &sockaddr_storage) -> Option<SocketAddr> {
        match i32::from(storage.ss_family) {
            AF_INET => {
                // SAFETY: the storage is large enough and aligned, and the family says that this is in it.
                let v4 = unsafe { &*(&raw const *storage).cast::<sockaddr_in>() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
            }
            AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { &*(&raw const *storage).cast::<sockaddr_in6>() };
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(std::net::SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        for text in ["192.0.2.1:7410", "[2001:db8::1]:1", "[fe80::1%3]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::read(&RawAddress::new(address).0), Some(address));
        }
        // SAFETY: all zeroes are a value of this struct of integers.
        assert_eq!(RawAddress::read(&unsafe { mem::zeroed() }), None);
    }

    #[test]
    fn bytes_are_in_network_order() {
        let mut raw = RawAddress::new("192.0.2.1:7410".parse().unwrap());
        // SAFETY: an IPv4 address was just written, of which these are the bytes behind the family.
        let bytes = unsafe { *raw.as_mut_ptr().cast::<[u8; 8]>() };
        assert_eq!(bytes[2..], [0x1c, 0xf2, 192, 0, 2, 1]);
    }
}
