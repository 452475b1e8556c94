//! What can be wrong with bytes of iWARP, or with what is to become some.

use core::fmt;

/// Why bytes are no such frame, or a value has no such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes end before the format does.
    Truncated,
    /// A length field contradicts the bytes that are there.
    Length,
    /// No MPA request or reply, or the other one of them (RFC 5044 §7.1.1).
    Key,
    /// A revision of MPA that this crate does not speak.
    Revision(u8),
    /// The CRC of an FPDU is wrong (RFC 5044 §4.4).
    Crc,
    /// A version of DDP other than 1; of a tagged segment or of an untagged one.
    DdpVersion {
        /// Which of the two.
        tagged: bool,
    },
    /// A version of RDMAP other than 1 (RFC 5040 §4.1). RFC 7306 keeps that number.
    RdmapVersion,
    /// There is no such opcode, or not in a tagged segment, or in that only.
    Opcode(u8),
    /// The opcode's messages go by another queue (RFC 5040 §4.1, RFC 7306).
    Queue(u32),
    /// An operation of an atomic request that is not known (RFC 7306).
    Atomic(u8),
    /// Too long for the field that says how long.
    TooLong,
    /// The buffer given to the builder is too small.
    NoRoom,
}

/// A result with this module's [`Error`].
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the frame is cut short"),
            Self::Length => f.write_str("a length field is wrong"),
            Self::Key => f.write_str("this is not the MPA frame that was expected"),
            Self::Revision(revision) => write!(f, "MPA revision {revision} is unknown"),
            Self::Crc => f.write_str("the CRC is wrong"),
            Self::DdpVersion { .. } => f.write_str("the version of DDP is unknown"),
            Self::RdmapVersion => f.write_str("the version of RDMAP is unknown"),
            Self::Opcode(code) => write!(f, "there is no opcode {code:#x} here"),
            Self::Queue(queue) => write!(f, "the message is not for queue {queue}"),
            Self::Atomic(code) => write!(f, "there is no atomic operation {code:#x}"),
            Self::TooLong => f.write_str("the content is too long"),
            Self::NoRoom => f.write_str("the buffer is too small"),
        }
    }
}

impl core::error::Error for Error {}

/// Of [`crate::bytes`], which knows two ways to run out of bytes only.
impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::NoRoom => Self::NoRoom,
            _ => Self::Truncated,
        }
    }
}
