//! An FPDU on its way out: what is around the payload, and where that is.

use sluice_wire::iwarp::message::AtomicRequest;
use sluice_wire::iwarp::segment::UNTAGGED_BYTES;
use sluice_wire::iwarp::terminate::Terminate;
use sluice_wire::iwarp::{Header, Kind, Untagged, fpdu};

use crate::request::Remote;

/// Bytes in front of the payload, or of a frame without one up to its pad: the longest is
/// Terminate's, as long as that of an atomic request.
const HEAD_BYTES_MAX: usize = fpdu::LENGTH_BYTES + UNTAGGED_BYTES + Terminate::BYTES_MAX;

const _: () = assert!(AtomicRequest::BYTES <= Terminate::BYTES_MAX);

/// Bytes behind the payload: pad and CRC.
const TRAILER_BYTES_MAX: usize = 3 + fpdu::CRC_BYTES;

/// The bytes that a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// None, or they are in the head.
    None,
    /// Of one of our requests.
    Request {
        /// [`crate::Request::seq`].
        seq: u64,
        /// Bytes of the request in front of them.
        offset: u32,
        /// Bytes.
        length: u32,
    },
    /// Of a region, which the peer reads. The key allowed it when the request came; whoever
    /// gathers them checks again.
    Region {
        /// Where.
        remote: Remote,
        /// Bytes.
        length: u32,
    },
}

impl Payload {
    /// Bytes.
    pub const fn length(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Request { length, .. } | Self::Region { length, .. } => *length,
        }
    }
}

/// What is to be written to the stream: [`Frame::head`], the payload, [`Frame::trailer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    head: [u8; HEAD_BYTES_MAX],
    head_bytes: usize,
    /// Where the payload is.
    pub payload: Payload,
    crc: bool,
    /// Bytes of the stream up to and with this frame, for [`super::Connection::released`].
    pub end: u64,
}

impl Frame {
    /// A segment with `control` in front of its payload; one of the two is empty. None if it
    /// would be longer than a frame can be, which the caller's numbers keep it from.
    pub(super) fn new(
        header: &Header,
        control: &[u8],
        payload: Payload,
        crc: bool,
    ) -> Option<Self> {
        let mut frame = Self::empty(crc);
        let (length, rest) = frame.head.split_first_chunk_mut()?;
        let bytes = header.emit(rest).ok()?;
        let place = rest.get_mut(bytes..)?.get_mut(..control.len())?;
        place.copy_from_slice(control);
        let ulpdu = bytes + control.len() + payload.length() as usize;
        *length = u16::try_from(ulpdu).ok()?.to_be_bytes();
        frame.head_bytes = fpdu::LENGTH_BYTES + bytes + control.len();
        frame.payload = payload;
        Some(frame)
    }

    /// An FPDU of nothing.
    pub(super) const fn empty(crc: bool) -> Self {
        Self {
            head: [0; HEAD_BYTES_MAX],
            head_bytes: fpdu::LENGTH_BYTES,
            payload: Payload::None,
            crc,
            end: 0,
        }
    }

    /// Bytes in front of the payload.
    pub fn head(&self) -> &[u8] {
        self.head.get(..self.head_bytes).unwrap_or_default()
    }

    /// All bytes of the frame.
    pub const fn bytes(&self) -> usize {
        let ulpdu = self.head_bytes - fpdu::LENGTH_BYTES + self.payload.length() as usize;
        fpdu::bytes(ulpdu)
    }

    /// Whether its CRC counts. Then the payload is to be copied before it is summed, and sent from
    /// the copy: memory that programs can write meanwhile would be sent with another sum.
    pub const fn has_crc(&self) -> bool {
        self.crc
    }

    /// The sum of the head, to go on with the payload.
    pub fn sum(&self) -> fpdu::Crc {
        let mut crc = fpdu::Crc::new();
        crc.update(self.head());
        crc
    }

    /// What is behind the payload: pad and CRC. `sum` is that of head and payload, and does not
    /// count where CRCs are off.
    pub fn trailer(&self, mut sum: fpdu::Crc) -> Trailer {
        let mut bytes = [0; TRAILER_BYTES_MAX];
        let ulpdu = self.head_bytes - fpdu::LENGTH_BYTES + self.payload.length() as usize;
        let pad = fpdu::pad(ulpdu);
        if self.crc {
            sum.update(bytes.get(..pad).unwrap_or_default());
            if let Some(place) = bytes.get_mut(pad..pad + fpdu::CRC_BYTES) {
                place.copy_from_slice(&sum.bytes());
            }
        }
        Trailer {
            bytes,
            used: pad + fpdu::CRC_BYTES,
        }
    }
}

/// The end of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    bytes: [u8; TRAILER_BYTES_MAX],
    used: usize,
}

impl Trailer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.used).unwrap_or_default()
    }
}

/// The frame that gives a stream up, as its only or its last one. Its payload is in its head.
pub fn terminate(message: &Terminate, crc: bool) -> Option<Frame> {
    let mut bytes = [0; Terminate::BYTES_MAX];
    let used = message.emit(&mut bytes).ok()?;
    let header = Header {
        last: true,
        // The only message of its queue.
        kind: Kind::Terminate(Untagged { msn: 1, offset: 0 }),
    };
    Frame::new(&header, bytes.get(..used)?, Payload::None, crc)
}
