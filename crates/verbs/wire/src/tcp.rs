//! TCP headers and the options that connections of today use (RFC 9293 §3.1, 7323, 2018).

use crate::error::{Error, Result};
use crate::ipv4::{sum, sum_wide};

/// TCP's number among the protocols of IP.
pub const TCP: u8 = 6;

/// Blocks of a SACK option beside which a timestamp fits (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 4;

/// Control bits (RFC 9293 §3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

#[allow(missing_docs)]
impl Flags {
    pub const FIN: Self = Self(1);
    pub const SYN: Self = Self(2);
    pub const RST: Self = Self(4);
    pub const PSH: Self = Self(8);
    pub const ACK: Self = Self(16);
    pub const URG: Self = Self(32);
    /// Congestion was met (RFC 3168 §6.1).
    pub const ECE: Self = Self(64);
    /// The sender has slowed down (RFC 3168 §6.1).
    pub const CWR: Self = Self(128);
}

impl Flags {
    /// Whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These but those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// Options. Those that this does not know are skipped (RFC 9293 §3.2, MUST-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest segment the sender can take, bytes without headers (RFC 9293 §3.7.1).
    pub mss: Option<u16>,
    /// By how many bits windows are shifted, 0 to 14; more counts as 14 (RFC 7323 §2.3).
    pub window_scale: Option<u8>,
    /// The sender understands SACK (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Value and echo reply (RFC 7323 §3.2).
    pub timestamps: Option<(u32, u32)>,
    sack: [(u32, u32); SACK_BLOCKS_MAX],
    sack_count: u8,
}

const END: u8 = 0;
const NOTHING: u8 = 1;
const MSS: u8 = 2;
const SCALE: u8 = 3;
const PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
/// The largest shift (RFC 7323 §2.3).
pub const SCALE_MAX: u8 = 14;

impl Options {
    /// Bytes that options may take.
    pub const BYTES_MAX: usize = 40;

    /// Ranges that arrived, as left and right edge (RFC 2018 §3).
    pub fn sack(&self) -> &[(u32, u32)] {
        &self.sack[..usize::from(self.sack_count)]
    }

    /// Adds a range; false if there is no room for it.
    pub fn push_sack(&mut self, left: u32, right: u32) -> bool {
        let bytes = self.bytes() + if self.sack_count == 0 { 12 } else { 8 };
        match self.sack.get_mut(usize::from(self.sack_count)) {
            Some(block) if bytes <= Self::BYTES_MAX => {
                *block = (left, right);
                self.sack_count += 1;
                true
            }
            _ => false,
        }
    }

    /// Bytes of these options with the padding that this module writes: a multiple of 4.
    pub const fn bytes(&self) -> usize {
        let mut bytes = 0;
        if self.mss.is_some() {
            bytes += 4;
        }
        if self.window_scale.is_some() {
            bytes += 4;
        }
        if self.sack_permitted {
            bytes += 4;
        }
        if self.timestamps.is_some() {
            bytes += 12;
        }
        if self.sack_count > 0 {
            bytes += 4 + 8 * self.sack_count as usize;
        }
        bytes
    }

    /// The options in the bytes between header and payload. [`Error::Length`] for one whose length
    /// is below 2, beyond the bytes, or not what that option has: RFC 9293 §3.2 (MUST-7) asks for
    /// robustness against them, and of such a segment nothing can be trusted.
    pub fn parse(mut bytes: &[u8]) -> Result<Self> {
        let mut options = Self::default();
        // Each round takes at least one byte of 40.
        while let [kind, rest @ ..] = bytes {
            match *kind {
                END => break,
                NOTHING => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let length = usize::from(*rest.first().ok_or(Error::Length)?);
            let body = bytes.get(2..length).ok_or(Error::Length)?;
            match (*kind, body) {
                (MSS, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                (SCALE, &[shift]) => options.window_scale = Some(shift.min(SCALE_MAX)),
                (PERMITTED, []) => options.sack_permitted = true,
                (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                    let value = u32::from_be_bytes([a, b, c, d]);
                    options.timestamps = Some((value, u32::from_be_bytes([e, f, g, h])));
                }
                (SACK, blocks) if blocks.len() % 8 == 0 && !blocks.is_empty() => {
                    options.sack_count = 0;
                    for (place, block) in options.sack.iter_mut().zip(blocks.chunks_exact(8)) {
                        if let [a, b, c, d, e, f, g, h] = *block {
                            let left = u32::from_be_bytes([a, b, c, d]);
                            *place = (left, u32::from_be_bytes([e, f, g, h]));
                            options.sack_count += 1;
                        }
                    }
                }
                (MSS | SCALE | PERMITTED | SACK | TIMESTAMPS, _) => return Err(Error::Length),
                _ => {}
            }
            bytes = bytes.get(length..).ok_or(Error::Length)?;
        }
        Ok(options)
    }

    /// The bytes, and how many there are. Numbers of 32 bits lie at multiples of 4 (RFC 7323
    /// appendix A). [`Error::NoRoom`] if they take more than 40.
    pub fn emit(&self) -> Result<([u8; Self::BYTES_MAX], usize)> {
        let mut buffer = [0; Self::BYTES_MAX];
        if self.bytes() > Self::BYTES_MAX {
            return Err(Error::NoRoom);
        }
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            for byte in bytes {
                buffer[at] = *byte;
                at += 1;
            }
        };
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            put(&[MSS, 4, a, b]);
        }
        if let Some(shift) = self.window_scale {
            put(&[NOTHING, SCALE, 3, shift]);
        }
        if self.sack_permitted {
            put(&[NOTHING, NOTHING, PERMITTED, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            put(&[NOTHING, NOTHING, TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if self.sack_count > 0 {
            put(&[NOTHING, NOTHING, SACK, 2 + 8 * self.sack_count]);
            for (left, right) in self.sack() {
                put(&left.to_be_bytes());
                put(&right.to_be_bytes());
            }
        }
        Ok((buffer, at))
    }
}

/// A header with its options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Number of the first byte, or of the SYN.
    pub sequence: u32,
    /// The number expected next; means something with [`Flags::ACK`].
    pub acknowledgement: u32,
    /// Control bits.
    pub flags: Flags,
    /// As on the wire, before it is shifted by the window scale.
    pub window: u16,
    /// Offset of urgent data; means something with [`Flags::URG`].
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Bytes of a header without options.
    pub const BYTES: usize = 20;
    /// Bytes of a header with the most options.
    pub const BYTES_MAX: usize = Self::BYTES + Options::BYTES_MAX;

    /// The header and its payload. The checksum is not looked at: see [`checksum`].
    ///
    /// [`Error::Truncated`], or [`Error::Length`] for a data offset or an option's length that
    /// cannot be.
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8])> {
        let (header, _) = segment.split_first_chunk().ok_or(Error::Truncated)?;
        let [
            s0,
            s1,
            d0,
            d1,
            q0,
            q1,
            q2,
            q3,
            a0,
            a1,
            a2,
            a3,
            offset,
            flags,
            w0,
            w1,
            _,
            _,
            u0,
            u1,
        ]: [u8; Self::BYTES] = *header;
        let bytes = usize::from(offset >> 4) * 4;
        let options = segment.get(Self::BYTES..bytes).ok_or(Error::Length)?;
        let value = Self {
            source_port: u16::from_be_bytes([s0, s1]),
            destination_port: u16::from_be_bytes([d0, d1]),
            sequence: u32::from_be_bytes([q0, q1, q2, q3]),
            acknowledgement: u32::from_be_bytes([a0, a1, a2, a3]),
            flags: Flags(flags),
            window: u16::from_be_bytes([w0, w1]),
            urgent: u16::from_be_bytes([u0, u1]),
            options: Options::parse(options)?,
        };
        Ok((value, segment.get(bytes..).ok_or(Error::Length)?))
    }

    /// Bytes of the header with its options.
    pub const fn bytes(&self) -> usize {
        Self::BYTES + self.options.bytes()
    }

    /// The bytes with a checksum of zero at offset 16, and how many there are. [`Error::NoRoom`]
    /// if there are more options than fit.
    pub fn emit(&self) -> Result<([u8; Self::BYTES_MAX], usize)> {
        let (options, len) = self.options.emit()?;
        let mut buffer = [0; Self::BYTES_MAX];
        buffer[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        buffer[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        buffer[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        buffer[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        let bytes = Self::BYTES + len;
        buffer[12] = (bytes / 4) as u8 * 16;
        buffer[13] = self.flags.0;
        buffer[14..16].copy_from_slice(&self.window.to_be_bytes());
        buffer[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        buffer[20..].copy_from_slice(&options);
        Ok((buffer, bytes))
    }
}

/// The checksum over a pseudo header with these addresses (4 or 16 bytes each) and a segment, given
/// as a header whose checksum is zero and its payload (RFC 9293 §3.1, RFC 8200 §8.1). Over a whole
/// segment that came in, with its own checksum in it and no payload besides, it is 0 if that is
/// right.
pub fn checksum(source: &[u8], destination: &[u8], header: &[u8], payload: &[u8]) -> u16 {
    let length = header.len().wrapping_add(payload.len()) as u32;
    let mut total = sum(sum(0, source), destination);
    total = sum(total, &length.to_be_bytes());
    total = sum(total, &u16::from(TCP).to_be_bytes());
    // Over a segment that came in, the header is all of it.
    for part in [header, payload] {
        total = sum(total, &sum_wide(part).to_be_bytes());
    }
    !total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn() -> Header {
        Header {
            source_port: 1,
            destination_port: 0xfffe,
            sequence: 0xffff_fff0,
            acknowledgement: 7,
            flags: Flags::SYN.with(Flags::ECE).with(Flags::CWR),
            window: 0xabcd,
            urgent: 0,
            options: Options {
                mss: Some(1460),
                window_scale: Some(9),
                sack_permitted: true,
                timestamps: Some((5, 6)),
                ..Options::default()
            },
        }
    }

    #[test]
    fn a_header_says_the_same_again() {
        let mut header = syn();
        for blocks in 0..5 {
            let (bytes, len) = header.emit().unwrap();
            assert_eq!(len, header.bytes());
            let mut segment = bytes[..len].to_vec();
            segment.extend(b"abc");
            assert_eq!(Header::parse(&segment), Ok((header, &b"abc"[..])));
            for cut in 0..len {
                assert!(Header::parse(&segment[..cut]).is_err());
            }
            let room = header.options.push_sack(blocks, blocks + 9);
            assert_eq!(room, blocks < 1, "12 bytes beside the other 24, 8 more not");
            header.options.sack_permitted = true;
        }
    }

    #[test]
    fn three_blocks_fit_beside_timestamps_and_four_alone() {
        let mut options = Options {
            timestamps: Some((1, 2)),
            ..Options::default()
        };
        assert_eq!((0..9).filter(|n| options.push_sack(*n, n + 1)).count(), 3);
        let mut options = Options::default();
        assert_eq!((0..9).filter(|n| options.push_sack(*n, n + 1)).count(), 4);
        let (bytes, len) = options.emit().unwrap();
        assert_eq!(Options::parse(&bytes[..len]), Ok(options));
    }

    #[test]
    fn options_that_lie_about_their_length_are_refused() {
        for bytes in [
            &[2][..],
            &[2, 0],
            &[2, 1],
            &[2, 4, 5],
            &[2, 3, 5],
            &[3, 2],
            &[4, 3, 0],
            &[5, 2],
            &[5, 9, 0, 0, 0, 0, 0, 0, 0],
            &[8, 9, 0, 0, 0, 0, 0, 0, 0],
            &[99, 0],
            &[99, 4, 0],
        ] {
            assert_eq!(Options::parse(bytes), Err(Error::Length), "{bytes:?}");
        }
        // Unknown ones are skipped, and nothing behind the end is read.
        let odd = [99, 3, 1, 1, 3, 3, 200, 0, 2];
        let options = Options::parse(&odd).unwrap();
        assert_eq!(options.window_scale, Some(SCALE_MAX));
        assert_eq!(options.mss, None);
    }

    #[test]
    fn a_checksum_in_its_place_makes_the_sum_zero() {
        let (mut bytes, len) = syn().emit().unwrap();
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        let sum = checksum(&addresses[..4], &addresses[4..], &bytes[..len], b"odd");
        bytes[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut whole = bytes[..len].to_vec();
        whole.extend(b"odd");
        assert_eq!(checksum(&addresses[..4], &addresses[4..], &whole, &[]), 0);
        for bit in 0..whole.len() * 8 {
            whole[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&addresses[..4], &addresses[4..], &whole, &[]), 0);
            whole[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
