//! UDP headers (RFC 768) as RoCEv2 uses them (annex A17.3).

use crate::error::{Error, Result};
use crate::ipv4::{UDP, sum};

/// The destination port of RoCEv2 (annex A17.3).
pub const ROCE_PORT: u16 = 4791;

/// Source ports for entropy, so that routers spread flows (annex A17.3, RFC 6335 §6).
pub const ENTROPY_PORTS: core::ops::RangeInclusive<u16> = 0xc000..=0xffff;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Constant for a flow.
    pub source_port: u16,
    /// [`ROCE_PORT`] for RoCEv2.
    pub destination_port: u16,
    /// Bytes behind this header.
    pub payload_bytes: u16,
    /// 0 means none. The ICRC does not cover it, and the receiver may leave it unchecked.
    pub checksum: u16,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 8;

    /// The header and its payload.
    pub fn parse(datagram: &[u8]) -> Result<(Self, &[u8])> {
        let (header, _) = datagram.split_first_chunk().ok_or(Error::Truncated)?;
        let [s0, s1, d0, d1, l0, l1, c0, c1]: [u8; Self::BYTES] = *header;
        let total = u16::from_be_bytes([l0, l1]);
        let payload = datagram
            .get(Self::BYTES..usize::from(total))
            .ok_or(Error::Length)?;
        let value = Self {
            source_port: u16::from_be_bytes([s0, s1]),
            destination_port: u16::from_be_bytes([d0, d1]),
            payload_bytes: total.wrapping_sub(Self::BYTES as u16),
            checksum: u16::from_be_bytes([c0, c1]),
        };
        Ok((value, payload))
    }

    /// The bytes. [`Error::Length`] when header and payload are 64 KiB or more.
    pub fn emit(&self) -> Result<[u8; Self::BYTES]> {
        let total = self.payload_bytes.checked_add(Self::BYTES as u16);
        let [s0, s1] = self.source_port.to_be_bytes();
        let [d0, d1] = self.destination_port.to_be_bytes();
        let [l0, l1] = total.ok_or(Error::Length)?.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        Ok([s0, s1, d0, d1, l0, l1, c0, c1])
    }
}

/// The checksum over a pseudo header with these addresses (4 or 16 bytes each), a header whose
/// own checksum counts as zero, and its payload (RFC 768; RFC 8200 §8.1).
pub fn checksum(source: &[u8], destination: &[u8], header: &Header, payload: &[u8]) -> u16 {
    let length = header.payload_bytes.wrapping_add(Header::BYTES as u16);
    let mut total = sum(0, source);
    total = sum(total, destination);
    for word in [
        u16::from(UDP),
        length,
        header.source_port,
        header.destination_port,
        length,
    ] {
        total = sum(total, &word.to_be_bytes());
    }
    match !sum(total, payload) {
        // Zero would say that there is none.
        0 => 0xffff,
        checksum => checksum,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_must_fit() {
        let header = Header {
            source_port: 0xc001,
            destination_port: ROCE_PORT,
            payload_bytes: 4,
            checksum: 0,
        };
        let mut datagram = [9; 13];
        datagram[..8].copy_from_slice(&header.emit().unwrap());
        assert_eq!(Header::parse(&datagram), Ok((header, &[9; 4][..])));
        assert_eq!(Header::parse(&datagram[..11]), Err(Error::Length));
        datagram[5] = 7;
        assert_eq!(Header::parse(&datagram), Err(Error::Length));
        let long = Header {
            payload_bytes: u16::MAX - 7,
            ..header
        };
        assert_eq!(long.emit(), Err(Error::Length));
    }

    #[test]
    fn a_receiver_sums_to_all_ones() {
        let mut header = Header {
            source_port: 0xc001,
            destination_port: ROCE_PORT,
            payload_bytes: 5,
            checksum: 0,
        };
        let (source, destination) = ([192, 0, 2, 1], [192, 0, 2, 2]);
        header.checksum = checksum(&source, &destination, &header, b"hello");
        let mut total = sum(0, &source);
        total = sum(total, &destination);
        total = sum(total, &[0, 17, 0, 13]);
        total = sum(total, &header.emit().unwrap());
        assert_eq!(sum(total, b"hello"), 0xffff);
    }
}
