//! The RDMA IP connection manager service (annex A11): IP addresses and ports in the service ID
//! and at the front of the private data of a REQ or SIDR_REQ.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bytes::{Reader, Writer};
use crate::error::{Error, Result};

/// What a port number is a number of (annex A11, the numbers of the IP protocols).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PortSpace {
    /// Connections: `RDMA_PS_TCP`.
    Tcp = 0x06,
    /// Datagrams: `RDMA_PS_UDP`.
    Udp = 0x11,
}

/// The five bytes in front of port space and port (annex A11).
const PREFIX: u64 = 0x01;

/// The service ID of a port.
pub const fn service_id(space: PortSpace, port: u16) -> u64 {
    PREFIX << 24 | (space as u64) << 16 | port as u64
}

/// Port space and port of a service ID; None for one that is no port's.
pub const fn split_service_id(id: u64) -> Option<(PortSpace, u16)> {
    if id >> 24 != PREFIX {
        return None;
    }
    let space = match (id >> 16) as u8 {
        0x06 => PortSpace::Tcp,
        0x11 => PortSpace::Udp,
        _ => return None,
    };
    Some((space, id as u16))
}

/// The header at the front of the private data (annex A11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpService {
    /// The sender's port.
    pub source_port: u16,
    /// The sender's address.
    pub source: IpAddr,
    /// The address that it connects to, of the same version.
    pub destination: IpAddr,
}

impl IpService {
    /// Bytes of the header; what is behind it is the program's.
    pub const BYTES: usize = 36;

    /// The header at the front of private data, and the program's part.
    ///
    /// [`Error::Version`] for another version of the header or of IP.
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = Reader::new(private_data);
        let version = reader.u8();
        let ip_version = reader.u8() >> 4;
        let source_port = reader.u16();
        let source: [u8; 16] = reader.array();
        let destination: [u8; 16] = reader.array();
        reader.finish()?;
        if version != 0 {
            return Err(Error::Version);
        }
        let address: fn([u8; 16]) -> IpAddr = match ip_version {
            // In the last four bytes.
            4 => |bytes| {
                let [.., a, b, c, d] = bytes;
                IpAddr::V4(Ipv4Addr::new(a, b, c, d))
            },
            6 => |bytes| IpAddr::V6(Ipv6Addr::from(bytes)),
            _ => return Err(Error::Version),
        };
        let header = Self {
            source_port,
            source: address(source),
            destination: address(destination),
        };
        Ok((header, reader.rest()))
    }

    /// The bytes. [`Error::Reserved`] when the two addresses are of different versions.
    pub fn emit(&self) -> Result<[u8; Self::BYTES]> {
        let version = match (self.source, self.destination) {
            (IpAddr::V4(_), IpAddr::V4(_)) => 4,
            (IpAddr::V6(_), IpAddr::V6(_)) => 6,
            _ => return Err(Error::Reserved("IP version")),
        };
        let mut bytes = [0; Self::BYTES];
        let mut writer = Writer::new(&mut bytes);
        writer.u8(0);
        writer.u8(version << 4);
        writer.u16(self.source_port);
        for address in [self.source, self.destination] {
            match address {
                IpAddr::V4(address) => {
                    writer.zeros(12);
                    writer.put(&address.octets());
                }
                IpAddr::V6(address) => writer.put(&address.octets()),
            }
        }
        writer.finish()?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_a_service_id() {
        let id = service_id(PortSpace::Tcp, 7174);
        assert_eq!(id, 0x0000_0000_0106_1c06);
        assert_eq!(split_service_id(id), Some((PortSpace::Tcp, 7174)));
        assert_eq!(split_service_id(id | 1 << 40), None);
        assert_eq!(split_service_id(0x0101_0000), None);
    }

    #[test]
    fn addresses_of_both_versions_come_back() {
        for (source, destination) in [("192.0.2.1", "192.0.2.2"), ("fe80::1", "2001:db8::2")] {
            let header = IpService {
                source_port: 40000,
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
            };
            let bytes = header.emit().unwrap();
            assert_eq!(IpService::parse(&bytes), Ok((header, &[][..])));
            assert!(IpService::parse(&bytes[1..]).is_err());
            let mut other = bytes;
            other[0] = 1;
            assert_eq!(IpService::parse(&other), Err(Error::Version));
        }
    }
}
