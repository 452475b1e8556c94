//! How daemons and relays write what they say to each other on the network: fields one behind the
//! other, numbers in network byte order, IPv4 addresses mapped into IPv6 (RFC 4291 §2.5.5.2).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address and a port.
pub(crate) const ADDRESS_BYTES: usize = 18;

/// What is left to read. Each field is `None` where less is left than it takes.
pub(crate) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_be_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    pub fn ip(&mut self) -> Option<IpAddr> {
        Some(Ipv6Addr::from(self.take::<16>()?).to_canonical())
    }

    pub fn address(&mut self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.ip()?, self.u16()?))
    }
}

/// See [`Fields::ip`].
pub(crate) fn ip_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// See [`Fields::address`].
pub(crate) fn address_bytes(address: SocketAddr) -> [u8; ADDRESS_BYTES] {
    let mut out = [0; ADDRESS_BYTES];
    out[..16].copy_from_slice(&ip_bytes(address.ip()));
    out[16..].copy_from_slice(&address.port().to_be_bytes());
    out
}

/// Checks that a word is read as it was written, and that nothing shorter or longer is one.
#[cfg(test)]
pub(crate) fn check_word<W: PartialEq + std::fmt::Debug>(
    word: W,
    bytes: &[u8],
    decode: fn(&[u8]) -> Option<W>,
) {
    for len in 0..bytes.len() {
        assert_eq!(decode(&bytes[..len]), None, "{word:?}");
    }
    assert_eq!(decode(&[bytes, &[0]].concat()), None, "{word:?}");
    assert_eq!(decode(bytes), Some(word));
}
