//! Files of captured packets: the classic pcap format and pcapng (the IETF drafts
//! draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng). Only writing, only Ethernet; times are
//! nanoseconds since 1970.

use crate::bytes::Writer;
use crate::error::{Error, Result};

/// LINKTYPE_ETHERNET.
const ETHERNET: u16 = 1;
/// No packet is longer.
const SNAP_BYTES: u32 = 1 << 18;

/// Which way a packet went, as the interface saw it (pcapng, epb_flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Direction {
    /// It came.
    Inbound = 1,
    /// It went.
    Outbound = 2,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header, then packets. It knows no directions and no counts.
    Pcap,
    /// Blocks.
    PcapNg,
}

/// Bytes that a packet has besides its own, at most.
pub const PACKET_OVERHEAD_MAX: usize = 28 + 8 + 4 + 4 + 3;

/// Bytes of a text in a header, at most; what is longer is cut.
pub const TEXT_BYTES_MAX: usize = 255;

/// Options of a block are padded to 4 bytes (pcapng §3.5).
struct Options<'w, 'b>(&'w mut Writer<'b>);

impl Options<'_, '_> {
    fn add(&mut self, code: u16, value: &[u8]) {
        self.0.u16_le(code);
        self.0.u16_le(value.len() as u16);
        self.0.put(value);
        self.0.zeros(value.len().wrapping_neg() & 3);
    }

    fn text(&mut self, code: u16, text: &str) {
        let mut end = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.add(code, text.get(..end).unwrap_or_default().as_bytes());
    }

    fn end(self) {
        self.0.u32_le(0);
    }
}

impl Writer<'_> {
    fn u16_le(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    fn u32_le(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
}

/// Writes a block whose length is in front of it and behind it (pcapng §3.1).
fn block(kind: u32, buffer: &mut [u8], body: impl FnOnce(&mut Writer<'_>)) -> Result<usize> {
    let mut writer = Writer::new(buffer.get_mut(8..).ok_or(Error::NoRoom)?);
    body(&mut writer);
    let total = writer.finish()? + 12;
    let mut writer = Writer::new(buffer);
    writer.u32_le(kind);
    writer.u32_le(total as u32);
    let mut behind = Writer::new(buffer.get_mut(total - 4..).ok_or(Error::NoRoom)?);
    behind.u32_le(total as u32);
    behind.finish()?;
    Ok(total)
}

/// Two halves of a time, the higher first (pcapng §4.3).
fn time(writer: &mut Writer<'_>, time_ns: u64) {
    writer.u32_le((time_ns >> 32) as u32);
    writer.u32_le(time_ns as u32);
}

/// The beginning of a file, to the front of `buffer`; how long it is. pcapng names the writing
/// program, and the interface.
pub fn begin(format: Format, program: &str, interface: &str, buffer: &mut [u8]) -> Result<usize> {
    if format == Format::Pcap {
        let mut writer = Writer::new(buffer);
        // Nanoseconds; version 2.4; two fields that are zero.
        writer.u32_le(0xa1b2_3c4d);
        writer.u16_le(2);
        writer.u16_le(4);
        writer.zeros(8);
        writer.u32_le(SNAP_BYTES);
        writer.u32_le(u32::from(ETHERNET));
        return writer.finish();
    }
    let section = block(0x0a0d_0d0a, buffer, |writer| {
        writer.u32_le(0x1a2b_3c4d);
        writer.u16_le(1);
        writer.u16_le(0);
        // The section's length is not known.
        writer.put(&[0xff; 8]);
        let mut options = Options(writer);
        options.text(4, program); // shb_userappl
        options.end();
    })?;
    let rest = buffer.get_mut(section..).ok_or(Error::NoRoom)?;
    let interface = block(1, rest, |writer| {
        writer.u16_le(ETHERNET);
        writer.zeros(2);
        writer.u32_le(SNAP_BYTES);
        let mut options = Options(writer);
        options.text(2, interface); // if_name
        options.add(9, &[9]); // if_tsresol: 10⁻⁹ s
        options.end();
    })?;
    Ok(section + interface)
}

/// A packet, to the front of `buffer`; how long it is.
pub fn packet(
    format: Format,
    time_ns: u64,
    direction: Direction,
    frame: &[u8],
    buffer: &mut [u8],
) -> Result<usize> {
    let len = u32::try_from(frame.len()).map_err(|_| Error::Length)?;
    if len > SNAP_BYTES {
        return Err(Error::Length);
    }
    if format == Format::Pcap {
        let mut writer = Writer::new(buffer);
        // 32 bits of seconds last until 2106.
        writer.u32_le((time_ns / 1_000_000_000) as u32);
        writer.u32_le((time_ns % 1_000_000_000) as u32);
        writer.u32_le(len);
        writer.u32_le(len);
        writer.put(frame);
        return writer.finish();
    }
    block(6, buffer, |writer| {
        writer.u32_le(0);
        time(writer, time_ns);
        writer.u32_le(len);
        writer.u32_le(len);
        writer.put(frame);
        writer.zeros(frame.len().wrapping_neg() & 3);
        let mut options = Options(writer);
        options.add(2, &(direction as u32).to_le_bytes()); // epb_flags
        options.end();
    })
}

/// pcapng: how many packets came and how many of them are missing (interface statistics block,
/// §4.6); how long it is. Classic pcap has no place for it: 0.
pub fn statistics(
    format: Format,
    time_ns: u64,
    received: u64,
    dropped: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    if format == Format::Pcap {
        return Ok(0);
    }
    block(5, buffer, |writer| {
        writer.u32_le(0);
        time(writer, time_ns);
        let mut options = Options(writer);
        options.add(4, &received.to_le_bytes()); // isb_ifrecv
        options.add(5, &dropped.to_le_bytes()); // isb_ifdrop
        options.end();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_say_their_length_twice_and_are_whole_words() {
        for len in 0..9 {
            let mut buffer = [0; 128];
            let frame = &[7; 9][..len];
            let used = packet(Format::PcapNg, 1, Direction::Inbound, frame, &mut buffer).unwrap();
            assert!(used.is_multiple_of(4) && used <= len + PACKET_OVERHEAD_MAX);
            assert_eq!(buffer[4..8], (used as u32).to_le_bytes());
            assert_eq!(buffer[used - 4..used], (used as u32).to_le_bytes());
            let short = &mut buffer[..used - 1];
            let result = packet(Format::PcapNg, 1, Direction::Inbound, frame, short);
            assert_eq!(result, Err(Error::NoRoom));
        }
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let mut buffer = [0; 1024];
        let name = "ä".repeat(200);
        let used = begin(Format::PcapNg, "", &name, &mut buffer).unwrap();
        assert!(used < 28 + 8 + 20 + 256 + 16 + 12, "{used}");
    }
}
