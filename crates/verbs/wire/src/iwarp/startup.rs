//! The frames that begin a connection: MPA request and reply (RFC 5044 §7.1.1), with what the
//! enhanced set-up adds (RFC 6581).

use super::error::{Error, Result};
use crate::bytes::{Reader, Writer};

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
/// RFC 6581's S.
const ENHANCED: u8 = 0x10;
/// Reserved by the RFCs; Linux's siw says with it that it takes frames longer than a segment of
/// TCP (`MPA_RR_FLAG_GSO_EXP`).
const LONG_FRAMES: u8 = 0x08;

/// 14 bits of IRD and ORD are numbers.
const DEPTH_MASK: u16 = 0x3fff;

/// Whose frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The initiator's, which is the first.
    Request,
    /// The responder's.
    Reply,
}

/// What the ends tell each other of RDMA (RFC 6581).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enhanced {
    /// READ requests and atomics that the sender takes at a time, to [`Enhanced::UNSPECIFIED`].
    pub ird: u16,
    /// How many it will have open at a time, likewise.
    pub ord: u16,
    /// Either end may send first: the initiator begins with a message of no effect, "ready to
    /// receive" (RTR).
    pub peer_to_peer: bool,
    /// The RTR may be an empty FPDU; in a reply, it is to be one.
    pub empty_rtr: bool,
    /// The RTR may be, or is to be, a WRITE of no bytes.
    pub write_rtr: bool,
    /// The RTR may be, or is to be, a READ of no bytes.
    pub read_rtr: bool,
}

impl Enhanced {
    /// Bytes in front of the private data.
    pub const BYTES: usize = 4;
    /// The largest number of READs is not for MPA to negotiate.
    pub const UNSPECIFIED: u16 = DEPTH_MASK;

    fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [a, b, c, d] = *bytes;
        let (ird, ord) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            ird: ird & DEPTH_MASK,
            ord: ord & DEPTH_MASK,
            peer_to_peer: ird & 0x8000 != 0,
            empty_rtr: ird & 0x4000 != 0,
            write_rtr: ord & 0x8000 != 0,
            read_rtr: ord & 0x4000 != 0,
        }
    }

    fn emit(&self) -> [u8; Self::BYTES] {
        let ird = self.ird & DEPTH_MASK
            | u16::from(self.peer_to_peer) << 15
            | u16::from(self.empty_rtr) << 14;
        let ord = self.ord & DEPTH_MASK
            | u16::from(self.write_rtr) << 15
            | u16::from(self.read_rtr) << 14;
        let ([a, b], [c, d]) = (ird.to_be_bytes(), ord.to_be_bytes());
        [a, b, c, d]
    }
}

/// The revision of MPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revision {
    /// RFC 5044.
    One,
    /// RFC 6581, with or without what it adds.
    Two(Option<Enhanced>),
}

/// A frame that begins a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Startup<'a> {
    /// Request or reply.
    pub role: Role,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs, which then are in both directions.
    pub crc: bool,
    /// The responder does not want the connection; never in a request.
    pub reject: bool,
    /// The sender takes frames longer than TCP's segments, as siw says it.
    pub long_frames: bool,
    /// The revision, and what comes with it.
    pub revision: Revision,
    /// The program's own bytes.
    pub private_data: &'a [u8],
}

impl<'a> Startup<'a> {
    /// Bytes in front of the private data.
    pub const HEADER_BYTES: usize = 20;
    /// The longest private data, with what [`Enhanced`] takes of it (RFC 5044 §7.1.1).
    pub const PRIVATE_BYTES_MAX: usize = 512;
    /// The longest frame.
    pub const BYTES_MAX: usize = Self::HEADER_BYTES + Self::PRIVATE_BYTES_MAX;

    /// How long the frame is that begins with these bytes; None while that cannot be known. Bytes
    /// that cannot become the frame of that role are [`Error::Key`] from the first wrong one on,
    /// so that nobody waits for the rest of garbage.
    pub fn length(role: Role, front: &[u8]) -> Result<Option<usize>> {
        let key = key(role);
        let seen = front.len().min(key.len());
        if front.get(..seen) != key.get(..seen) {
            return Err(Error::Key);
        }
        let mut reader = Reader::new(front);
        reader.skip(key.len());
        let (_, revision, private) = (reader.u8(), reader.u8(), reader.u16());
        if reader.finish().is_err() {
            return Ok(None);
        }
        if !(1..=2).contains(&revision) {
            return Err(Error::Revision(revision));
        }
        let private = usize::from(private);
        if private > Self::PRIVATE_BYTES_MAX {
            return Err(Error::Length);
        }
        Ok(Some(Self::HEADER_BYTES + private))
    }

    /// The frame at the front of these bytes, and its length.
    pub fn parse(role: Role, bytes: &'a [u8]) -> Result<(Self, usize)> {
        let length = Self::length(role, bytes)?.ok_or(Error::Truncated)?;
        let mut reader = Reader::new(bytes.get(..length).ok_or(Error::Truncated)?);
        reader.skip(16);
        let (flags, revision, _) = (reader.u8(), reader.u8(), reader.u16());
        let revision = match revision {
            1 => Revision::One,
            _ if flags & ENHANCED == 0 => Revision::Two(None),
            _ => Revision::Two(Some(Enhanced::parse(&reader.array()))),
        };
        if reader.finish().is_err() {
            return Err(Error::Length);
        }
        let startup = Self {
            role,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            // Reserved in a request (RFC 5044 §7.1.1).
            reject: flags & REJECT != 0 && role == Role::Reply,
            long_frames: flags & LONG_FRAMES != 0,
            revision,
            private_data: reader.rest(),
        };
        Ok((startup, length))
    }

    /// Writes the frame to the front of `buffer`; how long it is. [`Error::TooLong`] for private
    /// data that do not fit.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize> {
        let (revision, enhanced) = match self.revision {
            Revision::One => (1, None),
            Revision::Two(enhanced) => (2, enhanced),
        };
        let private = self.private_data.len() + enhanced.map_or(0, |_| Enhanced::BYTES);
        if private > Self::PRIVATE_BYTES_MAX {
            return Err(Error::TooLong);
        }
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let mut writer = Writer::new(buffer);
        writer.put(key(self.role));
        writer.u8(flag(self.markers, MARKERS)
            | flag(self.crc, CRC)
            | flag(self.reject && self.role == Role::Reply, REJECT)
            | flag(enhanced.is_some(), ENHANCED)
            | flag(self.long_frames, LONG_FRAMES));
        writer.u8(revision);
        writer.u16(private as u16); // At most 512.
        if let Some(enhanced) = &enhanced {
            writer.put(&enhanced.emit());
        }
        writer.put(self.private_data);
        Ok(writer.finish()?)
    }
}

const fn key(role: Role) -> &'static [u8; 16] {
    match role {
        Role::Request => REQUEST,
        Role::Reply => REPLY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_its_place() {
        let startup = Startup {
            role: Role::Reply,
            markers: false,
            crc: true,
            reject: true,
            long_frames: false,
            revision: Revision::Two(Some(Enhanced {
                ird: 0x0123,
                ord: 0x0045,
                peer_to_peer: true,
                empty_rtr: false,
                write_rtr: false,
                read_rtr: true,
            })),
            private_data: &[7, 8],
        };
        let mut buffer = [0; 64];
        let used = startup.emit(&mut buffer).unwrap();
        assert_eq!(&buffer[..16], b"MPA ID Rep Frame");
        assert_eq!(
            buffer[16..used],
            [0x70, 2, 0, 6, 0x81, 0x23, 0x40, 0x45, 7, 8]
        );
        assert_eq!(
            Startup::parse(Role::Reply, &buffer),
            Ok((startup, used)),
            "what follows is not its own"
        );
        assert_eq!(Startup::parse(Role::Request, &buffer), Err(Error::Key));
    }

    #[test]
    fn garbage_is_known_from_its_first_byte() {
        assert_eq!(Startup::length(Role::Request, b""), Ok(None));
        assert_eq!(Startup::length(Role::Request, b"MPA ID R"), Ok(None));
        assert_eq!(Startup::length(Role::Request, b"G"), Err(Error::Key));
        assert_eq!(
            Startup::length(Role::Request, b"MPA ID Rep"),
            Err(Error::Key)
        );
    }

    #[test]
    fn lengths_and_revisions_are_bounded() {
        let mut frame = *b"MPA ID Req Frame\x00\x01\x02\x00";
        assert_eq!(Startup::length(Role::Request, &frame), Ok(Some(20 + 512)));
        frame[19] = 1;
        assert_eq!(Startup::length(Role::Request, &frame), Err(Error::Length));
        frame[17] = 3;
        assert_eq!(
            Startup::length(Role::Request, &frame),
            Err(Error::Revision(3))
        );
        // Enhanced, and no room for what that means.
        let short = *b"MPA ID Req Frame\x10\x02\x00\x03abc";
        assert_eq!(Startup::parse(Role::Request, &short), Err(Error::Length));
    }
}
