//! The base transport header (IBTA 9.2).

use crate::error::{Error, Result};
use crate::number::{Psn, Qpn};
use crate::opcode::Opcode;

/// The P_Key of the default partition, full member (IBTA 10.9); the only one of RoCEv2 unless
/// somebody configures others.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// What Sluice puts into the seven reserved bits beside the acknowledge request, to say that it is
/// Sluice. Receivers ignore them (IBTA 9.2).
const SLUICE: u8 = 0x53;

/// A base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver is to raise a solicited event (IBTA 9.2).
    pub solicited: bool,
    /// The sender's path migration state is "migrated" (IBTA 9.2).
    pub migrated: bool,
    /// Bytes that pad the payload to a multiple of 4, 0 to 3 (IBTA 9.2).
    pub pad: u8,
    /// The partition (IBTA 9.2).
    pub pkey: u16,
    /// Forward explicit congestion notification (annex A10).
    pub fecn: bool,
    /// Backward explicit congestion notification.
    pub becn: bool,
    /// To whom (IBTA 9.2).
    pub destination: Qpn,
    /// The sender wants an acknowledgement now (IBTA 9.2).
    pub ack_request: bool,
    /// The sender is Sluice and understands [`crate::selective`]. Other senders leave the reserved
    /// bits that say so 0.
    pub sluice: bool,
    /// The packet's number (IBTA 9.2).
    pub psn: Psn,
}

impl Bth {
    /// Bytes of the header.
    pub const BYTES: usize = 12;

    /// A header with nothing set but these.
    pub const fn new(opcode: Opcode, destination: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            destination,
            ack_request: false,
            sluice: false,
            psn,
        }
    }

    /// [`Error::Opcode`], or [`Error::Version`] when the transport header version is not 0 (IBTA
    /// 9.2.6).
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let [
            opcode,
            flags,
            p0,
            p1,
            congestion,
            q0,
            q1,
            q2,
            ack,
            s0,
            s1,
            s2,
        ] = *bytes;
        if flags & 0xf != 0 {
            return Err(Error::Version);
        }
        Ok(Self {
            opcode: Opcode::from_byte(opcode)?,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: u16::from_be_bytes([p0, p1]),
            fecn: congestion & 0x80 != 0,
            becn: congestion & 0x40 != 0,
            destination: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            ack_request: ack & 0x80 != 0,
            sluice: ack & 0x7f == SLUICE,
            psn: Psn::new(u32::from_be_bytes([0, s0, s1, s2])),
        })
    }

    /// The bytes.
    pub const fn emit(&self) -> [u8; Self::BYTES] {
        let flags = (self.solicited as u8) << 7 | (self.migrated as u8) << 6 | (self.pad & 3) << 4;
        let congestion = (self.fecn as u8) << 7 | (self.becn as u8) << 6;
        let [p0, p1] = self.pkey.to_be_bytes();
        let [_, q0, q1, q2] = self.destination.get().to_be_bytes();
        let [_, s0, s1, s2] = self.psn.get().to_be_bytes();
        let reserved = if self.sluice { SLUICE } else { 0 };
        let ack = (self.ack_request as u8) << 7 | reserved;
        [
            self.opcode.byte(),
            flags,
            p0,
            p1,
            congestion,
            q0,
            q1,
            q2,
            ack,
            s0,
            s1,
            s2,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_place() {
        let header = Bth {
            opcode: Opcode::from_byte(0x17).unwrap(),
            solicited: true,
            migrated: false,
            pad: 2,
            pkey: 0x8001,
            fecn: false,
            becn: true,
            destination: Qpn::new(0x12_3456),
            ack_request: true,
            sluice: true,
            psn: Psn::new(0x65_4321),
        };
        let bytes = [
            0x17, 0xa0, 0x80, 0x01, 0x40, 0x12, 0x34, 0x56, 0xd3, 0x65, 0x43, 0x21,
        ];
        assert_eq!(header.emit(), bytes);
        assert_eq!(Bth::parse(&bytes), Ok(header));
        let mut strange = bytes;
        strange[1] |= 1;
        assert_eq!(Bth::parse(&strange), Err(Error::Version));
        // Other reserved bits are nobody's.
        let mut other = bytes;
        other[8] = 0x80 | 0x52;
        assert!(Bth::parse(&other).is_ok_and(|header| !header.sluice));
    }
}
