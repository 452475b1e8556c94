//! The headers that follow a base transport header (IBTA 9.3, annex A14).

use core::time::Duration;

use crate::error::{Error, Result};
use crate::number::{Psn, Qpn};

/// Joins a header's fields to its bytes.
fn join<const N: usize>(fields: &[&[u8]]) -> [u8; N] {
    let mut bytes = [0; N];
    for (place, byte) in bytes.iter_mut().zip(fields.iter().copied().flatten()) {
        *place = *byte;
    }
    bytes
}

/// Datagram extended transport header (IBTA 9.3.2): in every UD packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Must be the receiver's (IBTA 10.2.5).
    pub qkey: u32,
    /// From whom.
    pub source: Qpn,
}

impl Deth {
    /// Bytes of the header.
    pub const BYTES: usize = 8;

    /// All bytes are legal.
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Self {
            qkey: u32::from_be_bytes([k0, k1, k2, k3]),
            source: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        join(&[&self.qkey.to_be_bytes(), &self.source.get().to_be_bytes()])
    }
}

/// XRC extended transport header (annex A14): in every XRC request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// The shared receive queue whose domain and receives count.
    pub srq: Qpn,
}

impl XrcEth {
    /// Bytes of the header.
    pub const BYTES: usize = 4;

    /// All bytes are legal.
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [_, q0, q1, q2] = *bytes;
        Self {
            srq: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// The bytes.
    pub const fn emit(&self) -> [u8; Self::BYTES] {
        self.srq.get().to_be_bytes()
    }
}

/// RDMA extended transport header (IBTA 9.3.3): where a WRITE goes or a READ comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// In the region's own counting.
    pub address: u64,
    /// The region's key.
    pub rkey: u32,
    /// Bytes of the whole message, up to 2³¹ (IBTA 9.7).
    pub length: u32,
}

impl Reth {
    /// Bytes of the header.
    pub const BYTES: usize = 16;
    /// The longest message (IBTA 9.7).
    pub const LENGTH_MAX: u32 = 1 << 31;

    /// [`Error::Reserved`] when the length exceeds [`Reth::LENGTH_MAX`].
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            k0,
            k1,
            k2,
            k3,
            l0,
            l1,
            l2,
            l3,
        ] = *bytes;
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        if length > Self::LENGTH_MAX {
            return Err(Error::Reserved("DMA length"));
        }
        Ok(Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: u32::from_be_bytes([k0, k1, k2, k3]),
            length,
        })
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        join(&[
            &self.address.to_be_bytes(),
            &self.rkey.to_be_bytes(),
            &self.length.to_be_bytes(),
        ])
    }
}

/// Atomic extended transport header (IBTA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// In the region's own counting; a multiple of 8 (IBTA 9.4.5).
    pub address: u64,
    /// The region's key.
    pub rkey: u32,
    /// What to put in (compare and swap) or to add (fetch and add).
    pub swap_add: u64,
    /// What to compare with; 0 for fetch and add.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes of the header.
    pub const BYTES: usize = 28;

    /// All bytes are legal; an address that is not aligned is the responder's to refuse, since
    /// the requester learns of that by a NAK (IBTA 9.7.4.1).
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let mut reader = crate::bytes::Reader::new(bytes);
        Self {
            address: reader.u64(),
            rkey: reader.u32(),
            swap_add: reader.u64(),
            compare: reader.u64(),
        }
    }

    /// The bytes.
    pub fn emit(&self) -> [u8; Self::BYTES] {
        join(&[
            &self.address.to_be_bytes(),
            &self.rkey.to_be_bytes(),
            &self.swap_add.to_be_bytes(),
            &self.compare.to_be_bytes(),
        ])
    }
}

/// How many more messages the responder can take (IBTA 9.7.7.2), as its code 0 to 30.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(u8);

impl Credits {
    /// By code, 0 to 30: 0, 1, 2, 3, 4, 6, 8, 12, … 32768 receives. None for other codes.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code <= 30 { Some(Self(code)) } else { None }
    }

    /// The code of the largest count that is not more than `receives`.
    pub const fn at_most(receives: u32) -> Self {
        let mut code = 30;
        while code > 0 && Self(code).receives() > receives {
            code -= 1;
        }
        Self(code)
    }

    /// 0 to 30.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// Receives. From 2 on every second code doubles, and the one between is 1.5 times.
    pub const fn receives(self) -> u32 {
        match self.0 {
            code @ 0..=1 => code as u32,
            code => (2 | (code as u32 & 1)) << (code / 2 - 1),
        }
    }
}

/// How long a requester waits for a receiver that is not ready (IBTA 9.7.5.2.8), as its
/// code 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// In units of 10 µs, by code.
    const UNITS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// By the low 5 bits of a code.
    pub const fn from_code(code: u8) -> Self {
        Self(code & 0x1f)
    }

    /// 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// From 10 µs to 655.36 ms.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::UNITS[(self.0 & 0x1f) as usize] as u64 * 10)
    }
}

/// Why a request was refused (IBTA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NakCode {
    /// Packets before this one are missing.
    SequenceError = 0,
    /// The request is not allowed or malformed.
    InvalidRequest = 1,
    /// The key does not open that memory.
    RemoteAccess = 2,
    /// The responder cannot carry it out.
    RemoteOperational = 3,
}

/// What an AETH says (IBTA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Everything up to the packet's PSN is done. None: the responder gives no credits, as with a
    /// shared receive queue (IBTA 9.7.7.2).
    Ack(Option<Credits>),
    /// No receive is posted; try again after that time.
    RnrNak(RnrTimer),
    /// Refused.
    Nak(NakCode),
}

/// ACK extended transport header (IBTA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What the responder says.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2²⁴ (IBTA 9.7.7).
    pub msn: Psn,
}

impl Aeth {
    /// Bytes of the header.
    pub const BYTES: usize = 4;

    /// [`Error::Reserved`] for a reserved syndrome.
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self> {
        let [syndrome, m0, m1, m2] = *bytes;
        let value = syndrome & 0x1f;
        let syndrome = match syndrome >> 5 {
            0 => Syndrome::Ack(Credits::from_code(value)),
            1 => Syndrome::RnrNak(RnrTimer::from_code(value)),
            3 => Syndrome::Nak(match value {
                0 => NakCode::SequenceError,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                // 4 is of RD.
                _ => return Err(Error::Reserved("NAK code")),
            }),
            _ => return Err(Error::Reserved("AETH syndrome")),
        };
        Ok(Self {
            syndrome,
            msn: Psn::new(u32::from_be_bytes([0, m0, m1, m2])),
        })
    }

    /// The bytes.
    pub const fn emit(&self) -> [u8; Self::BYTES] {
        let syndrome = match self.syndrome {
            Syndrome::Ack(Some(credits)) => credits.code(),
            Syndrome::Ack(None) => 0x1f,
            Syndrome::RnrNak(timer) => 1 << 5 | timer.code(),
            Syndrome::Nak(code) => 3 << 5 | code as u8,
        };
        let [_, m0, m1, m2] = self.msn.get().to_be_bytes();
        [syndrome, m0, m1, m2]
    }
}

/// Atomic ACK extended transport header (IBTA 9.3): the value from before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// What was there.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes of the header.
    pub const BYTES: usize = 8;

    /// All bytes are legal.
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            original: u64::from_be_bytes(*bytes),
        }
    }

    /// The bytes.
    pub const fn emit(&self) -> [u8; Self::BYTES] {
        self.original.to_be_bytes()
    }
}

/// Immediate data (IBTA 9.3): 4 bytes for the receiver's program, in no byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt(pub [u8; 4]);

/// Invalidate extended transport header (IBTA 9.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The receiver's key that is to open nothing any more.
    pub rkey: u32,
}

impl Ieth {
    /// Bytes of the header.
    pub const BYTES: usize = 4;

    /// All bytes are legal.
    pub const fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            rkey: u32::from_be_bytes(*bytes),
        }
    }

    /// The bytes.
    pub const fn emit(&self) -> [u8; Self::BYTES] {
        self.rkey.to_be_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        let deth = Deth {
            qkey: 0x8001_0000,
            source: Qpn::new(0xab_cdef),
        };
        assert_eq!(deth.emit(), [0x80, 1, 0, 0, 0, 0xab, 0xcd, 0xef]);
        assert_eq!(Deth::parse(&deth.emit()), deth);
        let reth = Reth {
            address: 0x0102_0304_0506_0708,
            rkey: 0x1122_3344,
            length: 0x8000_0000,
        };
        assert_eq!(Reth::parse(&reth.emit()), Ok(reth));
        let mut long = reth.emit();
        long[15] = 1;
        assert!(Reth::parse(&long).is_err());
        let atomic = AtomicEth {
            address: 8,
            rkey: 9,
            swap_add: 10,
            compare: 11,
        };
        let bytes = atomic.emit();
        assert_eq!((bytes[7], bytes[11], bytes[19], bytes[27]), (8, 9, 10, 11));
        assert_eq!(AtomicEth::parse(&bytes), atomic);
    }

    #[test]
    fn every_syndrome_is_legal_or_refused() {
        let mut legal = 0;
        for syndrome in 0..=u8::MAX {
            let bytes = [syndrome, 0x12, 0x34, 0x56];
            if let Ok(aeth) = Aeth::parse(&bytes) {
                assert_eq!(aeth.emit(), bytes);
                legal += 1;
            }
        }
        assert_eq!(legal, 32 + 32 + 4);
    }

    #[test]
    fn times_and_credits_are_those_of_the_tables() {
        let us = |code| RnrTimer::from_code(code).duration().as_micros();
        assert_eq!((us(0), us(1), us(7), us(31)), (655_360, 10, 120, 491_520));
        let receives = |code| Credits::from_code(code).unwrap().receives();
        let first: [u32; 10] = core::array::from_fn(|code| receives(code as u8));
        assert_eq!(first, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]);
        assert_eq!(receives(30), 32768);
        assert_eq!(Credits::from_code(31), None);
        for (count, code) in [(0, 0), (5, 4), (6, 5), (7, 5), (100_000, 30)] {
            assert_eq!(Credits::at_most(count).code(), code);
        }
    }
}
