//! The invariant checksum (IBTA 7.8.1 as RoCEv2 changes it, annex A17.3).
//!
//! It is the CRC-32 of Ethernet over what no router changes: eight bytes of ones in the place of
//! InfiniBand's local header, then the packet from the IP header to the pad, with fields that
//! may change on the way counted as ones. Its bytes are sent lowest first.
//!
//! | header | fields counted as ones |
//! |---|---|
//! | IPv4 | type of service, time to live, header checksum |
//! | IPv6 | traffic class, flow label, hop limit |
//! | UDP | checksum |
//! | BTH | the byte with FECN, BECN and six reserved bits |

use crc32fast::Hasher;

use crate::bth::Bth;
use crate::ipv4;
use crate::ipv6;
use crate::udp;

/// Bytes of the checksum.
pub const BYTES: usize = 4;

/// The checksum with the headers in it, ready for the packet's bytes.
#[derive(Clone, Debug)]
pub struct Icrc {
    hasher: Hasher,
}

impl Icrc {
    /// For a packet in IPv4.
    pub fn ipv4(ip: &[u8; ipv4::Header::BYTES], udp: &[u8; udp::Header::BYTES]) -> Self {
        let mut ip = *ip;
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10] = 0xff;
        ip[11] = 0xff;
        Self::start(&ip, udp)
    }

    /// For a packet in IPv6.
    pub fn ipv6(ip: &[u8; ipv6::Header::BYTES], udp: &[u8; udp::Header::BYTES]) -> Self {
        let mut ip = *ip;
        // The version is in the upper half of the first byte.
        ip[0] |= 0x0f;
        ip[1] = 0xff;
        ip[2] = 0xff;
        ip[3] = 0xff;
        ip[7] = 0xff;
        Self::start(&ip, udp)
    }

    fn start(ip: &[u8], udp: &[u8; udp::Header::BYTES]) -> Self {
        let mut udp = *udp;
        udp[6] = 0xff;
        udp[7] = 0xff;
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; 8]);
        hasher.update(ip);
        hasher.update(&udp);
        Self { hasher }
    }

    /// The checksum, as it is sent, of a packet from its base transport header on. The packet may
    /// come in several parts; a packet that is shorter than the header has none.
    pub fn of(mut self, bth: &[u8; Bth::BYTES], rest: &[&[u8]]) -> [u8; BYTES] {
        let mut bth = *bth;
        bth[4] = 0xff;
        self.hasher.update(&bth);
        for part in rest {
            self.hasher.update(part);
        }
        self.hasher.finalize().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The checksum from its definition, a bit at a time, over the packet as it is on the wire.
    fn by_bits(packet: &[u8], masked: &[(usize, u8)]) -> [u8; 4] {
        let mut bytes = std::vec![0xff; 8];
        let mut packet = packet.to_vec();
        for (at, mask) in masked {
            packet[*at] |= mask;
        }
        bytes.extend(packet);
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                let carry = crc & 1;
                crc >>= 1;
                if carry == 1 {
                    crc ^= 0xedb8_8320;
                }
            }
        }
        (!crc).to_le_bytes()
    }

    fn bytes(start: u8, len: usize) -> Vec<u8> {
        (0..len)
            .map(|n| (n as u8).wrapping_mul(37) ^ start)
            .collect()
    }

    #[test]
    fn as_the_definition_says() {
        let all = bytes(0x5a, 20 + 8 + 12 + 1024);
        let (ip, rest) = all.split_first_chunk().unwrap();
        let (udp, rest) = rest.split_first_chunk().unwrap();
        let (bth, rest) = rest.split_first_chunk().unwrap();
        let mask = [1, 8, 10, 11, 26, 27, 32].map(|at| (at, 0xff));
        let (a, b) = rest.split_at(100);
        let found = Icrc::ipv4(ip, udp).of(bth, &[a, b]);
        assert_eq!(found, by_bits(&all, &mask));

        let all = bytes(0xa5, 40 + 8 + 12 + 4);
        let (ip, rest) = all.split_first_chunk().unwrap();
        let (udp, rest) = rest.split_first_chunk().unwrap();
        let (bth, rest) = rest.split_first_chunk().unwrap();
        let mut mask = [1, 2, 3, 7, 46, 47, 52].map(|at| (at, 0xff)).to_vec();
        mask.push((0, 0x0f));
        let found = Icrc::ipv6(ip, udp).of(bth, &[rest]);
        assert_eq!(found, by_bits(&all, &mask));
    }
}
