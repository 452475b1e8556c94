//! The Terminate message: why a stream is given up, and at which segment (RFC 5040 §4.8).

use super::error::{Error, Result};
use super::message::ReadRequest;
use super::segment::{Header, TAGGED_BYTES, UNTAGGED_BYTES};
use crate::bytes::{Reader, Writer};

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $code:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_meta])* $variant = $code),+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

codes! {
    /// What RDMAP finds (RFC 5040 §4.8).
    Rdmap {
        /// No region has the key.
        InvalidStag = 0x00,
        /// Outside of the region.
        Bounds = 0x01,
        /// The region does not allow it.
        AccessRights = 0x02,
        /// The region is not for this stream.
        NotAssociated = 0x03,
        /// The range wraps.
        Wrap = 0x04,
        /// The version of RDMAP.
        Version = 0x05,
        /// The opcode is unknown or not expected.
        Opcode = 0x06,
        /// The stream cannot go on.
        CatastrophicStream = 0x07,
        /// No stream can go on.
        CatastrophicGlobal = 0x08,
        /// The key cannot be taken away.
        CannotInvalidate = 0x09,
        /// None of these.
        Unspecified = 0xff,
    }
}

codes! {
    /// What DDP finds at a tagged segment (RFC 5041 §7.2).
    TaggedError {
        /// No region has the key.
        InvalidStag = 0x00,
        /// Outside of the region.
        Bounds = 0x01,
        /// The region is not for this stream.
        NotAssociated = 0x02,
        /// The range wraps.
        Wrap = 0x03,
        /// The version of DDP.
        Version = 0x04,
    }
}

codes! {
    /// What DDP finds at an untagged segment (RFC 5041 §7.2).
    UntaggedError {
        /// There is no such queue, or it is not the opcode's.
        Queue = 0x01,
        /// There is no buffer for the message.
        NoBuffer = 0x02,
        /// The message's number is not one that can come.
        MsnRange = 0x03,
        /// The segment does not begin where the one before it ended.
        Offset = 0x04,
        /// The message is longer than the buffer for it.
        TooLong = 0x05,
        /// The version of DDP.
        Version = 0x06,
    }
}

codes! {
    /// What MPA finds (RFC 5044 §8, RFC 6581).
    Mpa {
        /// The connection was lost.
        Lost = 0x01,
        /// The CRC is wrong.
        Crc = 0x02,
        /// Marker and length contradict each other.
        Marker = 0x03,
        /// The request or reply is wrong.
        Startup = 0x04,
        /// Something else at the sender.
        Catastrophic = 0x05,
        /// The peer wants more READs at a time than there may be.
        InsufficientIrd = 0x06,
        /// The peer chose none of the RTR messages that were offered.
        NoRtr = 0x07,
    }
}

/// Layer, type and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// RDMAP, at the sender itself.
    RdmapCatastrophic,
    /// RDMAP: a request was for memory that it may not have.
    Protection(Rdmap),
    /// RDMAP: a request cannot be carried out.
    Operation(Rdmap),
    /// DDP, at the sender itself.
    DdpCatastrophic,
    /// DDP, at a tagged segment.
    Tagged(TaggedError),
    /// DDP, at an untagged segment.
    Untagged(UntaggedError),
    /// MPA.
    Mpa(Mpa),
    /// Nothing that the RFCs say.
    Other {
        /// 4 bits.
        layer: u8,
        /// 4 bits.
        kind: u8,
        /// 8 bits.
        code: u8,
    },
}

impl Cause {
    const fn parts(self) -> (u8, u8, u8) {
        match self {
            Self::RdmapCatastrophic => (0, 0, 0),
            Self::Protection(code) => (0, 1, code as u8),
            Self::Operation(code) => (0, 2, code as u8),
            Self::DdpCatastrophic => (1, 0, 0),
            Self::Tagged(code) => (1, 1, code as u8),
            Self::Untagged(code) => (1, 2, code as u8),
            Self::Mpa(code) => (2, 0, code as u8),
            Self::Other { layer, kind, code } => (layer & 0xf, kind & 0xf, code),
        }
    }

    fn from_parts(layer: u8, kind: u8, code: u8) -> Self {
        let known = match (layer, kind) {
            (0, 0) if code == 0 => Some(Self::RdmapCatastrophic),
            (0, 1) => Rdmap::from_code(code).map(Self::Protection),
            (0, 2) => Rdmap::from_code(code).map(Self::Operation),
            (1, 0) if code == 0 => Some(Self::DdpCatastrophic),
            (1, 1) => TaggedError::from_code(code).map(Self::Tagged),
            (1, 2) => UntaggedError::from_code(code).map(Self::Untagged),
            (2, 0) => Mpa::from_code(code).map(Self::Mpa),
            _ => None,
        };
        known.unwrap_or(Self::Other { layer, kind, code })
    }
}

/// The segment that a stream is given up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// Bytes of the segment (its ULPDU).
    pub length: u16,
    /// The bytes of its header; of a tagged one, the last four are zeros and not sent.
    header: [u8; UNTAGGED_BYTES],
    /// What it asked for, if it is a READ request.
    pub read: Option<ReadRequest>,
}

impl Culprit {
    /// A segment whose header these bytes begin with, be it legal or not. None if they are fewer
    /// than a header has.
    pub fn new(ulpdu: &[u8], length: u16) -> Option<Self> {
        let bytes = Header::bytes_of(*ulpdu.first()?);
        let (front, rest) = ulpdu.split_at_checked(bytes)?;
        let mut header = [0; UNTAGGED_BYTES];
        header.get_mut(..bytes)?.copy_from_slice(front);
        // An untagged segment of a READ request, and all of it there.
        let asks = bytes == UNTAGGED_BYTES && front.get(1).is_some_and(|byte| byte & 0xf == 1);
        let read = if asks { rest.first_chunk() } else { None };
        Some(Self {
            length,
            header,
            read: read.map(ReadRequest::parse),
        })
    }

    /// The header, from the peer that sends it back: not known to be legal.
    pub fn header(&self) -> &[u8] {
        let [first, ..] = self.header;
        self.header
            .get(..Header::bytes_of(first))
            .unwrap_or_default()
    }
}

/// A Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Why.
    pub cause: Cause,
    /// At which segment; None if that cannot be said.
    pub culprit: Option<Culprit>,
}

const LENGTH_VALID: u8 = 0x80;
const HEADER_INCLUDED: u8 = 0x40;
const READ_INCLUDED: u8 = 0x20;

impl Terminate {
    /// The longest message.
    pub const BYTES_MAX: usize = 4 + 2 + UNTAGGED_BYTES + ReadRequest::BYTES;

    /// Reads the message; what follows is not looked at.
    pub fn parse(message: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(message);
        let (layer, code, flags) = (reader.u8(), reader.u8(), reader.u8());
        reader.skip(1);
        reader.finish()?;
        let cause = Cause::from_parts(layer >> 4, layer & 0xf, code);
        if flags & HEADER_INCLUDED == 0 {
            return Ok(Self {
                cause,
                culprit: None,
            });
        }
        let length = reader.u16();
        let first = *reader.rest().first().ok_or(Error::Truncated)?;
        let front = reader.slice(Header::bytes_of(first));
        reader.finish()?;
        let mut culprit = Culprit::new(front, length).ok_or(Error::Truncated)?;
        if flags & READ_INCLUDED != 0 && culprit.header().len() == UNTAGGED_BYTES {
            culprit.read = Some(ReadRequest::parse(&reader.array()));
            reader.finish()?;
        }
        Ok(Self {
            cause,
            culprit: Some(culprit),
        })
    }

    /// Writes the message to the front of `buffer`; its bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize> {
        let (layer, kind, code) = self.cause.parts();
        let mut flags = 0;
        if let Some(culprit) = &self.culprit {
            flags |= LENGTH_VALID | HEADER_INCLUDED;
            if culprit.read.is_some() {
                flags |= READ_INCLUDED;
            }
        }
        let mut writer = Writer::new(buffer);
        writer.put(&[layer << 4 | kind, code, flags, 0]);
        if let Some(culprit) = &self.culprit {
            writer.u16(culprit.length);
            writer.put(culprit.header());
            if let Some(read) = &culprit.read {
                writer.put(&read.emit());
            }
        }
        Ok(writer.finish()?)
    }
}

// A tagged header is the shorter one, so that any header fits its place.
const _: () = assert!(TAGGED_BYTES < UNTAGGED_BYTES);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_survives() {
        let mut causes = std::vec![Cause::RdmapCatastrophic, Cause::DdpCatastrophic];
        causes.extend(Rdmap::ALL.iter().map(|code| Cause::Protection(*code)));
        causes.extend(Rdmap::ALL.iter().map(|code| Cause::Operation(*code)));
        causes.extend(TaggedError::ALL.iter().map(|code| Cause::Tagged(*code)));
        causes.extend(UntaggedError::ALL.iter().map(|code| Cause::Untagged(*code)));
        causes.extend(Mpa::ALL.iter().map(|code| Cause::Mpa(*code)));
        causes.push(Cause::Other {
            layer: 3,
            kind: 4,
            code: 5,
        });
        for cause in causes {
            let message = Terminate {
                cause,
                culprit: None,
            };
            let mut buffer = [0; Terminate::BYTES_MAX];
            assert_eq!(message.emit(&mut buffer), Ok(4));
            assert_eq!(Terminate::parse(&buffer[..4]), Ok(message));
        }
    }

    #[test]
    fn the_culprit_goes_along() {
        let read = ReadRequest {
            sink_stag: 1,
            sink_offset: 2,
            length: 3,
            source_stag: 4,
            source_offset: 5,
        };
        let mut ulpdu = std::vec![0x41, 0x41];
        ulpdu.extend([0; 16]);
        ulpdu.extend(read.emit());
        let culprit = Culprit::new(&ulpdu, 46).unwrap();
        assert_eq!((culprit.read, culprit.header()), (Some(read), &ulpdu[..18]));
        let message = Terminate {
            cause: Cause::Protection(Rdmap::Bounds),
            culprit: Some(culprit),
        };
        let mut buffer = [0; Terminate::BYTES_MAX];
        assert_eq!(message.emit(&mut buffer), Ok(52));
        assert_eq!(buffer[..6], [0x01, 0x01, 0xe0, 0, 0, 46]);
        assert_eq!(Terminate::parse(&buffer), Ok(message));
        for cut in 4..52 {
            assert_eq!(Terminate::parse(&buffer[..cut]), Err(Error::Truncated));
        }
    }
}
