//! Ethernet headers, with an 802.1Q tag or without (IEEE 802.3 §3.1, 802.1Q §9.6).

use crate::bytes::{Reader, Writer};
use crate::error::Result;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Bit 0 of the first byte: to a group (IEEE 802.3 §3.2.3).
    pub const fn is_multicast(self) -> bool {
        let [first, ..] = self.0;
        first & 1 == 1
    }
}

/// What an Ethernet frame carries (IEEE 802.3 §3.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// 0x0800
    Ipv4,
    /// 0x86dd
    Ipv6,
    /// 0x0806
    Arp,
    /// Anything else, and lengths.
    Other(u16),
}

/// The type of a tagged frame.
const TAGGED: u16 = 0x8100;

impl EtherType {
    /// By number.
    pub const fn from_number(number: u16) -> Self {
        match number {
            0x0800 => Self::Ipv4,
            0x86dd => Self::Ipv6,
            0x0806 => Self::Arp,
            other => Self::Other(other),
        }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        match self {
            Self::Ipv4 => 0x0800,
            Self::Ipv6 => 0x86dd,
            Self::Arp => 0x0806,
            Self::Other(number) => number,
        }
    }
}

/// An 802.1Q tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vlan {
    /// Priority code point, 3 bits.
    pub priority: u8,
    /// Drop eligible indicator.
    pub drop_eligible: bool,
    /// VLAN identifier, 12 bits.
    pub id: u16,
}

impl Vlan {
    const fn from_bits(bits: u16) -> Self {
        Self {
            priority: (bits >> 13) as u8,
            drop_eligible: bits & 0x1000 != 0,
            id: bits & 0xfff,
        }
    }

    const fn bits(self) -> u16 {
        ((self.priority & 7) as u16) << 13 | (self.drop_eligible as u16) << 12 | (self.id & 0xfff)
    }
}

/// The header of an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// To whom.
    pub destination: Mac,
    /// From whom.
    pub source: Mac,
    /// The outer tag, if there is one. What is behind a second one is [`EtherType::Other`].
    pub vlan: Option<Vlan>,
    /// What follows.
    pub ethertype: EtherType,
}

impl Header {
    /// Bytes of a header with a tag.
    pub const BYTES_MAX: usize = 18;

    /// 14, or 18 with a tag.
    pub const fn len(&self) -> usize {
        if self.vlan.is_some() { 18 } else { 14 }
    }

    /// Never: a header has bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The header at the front of a frame, and what is behind it.
    ///
    /// [`crate::Error::Truncated`] is the only error.
    pub fn parse(frame: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = Reader::new(frame);
        let destination = Mac(reader.array());
        let source = Mac(reader.array());
        let mut number = reader.u16();
        let mut vlan = None;
        if number == TAGGED {
            vlan = Some(Vlan::from_bits(reader.u16()));
            number = reader.u16();
        }
        reader.finish()?;
        let ethertype = EtherType::from_number(number);
        let header = Self {
            destination,
            source,
            vlan,
            ethertype,
        };
        Ok((header, reader.rest()))
    }

    /// Writes [`Header::len`] bytes to the front of `buffer`.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize> {
        let mut writer = Writer::new(buffer);
        writer.put(&self.destination.0);
        writer.put(&self.source.0);
        if let Some(vlan) = self.vlan {
            writer.u16(TAGGED);
            writer.u16(vlan.bits());
        }
        writer.u16(self.ethertype.number());
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn tags_are_optional() {
        let plain = Header {
            destination: Mac([1; 6]),
            source: Mac([2; 6]),
            vlan: None,
            ethertype: EtherType::Ipv4,
        };
        let tagged = Header {
            vlan: Some(Vlan {
                priority: 5,
                drop_eligible: true,
                id: 0xabc,
            }),
            ..plain
        };
        for (header, len) in [(plain, 14), (tagged, 18)] {
            let mut bytes = [0xee; 20];
            assert_eq!(header.emit(&mut bytes), Ok(len));
            assert_eq!(Header::parse(&bytes), Ok((header, &bytes[len..])));
            assert_eq!(Header::parse(&bytes[..len - 1]), Err(Error::Truncated));
        }
    }
}
