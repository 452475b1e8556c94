//! Messages of rtnetlink(7), as bytes.
//!
//! Sluice reads a handful of attributes of five messages, in the address space of somebody else's
//! program; so this is a cursor over bytes and not a crate with a type for every attribute.
//! Nothing here panics, whatever the bytes; what is damaged ends the reading.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sluice_sys::netlink::{attributes, u16_at, u32_at};

/// An address of four or sixteen bytes.
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(four) = <[u8; 4]>::try_from(bytes) {
        return Some(Ipv4Addr::from(four).into());
    }
    let six = <[u8; 16]>::try_from(bytes).ok()?;
    Some(Ipv6Addr::from(six).into())
}

/// A link (`RTM_NEWLINK`, `RTM_DELLINK`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    /// `ARPHRD_…`.
    pub hardware: u16,
    /// `IFF_…`.
    pub flags: u32,
    pub name: String,
    pub mtu: u32,
    pub mac: Option<[u8; 6]>,
    pub kind: Option<String>,
}

impl Link {
    /// None for what is damaged, and for what a bridge says of its ports.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut link = Self {
            index: u32_at(body, 4)?,
            hardware: u16_at(body, 2)?,
            flags: u32_at(body, 8)?,
            name: String::new(),
            mtu: 0,
            mac: None,
            kind: None,
        };
        if i32::from(*body.first()?) != libc::AF_UNSPEC {
            return None;
        }
        for (kind, data) in attributes(body, 16) {
            match kind {
                libc::IFLA_ADDRESS => link.mac = data.try_into().ok(),
                libc::IFLA_IFNAME => link.name = text(data),
                libc::IFLA_MTU => link.mtu = u32_at(data, 0)?,
                libc::IFLA_LINKINFO => {
                    let mut inside = attributes(data, 0);
                    let found = inside.find(|(kind, _)| *kind == libc::IFLA_INFO_KIND);
                    link.kind = found.map(|(_, data)| text(data));
                }
                _ => {}
            }
        }
        Some(link)
    }
}

fn text(data: &[u8]) -> String {
    let end = data.iter().position(|byte| *byte == 0);
    let bytes = data.get(..end.unwrap_or(data.len())).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// An address of an interface (`RTM_NEWADDR`, `RTM_DELADDR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub interface: u32,
    pub address: IpAddr,
    pub prefix_bits: u8,
    /// Nobody else has it, as far as is known: it may be used.
    pub usable: bool,
}

impl Address {
    pub fn parse(body: &[u8]) -> Option<Self> {
        let interface = u32_at(body, 4)?;
        let prefix_bits = *body.get(1)?;
        let mut flags = u32::from(*body.get(2)?);
        let (mut local, mut other) = (None, None);
        for (kind, data) in attributes(body, 8) {
            match kind {
                libc::IFA_LOCAL => local = address(data),
                // Of a link between two hosts, the other's.
                libc::IFA_ADDRESS => other = address(data),
                libc::IFA_FLAGS => flags = u32_at(data, 0)?,
                _ => {}
            }
        }
        Some(Self {
            interface,
            address: local.or(other)?,
            prefix_bits,
            usable: flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) == 0,
        })
    }
}

/// A neighbour (`RTM_NEWNEIGH`, `RTM_DELNEIGH`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub interface: u32,
    pub address: IpAddr,
    /// Its Ethernet address, if there is one and it may be used.
    pub mac: Option<[u8; 6]>,
}

/// States in which a neighbour's address may be used (`NUD_…`).
const VALID: u16 = libc::NUD_REACHABLE
    | libc::NUD_STALE
    | libc::NUD_DELAY
    | libc::NUD_PROBE
    | libc::NUD_PERMANENT
    | libc::NUD_NOARP;

impl Neighbour {
    /// None for what is damaged, for a bridge's table and for addresses that this host answers for.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let family = i32::from(*body.first()?);
        let state = u16_at(body, 8)?;
        let flags = *body.get(10)?;
        if family != libc::AF_INET && family != libc::AF_INET6 || flags & libc::NTF_PROXY != 0 {
            return None;
        }
        let (mut found, mut mac) = (None, None);
        for (kind, data) in attributes(body, 12) {
            match kind {
                libc::NDA_DST => found = address(data),
                libc::NDA_LLADDR => mac = data.try_into().ok(),
                _ => {}
            }
        }
        Some(Self {
            interface: u32_at(body, 4)?,
            address: found?,
            mac: mac.filter(|_| state & VALID != 0),
        })
    }
}

/// What the kernel answers to `RTM_GETROUTE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// `RTN_…`.
    pub kind: u8,
    /// `RTM_F_…`.
    pub flags: u32,
    pub interface: u32,
    pub gateway: Option<IpAddr>,
    pub source: Option<IpAddr>,
    /// Of the route or the path; none leaves it to the interface.
    pub mtu: Option<u32>,
}

impl Route {
    pub fn parse(body: &[u8]) -> Option<Self> {
        let mut route = Self {
            kind: *body.get(7)?,
            flags: u32_at(body, 8)?,
            interface: 0,
            gateway: None,
            source: None,
            mtu: None,
        };
        for (kind, data) in attributes(body, 12) {
            match kind {
                libc::RTA_OIF => route.interface = u32_at(data, 0)?,
                libc::RTA_GATEWAY => route.gateway = address(data),
                // A gateway of the other version: its family, then the address.
                libc::RTA_VIA => route.gateway = address(data.get(2..)?),
                libc::RTA_PREFSRC => route.source = address(data),
                libc::RTA_METRICS => {
                    let mut inside = attributes(data, 0);
                    let found = inside.find(|(kind, _)| *kind == RTAX_MTU);
                    let mtu = found.and_then(|(_, data)| u32_at(data, 0));
                    route.mtu = mtu.filter(|mtu| *mtu > 0);
                }
                _ => {}
            }
        }
        Some(route)
    }
}

/// `RTAX_MTU` among a route's metrics.
const RTAX_MTU: u16 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sluice_sys::netlink::{Request, messages};

    fn link() -> Request {
        let mut header = [0; 16];
        header[2..4].copy_from_slice(&libc::ARPHRD_ETHER.to_ne_bytes());
        header[4..8].copy_from_slice(&7_u32.to_ne_bytes());
        let mut request = Request::new(libc::RTM_NEWLINK, 0, 9, &header);
        request.attribute(libc::IFLA_IFNAME, b"left\0");
        request.attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 1]);
        request.attribute(libc::IFLA_MTU, &9000_u32.to_ne_bytes());
        request.attribute(libc::IFLA_LINKINFO, b"\x09\0\x01\0veth\0");
        request
    }

    #[test]
    fn a_link_is_read() {
        let request = link();
        let mut all = messages(request.bytes());
        let message = all.next().unwrap();
        assert_eq!((message.kind, message.sequence), (libc::RTM_NEWLINK, 9));
        assert_eq!(all.next(), None);
        let link = Link::parse(message.body).unwrap();
        assert_eq!((link.index, link.mtu), (7, 9000));
        assert_eq!(
            (link.name.as_str(), link.kind.as_deref()),
            ("left", Some("veth"))
        );
        assert_eq!(link.mac, Some([2, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn a_neighbour_has_an_address_only_in_some_states() {
        for state in 0..8 {
            let mut header = [0; 12];
            header[0] = libc::AF_INET as u8;
            header[8..10].copy_from_slice(&(1_u16 << state).to_ne_bytes());
            let mut request = Request::new(libc::RTM_NEWNEIGH, 0, 1, &header);
            request.address(libc::NDA_DST, "192.0.2.1".parse().unwrap());
            request.attribute(libc::NDA_LLADDR, &[2; 6]);
            let message = messages(request.bytes()).next().unwrap();
            let neighbour = Neighbour::parse(message.body).unwrap();
            // Incomplete and failed ones have none.
            let valid = ![0, 5].contains(&state);
            assert_eq!(neighbour.mac.is_some(), valid, "{state}");
        }
    }

    #[test]
    fn lengths_that_lie_end_the_reading() {
        for length in [0_u32, 1, 15, 17, 1000, u32::MAX] {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(messages(&bytes).count(), 0, "{length}");
        }
        for length in [0_u16, 3, 9, u16::MAX] {
            let mut bytes = [0; 8];
            bytes[..2].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(attributes(&bytes, 0).count(), 0, "{length}");
        }
    }

    fn read(bytes: &[u8]) {
        for message in messages(bytes) {
            Link::parse(message.body);
            Address::parse(message.body);
            Neighbour::parse(message.body);
            Route::parse(message.body);
        }
        Link::parse(bytes);
        Address::parse(bytes);
        Neighbour::parse(bytes);
        Route::parse(bytes);
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            at in 0..80_usize,
            to: u8,
        ) {
            read(&bytes);
            let mut good = link().bytes().to_vec();
            read(&good[..at.min(good.len())]);
            if let Some(place) = good.get_mut(at) {
                *place = to;
            }
            read(&good);
        }
    }
}
