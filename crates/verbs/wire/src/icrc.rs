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
//!
//! A UDP socket does not show the identification and the flags of an IPv4 header, which the
//! checksum covers. [`unseen`] finds them from the checksum.

use crc32fast::Hasher;

use crate::bth::Bth;
use crate::ipv4;
use crate::ipv6;
use crate::udp;

/// Bytes of the checksum.
pub const BYTES: usize = 4;

/// Bytes in front of the base transport header and that header, with IPv6.
const FRONT_BYTES_MAX: usize = 8 + ipv6::Header::BYTES + udp::Header::BYTES + Bth::BYTES;

/// The headers as the checksum counts them, ready for the packet's bytes. They are kept together,
/// since what a piece costs hardly depends on its length.
#[derive(Clone, Debug)]
pub struct Icrc {
    front: [u8; FRONT_BYTES_MAX],
    bytes: usize,
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
        let mut icrc = Self {
            front: [0xff; FRONT_BYTES_MAX],
            bytes: 8,
        };
        icrc.add(ip);
        let [s0, s1, d0, d1, l0, l1, ..] = *udp;
        icrc.add(&[s0, s1, d0, d1, l0, l1, 0xff, 0xff]);
        icrc
    }

    /// There is room for all that this file adds.
    fn add(&mut self, bytes: &[u8]) {
        let end = self.bytes + bytes.len();
        if let Some(place) = self.front.get_mut(self.bytes..end) {
            place.copy_from_slice(bytes);
            self.bytes = end;
        }
    }

    /// The checksum, as it is sent, of a packet from its base transport header on. The packet may
    /// come in several parts; a packet that is shorter than the header has none.
    pub fn of(mut self, bth: &[u8; Bth::BYTES], rest: &[&[u8]]) -> [u8; BYTES] {
        let [b0, b1, b2, b3, _, after @ ..] = *bth;
        self.add(&[b0, b1, b2, b3, 0xff]);
        self.add(&after);
        let mut hasher = Hasher::new();
        hasher.update(self.front.get(..self.bytes).unwrap_or_default());
        for part in rest {
            hasher.update(part);
        }
        hasher.finalize().to_le_bytes()
    }
}

/// What of an IPv4 header the checksum covers and a UDP socket does not show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unseen {
    /// The header's identification.
    pub identification: u16,
    /// Its flag not to fragment. The other flag and the offset are zero: RoCEv2 has no fragments.
    pub dont_fragment: bool,
}

impl Unseen {
    /// What Linux sends from a socket that discovers path MTUs: no identification, not to be
    /// fragmented.
    pub const USUAL: Self = Self {
        identification: 0,
        dont_fragment: true,
    };

    /// The four bytes of the header from the identification on.
    pub const fn bytes(self) -> [u8; 4] {
        let [high, low] = self.identification.to_be_bytes();
        [high, low, (self.dont_fragment as u8) << 6, 0]
    }
}

/// Finds the identification and flags with which a checksum over IPv4 is right. `expected` is the
/// checksum for [`Unseen::USUAL`], `found` what came, and `packet_bytes` the length from the base
/// transport header to the pad. None when the checksum is right with none, or when the packet
/// is longer than any in IPv4.
///
/// A checksum is linear: two packets that differ in four bytes have checksums whose difference is
/// that of the bytes, moved over what follows them. So the difference is moved back, and what
/// comes out must be zero where the header has no freedom. That takes two multiplications of
/// polynomials, whatever the packet's length.
///
/// This leaves 15 bits of checksum of 32, since 17 bits of the header are free: of packets changed
/// at random one of 32768 passes, not one of 2³². What changed only within the four bytes behind
/// the identification is always seen. IPv6 has no such fields and its check is whole.
pub fn unseen(expected: [u8; BYTES], found: [u8; BYTES], packet_bytes: usize) -> Option<Unseen> {
    let difference = u32::from_le_bytes(expected) ^ u32::from_le_bytes(found);
    if difference == 0 {
        return Some(Unseen::USUAL);
    }
    // The checksum reads four bytes as if they were added to it before it moves over them; behind
    // them are the addresses, the UDP header and the packet.
    let behind = packet_bytes.checked_add(4 + 12 + udp::Header::BYTES)?;
    let behind = u16::try_from(behind).ok()?;
    let [high, low] = behind.to_be_bytes().map(usize::from);
    let moved = multiply(difference, *BACK.get(low)?);
    let moved = multiply(moved, *BACK_256.get(high)?);
    let [i0, i1, flags, offset] = moved.to_le_bytes();
    if flags & !0x40 != 0 || offset != 0 {
        return None;
    }
    Some(Unseen {
        identification: u16::from_be_bytes([i0, i1]),
        dont_fragment: flags & 0x40 == 0,
    })
}

/// The polynomial of CRC-32 without its highest power; the lowest power is the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// Element n moves a checksum back over n bytes: x to the power of -8n.
static BACK: [u32; 256] = powers(back_over_a_byte());

/// The same over 256n bytes.
static BACK_256: [u32; 256] = {
    let one = powers(back_over_a_byte());
    powers(multiply(one[255], one[1]))
};

const fn powers(base: u32) -> [u32; 256] {
    let mut all = [ONE; 256];
    let mut n = 1;
    while n < all.len() {
        all[n] = multiply(all[n - 1], base);
        n += 1;
    }
    all
}

const fn back_over_a_byte() -> u32 {
    let mut value = ONE;
    let mut bit = 0;
    while bit < 8 {
        // Division by x. The polynomial's lowest coefficient is 1: adding it makes room.
        value = if value & ONE == 0 {
            value << 1
        } else {
            (value ^ POLYNOMIAL) << 1 | 1
        };
        bit += 1;
    }
    value
}

/// The product of two polynomials modulo that of CRC-32.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut a, mut product, mut bit) = (a, 0, 32);
    while bit > 0 {
        bit -= 1;
        product ^= a & (b >> bit & 1).wrapping_neg();
        a = a >> 1 ^ POLYNOMIAL & (a & 1).wrapping_neg();
    }
    product
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

    fn header(unseen: Unseen) -> [u8; 20] {
        let mut ip = [7; 20];
        ip[4..8].copy_from_slice(&unseen.bytes());
        ip
    }

    fn checksum(unseen: Unseen, packet: &[u8]) -> [u8; 4] {
        let (bth, rest) = packet.split_first_chunk().unwrap();
        Icrc::ipv4(&header(unseen), &[9; 8]).of(bth, &[rest])
    }

    #[test]
    fn the_unseen_is_found_whatever_it_is() {
        for len in [12, 16, 255, 256, 1000, 4096 + 28, 65_000] {
            let packet = bytes(0x33, len);
            let expected = checksum(Unseen::USUAL, &packet);
            for step in 0..=4096_u16 {
                let there = Unseen {
                    identification: step.wrapping_mul(0x9e37),
                    dont_fragment: step % 3 != 0,
                };
                let found = checksum(there, &packet);
                assert_eq!(unseen(expected, found, len), Some(there));
            }
        }
    }

    #[test]
    fn fragments_and_the_reserved_flag_are_refused() {
        let packet = bytes(0x44, 500);
        let expected = checksum(Unseen::USUAL, &packet);
        let (bth, rest) = packet.split_first_chunk().unwrap();
        for bit in 0..16 {
            let flags = 0x4000_u16 ^ 1 << bit;
            let mut ip = header(Unseen::USUAL);
            ip[6..8].copy_from_slice(&flags.to_be_bytes());
            let found = Icrc::ipv4(&ip, &[9; 8]).of(bth, &[rest]);
            assert_eq!(unseen(expected, found, 500).is_some(), bit == 14);
        }
    }

    /// Whether a flipped bit passes depends on its place only, not on what the packet says: so
    /// this is a statement about all packets. Of the longest, two bits of 32 992 pass.
    #[test]
    fn a_flipped_bit_is_seen_with_known_exceptions() {
        for (len, exceptions) in [
            (12, &[][..]),
            (64, &[]),
            (272, &[1387]),
            (1052, &[1387]),
            (4124, &[1387, 14678]),
        ] {
            let packet = bytes(0x55, len);
            let expected = checksum(Unseen::USUAL, &packet);
            // The byte of the congestion bits is not covered.
            let covered = (0..len * 8).filter(|bit| bit / 8 != 4);
            let passing: Vec<usize> = covered
                .filter(|bit| {
                    let mut changed = packet.clone();
                    changed[bit / 8] ^= 1 << (bit % 8);
                    unseen(expected, checksum(Unseen::USUAL, &changed), len).is_some()
                })
                .collect();
            assert_eq!(passing, exceptions, "{len} bytes");
        }
    }

    /// Against all checksums that there are for a packet, and others near and far.
    #[test]
    fn exactly_the_checksums_of_some_header_pass() {
        let packet = bytes(0x66, 92);
        let expected = checksum(Unseen::USUAL, &packet);
        let mut right = std::collections::HashSet::new();
        for identification in 0..=u16::MAX {
            for dont_fragment in [false, true] {
                let there = Unseen {
                    identification,
                    dont_fragment,
                };
                right.insert(checksum(there, &packet));
            }
        }
        assert_eq!(right.len(), 1 << 17);
        let mut near = right.iter().copied().cycle();
        let mut random = 1_u32;
        for round in 0..300_000 {
            random = random.wrapping_mul(0x915f_77f5).wrapping_add(12345);
            let mut found = random.to_le_bytes();
            if round % 2 == 0 {
                // One or two bits away from a right one.
                let flips = 1_u32 << (random >> 27) | 1 << (random >> 22 & 31);
                let start = near.next().unwrap_or_default();
                found = (u32::from_le_bytes(start) ^ flips).to_le_bytes();
            }
            let passes = unseen(expected, found, 92);
            assert_eq!(passes.is_some(), right.contains(&found));
            if let Some(there) = passes {
                assert_eq!(checksum(there, &packet), found);
            }
        }
    }

    #[test]
    fn a_length_that_no_packet_has_is_refused() {
        assert_eq!(unseen([0; 4], [1; 4], usize::MAX), None);
        assert_eq!(unseen([0; 4], [1; 4], 65_536), None);
    }
}
