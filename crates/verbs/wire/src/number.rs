//! Numbers of the transport that have fewer bits than an integer, and codes for others.

use crate::error::{Error, Result};

/// 24 bits.
const MASK: u32 = 0xff_ffff;

/// A packet sequence number, 24 bits, counting modulo 2²⁴ (IBTA 9.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The number modulo 2²⁴.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// 0 to 2²⁴-1.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` later. (There is no `Add`: the sum wraps.)
    #[must_use]
    pub const fn after(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// How far this is behind `other`; negative if it comes before it. Exact while the two are
    /// less than 2²³ apart (IBTA 9.7.5 allows no more in flight).
    pub const fn distance(self, other: Self) -> i32 {
        // The 24 bits at the top, so that the sign is where it belongs.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

/// A queue pair number, 24 bits (IBTA 3.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Qpn(u32);

impl Qpn {
    /// The general service interface, which connection management uses (IBTA 13.5).
    pub const GSI: Self = Self(1);
    /// Whom datagrams to a multicast group go to (IBTA 10.5).
    pub const MULTICAST: Self = Self(MASK);

    /// The number's low 24 bits.
    pub const fn new(number: u32) -> Self {
        Self(number & MASK)
    }

    /// 0 to 2²⁴-1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The largest payload of a packet on a path, by its code (IBTA 12.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Mtu {
    Bytes256 = 1,
    Bytes512 = 2,
    Bytes1024 = 3,
    Bytes2048 = 4,
    Bytes4096 = 5,
}

impl Mtu {
    /// By code, 1 to 5.
    pub const fn from_code(code: u8) -> Result<Self> {
        Ok(match code {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return Err(Error::Reserved("path MTU")),
        })
    }

    /// 1 to 5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// 256 to 4096.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// Packets of a message with `len` bytes; an empty one has one (IBTA 9.7).
    pub const fn packets(self, len: u64) -> u64 {
        let packets = len.div_ceil(self.bytes() as u64);
        if packets == 0 { 1 } else { packets }
    }
}

/// Explicit congestion notification, two bits of the IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// The sender does not take part.
    #[default]
    NotCapable = 0,
    /// It does: ECT(1).
    Capable1 = 1,
    /// It does: ECT(0).
    Capable0 = 2,
    /// A router met congestion.
    Congestion = 3,
}

impl Ecn {
    /// The low two bits of a traffic class.
    pub const fn from_bits(class: u8) -> Self {
        match class & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Congestion,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        let last = Psn::new(MASK);
        assert_eq!(last.after(1), Psn::new(0));
        assert_eq!(last.after(1).distance(last), 1);
        assert_eq!(last.distance(Psn::new(4)), -5);
        assert_eq!(Psn::new(7).distance(Psn::new(7)), 0);
    }

    #[test]
    fn messages_are_cut_into_packets() {
        let mtu = Mtu::from_code(3).unwrap();
        assert_eq!(mtu.bytes(), 1024);
        let counts = [0, 1, 1024, 1025, 4096].map(|len| mtu.packets(len));
        assert_eq!(counts, [1, 1, 1, 2, 4]);
        assert!(Mtu::from_code(0).is_err() && Mtu::from_code(6).is_err());
    }
}
