//! What programs and sluiced say to each other, and its bytes.
//!
//! Every message starts with four little-endian 16-bit numbers: [`MAGIC`], [`VERSION`], the kind
//! and the length of the whole message in bytes. The body follows, little-endian, each field at
//! the place that `encode` and `decode` of its kind name, without padding. Both ends refuse
//! lengths that are not exactly the kind's.

use core::fmt;

mod bytes;
mod from_daemon;
pub mod gateway;
mod to_daemon;

pub use from_daemon::{FromDaemon, Lane, Reason};
pub use to_daemon::{Announce, Hello, ProgramName, Role, ToDaemon};

/// First number of every message.
pub const MAGIC: u16 = 0x5C1E;
/// Version of everything behind the first eight bytes. Ends of different versions do not talk.
pub const VERSION: u16 = 2;
/// No message is longer.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Length of the part that all versions share.
pub const HEADER_BYTES: usize = 8;

/// Order of the descriptors that accompany [`ToDaemon::Hello`].
pub mod hello_fd {
    /// A page whose first word sluiced sets to 1 after it has sent something; needs
    /// `F_SEAL_SHRINK`.
    pub const EVENT_FLAG: usize = 0;
    /// Sleep counters for peers to read; needs `F_SEAL_SHRINK`, `F_SEAL_GROW` and
    /// `F_SEAL_FUTURE_WRITE`.
    pub const PARKING: usize = 1;
    /// The end table, for `sluice status`; the same seals.
    pub const END_TABLE: usize = 2;
    /// How many there are.
    pub const COUNT: usize = 3;
}

/// Bits of the flags of [`ToDaemon::Hello`].
pub mod hello_flag {
    /// The process had given its end table to an earlier sluiced, before that one ended. The
    /// table that comes with this hello is empty.
    pub const EARLIER: u32 = 1;
    /// The process uses the end table of the program that introduced it, its parent. The table
    /// that comes with this hello is empty.
    pub const SHARED: u32 = 2;
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Shorter than the header, or not the length that the header or the kind says.
    Length,
    /// It does not start with [`MAGIC`].
    Magic,
    /// The sender speaks this other version.
    Version(u16),
    /// No message of this direction has this kind.
    Kind(u16),
    /// A field has a value that no sender may give it.
    Value,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("the message has a wrong length"),
            Self::Magic => f.write_str("this is not a sluice message"),
            Self::Version(theirs) => write!(
                f,
                "the other side speaks protocol version {theirs}, this one {VERSION}; \
                 use programs of one sluice release"
            ),
            Self::Kind(kind) => write!(f, "there is no message of kind {kind}"),
            Self::Value => f.write_str("the message has a field out of range"),
        }
    }
}

impl core::error::Error for DecodeError {}

#[cfg(test)]
mod tests;
