//! IPv6 headers (RFC 8200 §3). Extension headers are not followed: RoCEv2 has UDP right behind
//! the header (annex A17.3).

use core::net::Ipv6Addr;

use crate::bytes::Reader;
use crate::error::{Error, Result};
use crate::number::Ecn;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Differentiated services code point, 6 bits (RFC 2474 §3).
    pub dscp: u8,
    /// Congestion notification.
    pub ecn: Ecn,
    /// 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Bytes behind this header.
    pub payload_bytes: u16,
    /// What follows: [`crate::ipv4::UDP`] for RoCEv2.
    pub next_header: u8,
    /// Hops that are left.
    pub hop_limit: u8,
    /// From whom.
    pub source: Ipv6Addr,
    /// To whom.
    pub destination: Ipv6Addr,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 40;

    /// The header and its payload, without bytes behind it that pad an Ethernet frame.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = Reader::new(packet);
        let first = reader.u32();
        let payload_bytes = reader.u16();
        let (next_header, hop_limit) = (reader.u8(), reader.u8());
        let source = Ipv6Addr::from(reader.array::<16>());
        let destination = Ipv6Addr::from(reader.array::<16>());
        reader.finish()?;
        if first >> 28 != 6 {
            return Err(Error::Version);
        }
        let payload = reader.slice(usize::from(payload_bytes));
        reader.finish().map_err(|_| Error::Length)?;
        let class = (first >> 20) as u8;
        let value = Self {
            dscp: class >> 2,
            ecn: Ecn::from_bits(class),
            flow_label: first & 0xf_ffff,
            payload_bytes,
            next_header,
            hop_limit,
            source,
            destination,
        };
        Ok((value, payload))
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        let class = u32::from(self.dscp << 2 | self.ecn as u8);
        let first = 6 << 28 | class << 20 | self.flow_label & 0xf_ffff;
        let mut bytes = [0; Self::BYTES];
        let mut writer = crate::bytes::Writer::new(&mut bytes);
        writer.u32(first);
        writer.u16(self.payload_bytes);
        writer.u8(self.next_header);
        writer.u8(self.hop_limit);
        writer.put(&self.source.octets());
        writer.put(&self.destination.octets());
        debug_assert_eq!(writer.finish(), Ok(Self::BYTES));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_of_the_frame_is_left_out() {
        let header = Header {
            dscp: 26,
            ecn: Ecn::Congestion,
            flow_label: 0xa_bcde,
            payload_bytes: 2,
            next_header: 17,
            hop_limit: 3,
            source: "2001:db8::1".parse().unwrap(),
            destination: "fe80::2".parse().unwrap(),
        };
        let mut packet = [7; 46];
        packet[..40].copy_from_slice(&header.emit());
        assert_eq!(Header::parse(&packet), Ok((header, &[7, 7][..])));
        assert_eq!(Header::parse(&packet[..41]), Err(Error::Length));
        assert_eq!(Header::parse(&packet[..39]), Err(Error::Truncated));
        packet[0] = 0x45;
        assert_eq!(Header::parse(&packet), Err(Error::Version));
    }
}
