//! Framing of the stream after the start: FPDUs (RFC 5044 §4), without markers.

use super::error::{Error, Result};

/// Bytes of the length in front.
pub const LENGTH_BYTES: usize = 2;
/// Bytes of the CRC behind. They are there also where CRCs are off (RFC 5044 §4.4).
pub const CRC_BYTES: usize = 4;
/// The longest ULPDU that the length can say.
pub const ULPDU_BYTES_MAX: usize = u16::MAX as usize;
/// The longest FPDU.
pub const BYTES_MAX: usize = bytes(ULPDU_BYTES_MAX);
/// The shortest MULPDU that an end may choose (RFC 5044 §4.5).
pub const MULPDU_BYTES_MIN: usize = 128;

/// Bytes of zeros that make the length and a ULPDU of so many bytes a multiple of 4.
pub const fn pad(ulpdu: usize) -> usize {
    (LENGTH_BYTES + ulpdu).wrapping_neg() & 3
}

/// Bytes of the FPDU around a ULPDU of so many bytes.
pub const fn bytes(ulpdu: usize) -> usize {
    LENGTH_BYTES + ulpdu + pad(ulpdu) + CRC_BYTES
}

/// The longest ULPDU whose FPDU fits in so many bytes of one segment of TCP (its EMSS), and so
/// keeps segments and FPDUs aligned (RFC 5044 §4.5); not below [`MULPDU_BYTES_MIN`].
pub const fn mulpdu(emss: usize) -> usize {
    let fits = emss.saturating_sub(LENGTH_BYTES + CRC_BYTES + emss % 4);
    if fits < MULPDU_BYTES_MIN {
        MULPDU_BYTES_MIN
    } else if fits > ULPDU_BYTES_MAX {
        ULPDU_BYTES_MAX
    } else {
        fits
    }
}

/// The CRC32C of an FPDU, from the length to the pad, taken in pieces (RFC 5044 §4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crc(u32);

impl Crc {
    /// Of nothing.
    pub const fn new() -> Self {
        Self(0)
    }

    /// And of these bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = append(self.0, bytes);
    }

    /// As it is sent: lowest byte first, as with iSCSI.
    pub const fn bytes(self) -> [u8; CRC_BYTES] {
        self.0.to_le_bytes()
    }
}

#[cfg(feature = "std")]
fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// By table, a byte at a time: what may not ask the processor.
#[cfg(any(not(feature = "std"), test))]
fn append_portably(crc: u32, bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                // Castagnoli's polynomial, reversed.
                crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!crc, |crc, byte| {
        crc >> 8 ^ TABLE[((crc as u8) ^ byte) as usize]
    })
}

#[cfg(not(feature = "std"))]
fn append(crc: u32, bytes: &[u8]) -> u32 {
    append_portably(crc, bytes)
}

/// The length of the ULPDU that begins the stream; None if not both bytes of it are there.
pub fn length(stream: &[u8]) -> Option<usize> {
    let field = stream.first_chunk()?;
    Some(usize::from(u16::from_be_bytes(*field)))
}

/// The ULPDU of the first FPDU of the stream, and the FPDU's bytes. None while it is not whole.
/// [`Error::Crc`] if `crc` says that it counts and it is wrong; what the pad holds is covered by
/// that and else nobody's concern.
pub fn parse(stream: &[u8], crc: bool) -> Result<Option<(&[u8], usize)>> {
    let Some(length) = length(stream) else {
        return Ok(None);
    };
    let used = bytes(length);
    let Some((covered, sent)) = stream
        .get(..used)
        .and_then(|fpdu| fpdu.split_last_chunk::<CRC_BYTES>())
        .map(|(covered, sent)| (covered, *sent))
    else {
        return Ok(None);
    };
    if crc {
        let mut own = Crc::new();
        own.update(covered);
        if own.bytes() != sent {
            return Err(Error::Crc);
        }
    }
    let ulpdu = covered
        .get(LENGTH_BYTES..LENGTH_BYTES + length)
        .unwrap_or_default();
    Ok(Some((ulpdu, used)))
}

/// Writes the FPDU around a ULPDU to the front of `buffer`; its bytes. Where CRCs are off, zeros
/// are in the place of the CRC.
pub fn emit(ulpdu: &[u8], crc: bool, buffer: &mut [u8]) -> Result<usize> {
    if ulpdu.len() > ULPDU_BYTES_MAX {
        return Err(Error::TooLong);
    }
    let used = bytes(ulpdu.len());
    let fpdu = buffer.get_mut(..used).ok_or(Error::NoRoom)?;
    let (covered, sum) = fpdu
        .split_last_chunk_mut::<CRC_BYTES>()
        .ok_or(Error::NoRoom)?;
    covered.fill(0);
    let (length, rest) = covered
        .split_first_chunk_mut::<LENGTH_BYTES>()
        .ok_or(Error::NoRoom)?;
    *length = (ulpdu.len() as u16).to_be_bytes(); // Checked above.
    rest.get_mut(..ulpdu.len())
        .ok_or(Error::NoRoom)?
        .copy_from_slice(ulpdu);
    *sum = if crc {
        let mut own = Crc::new();
        own.update(covered);
        own.bytes()
    } else {
        [0; CRC_BYTES]
    };
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 3720, appendix B.4.
    #[test]
    fn the_crc_is_that_of_iscsi() {
        let rising: [u8; 32] = core::array::from_fn(|n| n as u8);
        let cases = [
            ([0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            ([0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (rising, [0x4e, 0x79, 0xdd, 0x46]),
        ];
        for (bytes, wanted) in cases {
            let mut crc = Crc::new();
            crc.update(&bytes[..7]);
            crc.update(&bytes[7..]);
            assert_eq!(crc.bytes(), wanted);
            assert_eq!(append_portably(0, &bytes).to_le_bytes(), wanted);
        }
    }

    #[test]
    fn fpdus_are_multiples_of_four() {
        for length in 0..64 {
            assert_eq!(bytes(length) % 4, 0);
            assert!(pad(length) < 4);
        }
        assert_eq!((bytes(0), bytes(2), bytes(3)), (8, 8, 12));
        assert_eq!(BYTES_MAX, 65_544);
    }

    #[test]
    fn the_longest_ulpdu_fills_a_segment() {
        for emss in [536, 1448, 1449, 1460, 8948] {
            assert!(bytes(mulpdu(emss)) <= emss);
            assert!(bytes(mulpdu(emss) + 4) > emss - emss % 4);
        }
        assert_eq!(mulpdu(1448), 1442);
        assert_eq!((mulpdu(0), mulpdu(1 << 20)), (128, 65_535));
    }
}
