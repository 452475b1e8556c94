//! Addresses as the kernel writes them for a socket.

use std::net::{IpAddr, SocketAddr};

use libc::c_int;
use sluice_sys::unix;

/// A `struct sockaddr_in` or `struct sockaddr_in6`.
pub(crate) struct RawAddress {
    bytes: [u8; size_of::<libc::sockaddr_in6>()],
    len: usize,
}

impl RawAddress {
    /// The address in the family of the socket: IPv4 is mapped for an IPv6 socket, as the kernel does
    /// it. `None` if a socket of that family has no such addresses.
    pub fn in_family_of(fd: c_int, address: SocketAddr) -> Option<RawAddress> {
        let mut domain = [0; 4];
        unix::get_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, &mut domain).ok()?;
        let mut bytes = [0_u8; size_of::<libc::sockaddr_in6>()];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let domain = i32::from_ne_bytes(domain);
        bytes[..2].copy_from_slice(&(domain as u16).to_ne_bytes());
        let len = match (domain, address.ip()) {
            (libc::AF_INET, IpAddr::V4(ip)) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                size_of::<libc::sockaddr_in>()
            }
            (libc::AF_INET6, ip) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                bytes[8..24].copy_from_slice(&ip.octets());
                size_of::<libc::sockaddr_in6>()
            }
            _ => return None,
        };
        Some(RawAddress { bytes, len })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
