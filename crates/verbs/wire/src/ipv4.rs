//! IPv4 headers without options (RFC 791 §3.1), and the Internet checksum (RFC 1071).

use core::net::Ipv4Addr;

use crate::error::{Error, Result};
use crate::number::Ecn;

/// UDP's number among the protocols of IP.
pub const UDP: u8 = 17;

/// A header without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Differentiated services code point, 6 bits (RFC 2474 §3).
    pub dscp: u8,
    /// Congestion notification.
    pub ecn: Ecn,
    /// Names the packet among fragments; part of the ICRC.
    pub identification: u16,
    /// Routers must not fragment it (annex A17.4 recommends it).
    pub dont_fragment: bool,
    /// Hops that are left.
    pub ttl: u8,
    /// What follows: [`UDP`] for RoCEv2.
    pub protocol: u8,
    /// From whom.
    pub source: Ipv4Addr,
    /// To whom.
    pub destination: Ipv4Addr,
    /// Bytes behind this header.
    pub payload_bytes: u16,
}

impl Header {
    /// Bytes of a header.
    pub const BYTES: usize = 20;

    /// The header and its payload, without bytes behind it that pad an Ethernet frame.
    ///
    /// [`Error::NotRoce`] for options and fragments, [`Error::Checksum`], [`Error::Version`],
    /// [`Error::Length`] when less or more is there than the header says.
    pub fn parse(packet: &[u8]) -> Result<(Self, &[u8])> {
        let (header, _) = packet
            .split_first_chunk::<{ Self::BYTES }>()
            .ok_or(Error::Truncated)?;
        let [
            version,
            class,
            l0,
            l1,
            i0,
            i1,
            f0,
            f1,
            ttl,
            protocol,
            _,
            _,
            addresses @ ..,
        ] = *header;
        if version >> 4 != 4 {
            return Err(Error::Version);
        }
        if version & 0xf != 5 {
            return Err(Error::NotRoce);
        }
        if sum(0, header) != 0xffff {
            return Err(Error::Checksum);
        }
        let total = u16::from_be_bytes([l0, l1]);
        let payload = packet
            .get(Self::BYTES..usize::from(total))
            .ok_or(Error::Length)?;
        let fragment = u16::from_be_bytes([f0, f1]);
        // More fragments, or an offset.
        if fragment & 0x3fff != 0 {
            return Err(Error::NotRoce);
        }
        let [s0, s1, s2, s3, d0, d1, d2, d3]: [u8; 8] = addresses;
        let value = Self {
            dscp: class >> 2,
            ecn: Ecn::from_bits(class),
            identification: u16::from_be_bytes([i0, i1]),
            dont_fragment: fragment & 0x4000 != 0,
            ttl,
            protocol,
            source: Ipv4Addr::new(s0, s1, s2, s3),
            destination: Ipv4Addr::new(d0, d1, d2, d3),
            payload_bytes: total.wrapping_sub(Self::BYTES as u16),
        };
        Ok((value, payload))
    }

    /// The bytes, with their checksum. [`Error::Length`] when header and payload are 64 KiB or
    /// more.
    pub fn emit(&self) -> Result<[u8; Self::BYTES]> {
        let total = self.payload_bytes.checked_add(Self::BYTES as u16);
        let [l0, l1] = total.ok_or(Error::Length)?.to_be_bytes();
        let [i0, i1] = self.identification.to_be_bytes();
        let class = self.dscp << 2 | self.ecn as u8;
        let flags = (self.dont_fragment as u8) << 6;
        let [s0, s1, s2, s3] = self.source.octets();
        let [d0, d1, d2, d3] = self.destination.octets();
        let (ttl, protocol) = (self.ttl, self.protocol);
        let bytes = |c0, c1| {
            [
                0x45, class, l0, l1, i0, i1, flags, 0, ttl, protocol, c0, c1, s0, s1, s2, s3, d0,
                d1, d2, d3,
            ]
        };
        let [c0, c1] = (!sum(0, &bytes(0, 0))).to_be_bytes();
        Ok(bytes(c0, c1))
    }
}

/// Adds bytes to a sum in one's complement (RFC 1071 §1). Odd bytes are padded with a zero: only
/// the last part of a sum may have them.
pub fn sum(start: u16, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| match *word {
        [a, b] => u64::from(u16::from_be_bytes([a, b])),
        [a] => u64::from(a) << 8,
        _ => 0,
    });
    // 2⁴⁸ words fit.
    let mut total = u64::from(start) + words.sum::<u64>();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The same from 0, four bytes at a time (RFC 1071 §2): payloads are long.
pub fn sum_wide(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(4);
    let rest = sum(0, words.remainder());
    let wide = |word: &[u8]| {
        word.first_chunk()
            .map_or(0, |word| u32::from_ne_bytes(*word))
    };
    // 2³² words fit.
    let mut total: u64 = words.map(|word| u64::from(wide(word))).sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    // The order of bytes matters only for where the halves of the result stand.
    sum(rest, &(total as u16).to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        dscp: 26,
        ecn: Ecn::Capable0,
        identification: 0x1234,
        dont_fragment: true,
        ttl: 64,
        protocol: UDP,
        source: Ipv4Addr::new(192, 0, 2, 1),
        destination: Ipv4Addr::new(198, 51, 100, 2),
        payload_bytes: 3,
    };

    fn packet() -> [u8; 25] {
        let mut packet = [0; 25];
        packet[..20].copy_from_slice(&HEADER.emit().unwrap());
        packet[20..23].copy_from_slice(b"abc");
        packet
    }

    #[test]
    fn padding_of_the_frame_is_left_out() {
        assert_eq!(Header::parse(&packet()), Ok((HEADER, &b"abc"[..])));
        assert_eq!(Header::parse(&packet()[..22]), Err(Error::Length));
        assert_eq!(Header::parse(&packet()[..19]), Err(Error::Truncated));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        for bit in 0..160 {
            let mut packet = packet();
            packet[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&packet).is_err(), "bit {bit}");
        }
    }

    /// The example of RFC 1071 §3.
    #[test]
    fn the_sum_is_that_of_the_rfc() {
        assert_eq!(sum(0, &[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7]), 0xddf2);
        assert_eq!(sum(0, &[0x12]), 0x1200);
        assert_eq!(sum(0xffff, &[0, 1]), 1);
    }

    #[test]
    fn the_wide_sum_is_the_sum() {
        let bytes: [u8; 300] = core::array::from_fn(|at| ((at * 89) ^ (at >> 2)) as u8 | 0x80);
        for start in 0..4 {
            for end in start..bytes.len() {
                let bytes = &bytes[start..end];
                assert_eq!(sum_wide(bytes), sum(0, bytes), "{start}..{end}");
            }
        }
        assert_eq!(sum_wide(&[0xff; 4096]), 0xffff);
    }
}
