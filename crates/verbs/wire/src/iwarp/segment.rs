//! DDP segments, with the RDMAP header that lies in the bits that DDP leaves to it (RFC 5041 §4,
//! RFC 5040 §4.1).

use super::error::{Error, Result};
use crate::bytes::{Reader, Writer};

/// Bytes of a tagged segment's header.
pub const TAGGED_BYTES: usize = 14;
/// Bytes of an untagged segment's header.
pub const UNTAGGED_BYTES: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION: u8 = 1;
const RDMAP_VERSION: u8 = 1;

/// The place of a tagged segment: it is in the header of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// The region's key.
    pub stag: u32,
    /// In the region's own counting.
    pub offset: u64,
}

/// The place of an untagged segment, in the queue that its opcode has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// The message's number in its queue, from 1 (RFC 5041 §4.3).
    pub msn: u32,
    /// Bytes of the message in front of this segment's.
    pub offset: u32,
}

/// What a segment is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A WRITE.
    Write(Tagged),
    /// What a READ asked for.
    ReadResponse(Tagged),
    /// A READ request.
    ReadRequest(Untagged),
    /// A SEND of any kind.
    Send {
        /// Where.
        place: Untagged,
        /// The receiver is to raise an event.
        solicited: bool,
        /// The key that the receiver is to take away.
        invalidate: Option<u32>,
    },
    /// The sender gives the stream up.
    Terminate(Untagged),
    /// Immediate data (RFC 7306).
    Immediate {
        /// Where.
        place: Untagged,
        /// The receiver is to raise an event.
        solicited: bool,
    },
    /// An atomic operation (RFC 7306).
    AtomicRequest(Untagged),
    /// The value that an atomic operation found (RFC 7306).
    AtomicResponse(Untagged),
}

/// The queues of untagged messages (RFC 5040 §4.1; RFC 7306 adds the last).
pub mod queue {
    /// SENDs and immediate data.
    pub const SEND: u32 = 0;
    /// READ requests and atomics.
    pub const READ_REQUEST: u32 = 1;
    /// Terminate messages.
    pub const TERMINATE: u32 = 2;
    /// What atomics answer.
    pub const ATOMIC_RESPONSE: u32 = 3;
}

impl Kind {
    /// The opcode (RFC 5040 §4.1, RFC 7306).
    pub const fn opcode(&self) -> u8 {
        match self {
            Self::Write(_) => 0x0,
            Self::ReadRequest(_) => 0x1,
            Self::ReadResponse(_) => 0x2,
            Self::Send {
                solicited,
                invalidate,
                ..
            } => match (solicited, invalidate) {
                (false, None) => 0x3,
                (false, Some(_)) => 0x4,
                (true, None) => 0x5,
                (true, Some(_)) => 0x6,
            },
            Self::Terminate(_) => 0x7,
            Self::Immediate {
                solicited: false, ..
            } => 0x8,
            Self::Immediate {
                solicited: true, ..
            } => 0x9,
            Self::AtomicRequest(_) => 0xa,
            Self::AtomicResponse(_) => 0xb,
        }
    }

    /// The place of a tagged segment.
    pub const fn tagged(&self) -> Option<Tagged> {
        match self {
            Self::Write(place) | Self::ReadResponse(place) => Some(*place),
            _ => None,
        }
    }

    /// Queue and place of an untagged segment.
    pub const fn untagged(&self) -> Option<(u32, Untagged)> {
        Some(match self {
            Self::Write(_) | Self::ReadResponse(_) => return None,
            Self::Send { place, .. } | Self::Immediate { place, .. } => (queue::SEND, *place),
            Self::ReadRequest(place) | Self::AtomicRequest(place) => (queue::READ_REQUEST, *place),
            Self::Terminate(place) => (queue::TERMINATE, *place),
            Self::AtomicResponse(place) => (queue::ATOMIC_RESPONSE, *place),
        })
    }
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// It is the last of its message.
    pub last: bool,
    /// What it is of, and where that goes.
    pub kind: Kind,
}

impl Header {
    /// Bytes of the header that begins with this one.
    pub const fn bytes_of(first: u8) -> usize {
        if first & TAGGED != 0 {
            TAGGED_BYTES
        } else {
            UNTAGGED_BYTES
        }
    }

    /// Bytes of this header.
    pub const fn bytes(&self) -> usize {
        match self.kind.tagged() {
            Some(_) => TAGGED_BYTES,
            None => UNTAGGED_BYTES,
        }
    }

    /// The header at the front of a segment, and what is behind it. What is wrong is found in the
    /// order of the layers: DDP's version, RDMAP's, the opcode, the queue.
    pub fn parse(segment: &[u8]) -> Result<(Self, &[u8])> {
        let mut reader = Reader::new(segment);
        let (ddp, rdmap) = (reader.u8(), reader.u8());
        reader.finish()?;
        let tagged = ddp & TAGGED != 0;
        if ddp & 3 != DDP_VERSION {
            return Err(Error::DdpVersion { tagged });
        }
        if rdmap >> 6 != RDMAP_VERSION {
            return Err(Error::RdmapVersion);
        }
        let opcode = rdmap & 0xf;
        let kind = if tagged {
            let place = Tagged {
                stag: reader.u32(),
                offset: reader.u64(),
            };
            match opcode {
                0x0 => Kind::Write(place),
                0x2 => Kind::ReadResponse(place),
                _ => return Err(Error::Opcode(opcode)),
            }
        } else {
            let (ulp, queue) = (reader.u32(), reader.u32());
            let place = Untagged {
                msn: reader.u32(),
                offset: reader.u32(),
            };
            let kind = untagged(opcode, ulp, place)?;
            reader.finish()?;
            if kind.untagged().is_none_or(|(right, _)| right != queue) {
                return Err(Error::Queue(queue));
            }
            kind
        };
        reader.finish()?;
        let last = ddp & LAST != 0;
        Ok((Self { last, kind }, reader.rest()))
    }

    /// Writes the header to the front of `buffer`; its bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize> {
        let mut writer = Writer::new(buffer);
        let tagged = self.kind.tagged();
        let model = if tagged.is_some() { TAGGED } else { 0 };
        writer.u8(model | if self.last { LAST } else { 0 } | DDP_VERSION);
        writer.u8(RDMAP_VERSION << 6 | self.kind.opcode());
        if let Some(place) = tagged {
            writer.u32(place.stag);
            writer.u64(place.offset);
        }
        if let Some((queue, place)) = self.kind.untagged() {
            writer.u32(match self.kind {
                Kind::Send { invalidate, .. } => invalidate.unwrap_or(0),
                _ => 0,
            });
            writer.u32(queue);
            writer.u32(place.msn);
            writer.u32(place.offset);
        }
        Ok(writer.finish()?)
    }
}

fn untagged(opcode: u8, ulp: u32, place: Untagged) -> Result<Kind> {
    Ok(match opcode {
        0x1 => Kind::ReadRequest(place),
        0x3..=0x6 => Kind::Send {
            place,
            solicited: opcode >= 0x5,
            invalidate: matches!(opcode, 0x4 | 0x6).then_some(ulp),
        },
        0x7 => Kind::Terminate(place),
        0x8 | 0x9 => Kind::Immediate {
            place,
            solicited: opcode == 0x9,
        },
        0xa => Kind::AtomicRequest(place),
        0xb => Kind::AtomicResponse(place),
        _ => return Err(Error::Opcode(opcode)),
    })
}

/// A segment that came in, with a header that is whole and legal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment<'a> {
    header: Header,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Looks at a ULPDU.
    pub fn parse(ulpdu: &'a [u8]) -> Result<Self> {
        let (header, payload) = Header::parse(ulpdu)?;
        Ok(Self { header, payload })
    }

    /// Its header.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// What it carries.
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_place() {
        let write = Header {
            last: true,
            kind: Kind::Write(Tagged {
                stag: 0x0102_0304,
                offset: 0x0506_0708_090a_0b0c,
            }),
        };
        let mut buffer = [0; UNTAGGED_BYTES];
        assert_eq!(write.emit(&mut buffer), Ok(TAGGED_BYTES));
        assert_eq!(
            buffer[..TAGGED_BYTES],
            [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
        );
        assert_eq!(Header::parse(&buffer[..14]), Ok((write, &[][..])));
        let send = Header {
            last: false,
            kind: Kind::Send {
                place: Untagged {
                    msn: 0x0102_0304,
                    offset: 5,
                },
                solicited: true,
                invalidate: Some(0xa1a2_a3a4),
            },
        };
        assert_eq!(send.emit(&mut buffer), Ok(UNTAGGED_BYTES));
        let bytes = [
            0x01, 0x46, 0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 5,
        ];
        assert_eq!(buffer, bytes);
        assert_eq!(Header::parse(&buffer), Ok((send, &[][..])));
    }

    #[test]
    fn what_is_wrong_is_said_by_layer() {
        let good = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert!(Header::parse(&good).is_ok());
        let error = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Header::parse(&bytes).unwrap_err()
        };
        assert_eq!(error(0, 0x42), Error::DdpVersion { tagged: false });
        assert_eq!(error(0, 0xc0), Error::DdpVersion { tagged: true });
        assert_eq!(error(1, 0x83), Error::RdmapVersion);
        assert_eq!(error(1, 0x4c), Error::Opcode(0xc));
        assert_eq!(error(1, 0x40), Error::Opcode(0));
        assert_eq!(error(0, 0xc1), Error::Opcode(3));
        assert_eq!(error(9, 1), Error::Queue(1));
        assert_eq!(Header::parse(&good[..17]), Err(Error::Truncated));
    }
}
