//! Between which addresses a connection runs, in memory that others read.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU8, AtomicU16, Ordering};

/// An IPv6 address, or an IPv4 one as one (RFC 4291 §2.5.5.2), and a port.
#[repr(C)]
pub(super) struct Address {
    ip: [AtomicU8; 16],
    port: AtomicU16,
}

/// Both ends' addresses. They are for people: who reads them while they are stored may find half of each.
#[repr(C)]
pub(super) struct Addresses {
    pub(super) local: Address,
    pub(super) peer: Address,
}

impl Addresses {
    pub fn set(&self, local: &SocketAddr, peer: &SocketAddr) {
        self.local.store(local);
        self.peer.store(peer);
    }

    /// There are none, or none that is known.
    pub fn clear(&self) {
        let nowhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0);
        self.set(&nowhere, &nowhere);
    }

    /// The ports of this end and of the other, 0 where there are none.
    pub fn ports(&self) -> [u16; 2] {
        [&self.local, &self.peer].map(|address| address.port.load(Ordering::Relaxed))
    }

    /// The address at `at` of bytes that another process wrote; `None` where they end before it does.
    pub fn read(bytes: &[u8], at: usize) -> Option<SocketAddr> {
        let ip: [u8; 16] = bytes.get(at..at.checked_add(16)?)?.try_into().ok()?;
        let port: [u8; 2] = bytes
            .get(at.checked_add(16)?..at.checked_add(18)?)?
            .try_into()
            .ok()?;
        let ip = Ipv6Addr::from(ip);
        let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
        Some(SocketAddr::new(ip, u16::from_ne_bytes(port)))
    }
}

impl Address {
    fn store(&self, address: &SocketAddr) {
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        for (to, byte) in self.ip.iter().zip(ip.octets()) {
            to.store(byte, Ordering::Relaxed);
        }
        self.port.store(address.port(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(addresses: &Addresses) -> Vec<u8> {
        let mut bytes = Vec::new();
        for address in [&addresses.local, &addresses.peer] {
            bytes.extend(address.ip.iter().map(|byte| byte.load(Ordering::Relaxed)));
            bytes.extend(address.port.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn what_was_stored_is_read_by_others() {
        let address = || Address {
            ip: [const { AtomicU8::new(0xff) }; 16],
            port: AtomicU16::new(0xffff),
        };
        let addresses = Addresses {
            local: address(),
            peer: address(),
        };
        for (local, peer) in [
            ("192.0.2.1:80", "[2001:db8::7]:65535"),
            ("[::ffff:192.0.2.2]:1", "[::]:0"),
        ] {
            let [local, peer]: [SocketAddr; 2] = [local, peer].map(|it| it.parse().unwrap());
            addresses.set(&local, &peer);
            assert_eq!(addresses.ports(), [local.port(), peer.port()]);
            let bytes = bytes_of(&addresses);
            let plain = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
            assert_eq!(Addresses::read(&bytes, 0), Some(plain(local)));
            let at = core::mem::offset_of!(Addresses, peer);
            assert_eq!(Addresses::read(&bytes, at), Some(plain(peer)));
            for at in [at + 1, 35, 36, usize::MAX - 16, usize::MAX] {
                assert_eq!(Addresses::read(&bytes, at), None, "{at}: too few bytes");
            }
        }
        addresses.clear();
        assert_eq!(addresses.ports(), [0, 0]);
    }
}
