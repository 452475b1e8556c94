//! Addresses as the programs have them: 16 bytes, IPv4 as `::ffff:a.b.c.d` (RFC 4291 §2.5.5.2).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

pub const BYTES: usize = 16;

pub fn bytes(address: IpAddr) -> [u8; BYTES] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub fn parse(bytes: [u8; BYTES]) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
}

/// The same address whatever the family of the socket that it was taken from.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// `N` bytes at `at`; None beyond the end.
pub fn field<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..)?.first_chunk::<N>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_come_back() {
        for text in ["192.0.2.1", "2001:db8::1", "::1", "127.0.0.1"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(parse(bytes(address)), address);
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
        assert_eq!(canonical(mapped), "192.0.2.1:80".parse().unwrap());
    }

    #[test]
    fn fields_end_with_the_record() {
        assert_eq!(field::<2>(&[1, 2, 3], 1), Some([2, 3]));
        assert_eq!(field::<2>(&[1, 2, 3], 2), None);
        assert_eq!(field::<2>(&[1, 2, 3], 4), None);
    }
}
