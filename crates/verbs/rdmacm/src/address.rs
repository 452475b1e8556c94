//! Socket addresses as the connection manager uses them: an IP address, a port and,
//! for link-local IPv6, an interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};

use super::{Errno, errno_of};

/// An IPv4 or IPv6 address with a port. Flow labels are not kept: two addresses that
/// differ only there name the same service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub ip: IpAddr,
    pub port: u16,
    /// Interface index of a link-local IPv6 address, otherwise 0.
    pub scope: u32,
}

impl Address {
    pub const fn new(ip: IpAddr, port: u16) -> Self {
        Self { ip, port, scope: 0 }
    }

    /// The wildcard address of the family of `like`, with `port`.
    pub fn any_like(like: &Address, port: u16) -> Self {
        match like.ip {
            IpAddr::V4(_) => Self::new(Ipv4Addr::UNSPECIFIED.into(), port),
            IpAddr::V6(_) => Self::new(Ipv6Addr::UNSPECIFIED.into(), port),
        }
    }

    pub fn is_any(&self) -> bool {
        self.ip.is_unspecified()
    }

    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    pub fn same_family(&self, other: &Address) -> bool {
        self.ip.is_ipv4() == other.ip.is_ipv4()
    }

    /// The RoCEv2 GID of the address: IPv4 is mapped into IPv6 (IBTA annex A17.4.5.2).
    pub fn gid(&self) -> [u8; 16] {
        match self.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }

    pub fn socket_addr(&self) -> SocketAddr {
        match self.ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, self.port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
        }
    }

    /// Whether the address belongs to an interface of this network namespace, or is a
    /// loopback address of it. Asks the kernel by binding a datagram socket to it: only
    /// local addresses can be bound.
    pub fn is_local(&self) -> bool {
        !self.is_any() && UdpSocket::bind(self.with_port(0).socket_addr()).is_ok()
    }

    /// The source address that the routing tables choose for this destination, port 0.
    ///
    /// Errors are those of `connect(2)` on a datagram socket, `ENETUNREACH` above all.
    /// Sends nothing and does not block.
    pub fn route_source(&self) -> Result<Address, Errno> {
        let any = Address::any_like(self, 0);
        let socket = UdpSocket::bind(any.socket_addr()).map_err(|e| errno_of(&e))?;
        // The port only has to be one that connect accepts.
        let port = if self.port == 0 { 1 } else { self.port };
        // A wildcard destination means this host, as it does for TCP.
        let target = if self.is_any() {
            match self.ip {
                IpAddr::V4(_) => Address::new(Ipv4Addr::LOCALHOST.into(), port),
                IpAddr::V6(_) => Address::new(Ipv6Addr::LOCALHOST.into(), port),
            }
        } else {
            self.with_port(port)
        };
        socket
            .connect(target.socket_addr())
            .map_err(|e| errno_of(&e))?;
        let local = socket.local_addr().map_err(|e| errno_of(&e))?;
        Ok(Address::from(local).with_port(0))
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(v4) => Self::new((*v4.ip()).into(), v4.port()),
            SocketAddr::V6(v6) => Self {
                ip: (*v6.ip()).into(),
                port: v6.port(),
                scope: v6.scope_id(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_routes_to_itself_and_is_local() {
        let loopback = Address::new(Ipv4Addr::LOCALHOST.into(), 7471);
        assert!(loopback.is_local());
        assert_eq!(
            loopback.route_source().expect("loopback has a route"),
            loopback.with_port(0)
        );
    }

    #[test]
    fn documentation_address_is_not_local() {
        let elsewhere = Address::new(Ipv4Addr::new(192, 0, 2, 1).into(), 7471);
        assert!(!elsewhere.is_local());
    }

    #[test]
    fn ipv4_gid_is_mapped() {
        let gid = Address::new(Ipv4Addr::new(10, 1, 2, 3).into(), 0).gid();
        assert_eq!(gid[..10], [0; 10]);
        assert_eq!(gid[10..], [0xff, 0xff, 10, 1, 2, 3]);
    }
}
