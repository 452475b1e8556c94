//! What can be wrong with bytes, or with what is to become bytes.

use core::fmt;

/// Why bytes are no such packet, or a value has no such bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes end before the format does.
    Truncated,
    /// A length field contradicts the bytes that are there, or another length field.
    Length,
    /// A version that this crate does not speak: of IP, BTH, MAD or the IP CM service.
    Version,
    /// The IPv4 header's checksum is wrong.
    Checksum,
    /// IPv4 options, a fragment, or another protocol than UDP to port 4791.
    NotRoce,
    /// An opcode that does not exist (IBTA 9.2).
    Opcode(u8),
    /// A field has a value that is reserved.
    Reserved(&'static str),
    /// The headers given to the builder are not those that the opcode has.
    Headers,
    /// The payload is longer or shorter than the opcode allows, or too long for its place.
    Payload,
    /// The buffer given to the builder is too small.
    NoRoom,
}

/// A result with this crate's [`Error`].
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => f.write_str("the packet is cut short"),
            Self::Length => f.write_str("a length field is wrong"),
            Self::Version => f.write_str("the version is unknown"),
            Self::Checksum => f.write_str("the header checksum is wrong"),
            Self::NotRoce => f.write_str("this is not a RoCEv2 packet"),
            Self::Opcode(code) => write!(f, "there is no opcode {code:#04x}"),
            Self::Reserved(field) => write!(f, "the value of {field} is reserved"),
            Self::Headers => f.write_str("the opcode has other headers"),
            Self::Payload => f.write_str("the payload does not have the length that is allowed"),
            Self::NoRoom => f.write_str("the buffer is too small"),
        }
    }
}

impl core::error::Error for Error {}
