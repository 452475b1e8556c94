//! What comes in and what goes out.

use core::ops::Range;

use sluice_wire::Ecn;
use sluice_wire::tcp::{Flags, Header};

/// A segment that arrived, its checksum found right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Its header.
    pub header: Header,
    /// Bytes of its payload.
    pub bytes: u32,
    /// What the IP header says of congestion.
    pub ecn: Ecn,
}

/// Where the bytes of a segment go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which bytes of the payload.
    pub payload: Range<u32>,
    /// The offset of the first of them in the peer's stream. At most
    /// [`crate::Config::receive_buffer`] bytes lie between what the application has read and the
    /// last of them, so a ring of that size holds them.
    pub offset: u64,
}

/// What a segment changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Where to put its bytes, if any are new.
    pub place: Option<Place>,
    /// Then the peer's stream is complete up to this offset.
    pub readable: u64,
    /// The peer has all of our stream up to this offset: the caller may forget it.
    pub acknowledged: u64,
}

/// A segment to send. The caller fills in ports and checksum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transmit {
    /// Its header.
    pub header: Header,
    /// Which bytes of our stream, by offset.
    pub payload: Range<u64>,
    /// For the IP header.
    pub ecn: Ecn,
}

/// The answer to a segment of a connection that does not exist (RFC 9293 §3.10.7.1): none to a
/// reset.
pub fn refuse(segment: &Segment) -> Option<Transmit> {
    let header = &segment.header;
    if header.flags.has(Flags::RST) {
        return None;
    }
    let mut reset = Header {
        flags: Flags::RST,
        ..Header::default()
    };
    if header.flags.has(Flags::ACK) {
        reset.sequence = header.acknowledgement;
    } else {
        let more =
            u32::from(header.flags.has(Flags::SYN)) + u32::from(header.flags.has(Flags::FIN));
        reset.flags = Flags::RST.with(Flags::ACK);
        reset.acknowledgement = header
            .sequence
            .wrapping_add(segment.bytes)
            .wrapping_add(more);
    }
    Some(Transmit {
        header: reset,
        ..Transmit::default()
    })
}
