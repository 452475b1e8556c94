//! What the state machine asks of the memory that bytes go to: the driver's side.

use sluice_wire::iwarp::terminate::{Rdmap, TaggedError};
use sluice_wire::iwarp::{Cause, Error};

use crate::memory::{Access, Atomic, Received, TakeError};
use crate::request::Remote;

/// Where bytes of the stream go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A region of ours, by the key that the peer gave. [`Memory::check`] allowed it for the
    /// segment.
    Region(Remote),
    /// The receive that was taken last, so many bytes from its beginning. They fit.
    Receive {
        /// Bytes in front.
        offset: u32,
    },
    /// The memory of a request of ours, so many bytes from its beginning. They fit. The old value
    /// that an atomic gives comes as 8 bytes in the machine's byte order.
    Request {
        /// [`crate::Request::seq`].
        seq: u64,
        /// Bytes in front.
        offset: u32,
    },
}

/// Where the next bytes of the stream go, without a buffer between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// There.
    pub place: Place,
    /// So many bytes, not 0.
    pub length: usize,
}

/// Why the peer may not, or why it cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No region has the key.
    InvalidStag,
    /// The region is for others: another protection domain.
    NotAssociated,
    /// Outside of the region.
    Bounds,
    /// The region does not allow it.
    AccessRights,
    /// The key cannot be taken away.
    CannotInvalidate,
    /// An atomic that is not aligned, or that the memory does not do.
    Unsupported,
    /// Our own fault.
    Local,
}

impl Refusal {
    /// At a tagged segment, DDP says so (RFC 5041 §7.2). It has no code for rights: for those
    /// RDMAP does.
    pub(super) const fn at_write(self) -> Cause {
        match self {
            Self::InvalidStag => Cause::Tagged(TaggedError::InvalidStag),
            Self::NotAssociated => Cause::Tagged(TaggedError::NotAssociated),
            Self::Bounds => Cause::Tagged(TaggedError::Bounds),
            Self::Local => Cause::DdpCatastrophic,
            _ => self.at_request(),
        }
    }

    /// At a request, RDMAP does (RFC 5040 §7.2).
    pub(super) const fn at_request(self) -> Cause {
        match self {
            Self::InvalidStag => Cause::Protection(Rdmap::InvalidStag),
            Self::NotAssociated => Cause::Protection(Rdmap::NotAssociated),
            Self::Bounds => Cause::Protection(Rdmap::Bounds),
            Self::AccessRights => Cause::Protection(Rdmap::AccessRights),
            Self::CannotInvalidate => Cause::Protection(Rdmap::CannotInvalidate),
            Self::Unsupported => Cause::Operation(Rdmap::Unspecified),
            Self::Local => Cause::RdmapCatastrophic,
        }
    }
}

/// What the peer is told of a segment whose header is not legal.
pub(super) const fn cause_of(error: Error) -> Cause {
    use sluice_wire::iwarp::terminate::{Mpa, UntaggedError};
    match error {
        Error::DdpVersion { tagged: true } => Cause::Tagged(TaggedError::Version),
        Error::DdpVersion { tagged: false } => Cause::Untagged(UntaggedError::Version),
        Error::RdmapVersion => Cause::Operation(Rdmap::Version),
        Error::Opcode(_) => Cause::Operation(Rdmap::Opcode),
        Error::Queue(_) => Cause::Untagged(UntaggedError::Queue),
        Error::Atomic(_) => Cause::Operation(Rdmap::Unspecified),
        Error::Crc => Cause::Mpa(Mpa::Crc),
        Error::Key | Error::Revision(_) => Cause::Mpa(Mpa::Startup),
        // A segment that is shorter than its header: there is no code of DDP's for that.
        Error::Truncated | Error::Length | Error::TooLong | Error::NoRoom => Cause::DdpCatastrophic,
    }
}

/// The memory behind one end. The state machine calls it while it looks at the stream, because
/// the answer decides what becomes of it. An implementation answers at once and from its own
/// state only.
///
/// "The receive" is the one that was taken last and not completed; there is at most one.
pub trait Memory {
    /// May the peer do that to these bytes? Nothing is touched. `length` is not 0, and the range
    /// does not wrap.
    fn check(&mut self, access: Access, remote: Remote, length: u32) -> Result<(), Refusal>;

    /// These bytes go there. For [`Place::Region`], key and bounds are to be checked again: the
    /// region may have gone since.
    fn put(&mut self, place: Place, bytes: &[u8]) -> Result<(), Refusal>;

    /// The peer's atomic operation; key, bounds, rights and alignment are to be checked here.
    /// Gives the value from before it.
    fn atomic(&mut self, remote: Remote, atomic: Atomic) -> Result<u64, Refusal>;

    /// A message needs a receive. Gives how many bytes that takes.
    fn take_receive(&mut self) -> Result<u32, TakeError>;

    /// The message takes that key away (RFC 5040 §5.3).
    fn invalidate(&mut self, stag: u32) -> Result<(), Refusal>;

    /// The receive is done with.
    fn complete_receive(&mut self, received: &Received);
}
