//! What can be wrong with a call, and the errno it becomes.

use core::fmt;

use sluice_sys::errno::Errno;

/// Why a call was refused. Nothing has happened then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Error {
    /// A number that no enumeration has.
    UnknownNumber,
    /// A request for more than the device's attributes allow, or for nothing at all.
    BadCapability,
    /// The QP's state does not allow this call.
    WrongState,
    /// The state table has no such way from the current state.
    BadTransition,
    /// An attribute that the transition does not know, or one that it needs is missing.
    BadMask,
    /// An attribute's value is out of its range.
    BadValue,
    /// The opcode or flag does not exist on this type of QP.
    BadOpcode,
    /// More pieces than the queue was made for.
    TooManySges,
    /// More inline bytes than the queue was made for.
    InlineTooLong,
    /// Longer than a message may be.
    MessageTooLong,
    /// No room in the queue: completions must be polled first.
    QueueFull,
    /// Objects of different devices or domains, or an object that does not belong here.
    WrongObject,
    /// A bad combination of access flags, or an address range that wraps.
    BadRegion,
    /// The memory is not the program's, or may not be written.
    BadAddress,
    /// Others still use the object.
    Busy,
    /// No more of these objects.
    NoResources,
    /// This device or transport cannot do it.
    NotSupported,
    /// The port, GID, P_Key or group does not exist.
    NotFound,
    /// The fd is non-blocking and has no event.
    WouldBlock,
    /// A system call or the transport failed.
    System(Errno),
}

impl Error {
    /// All variants, for tests of mappings.
    pub const ALL: &'static [Error] = &[
        Error::UnknownNumber,
        Error::BadCapability,
        Error::WrongState,
        Error::BadTransition,
        Error::BadMask,
        Error::BadValue,
        Error::BadOpcode,
        Error::TooManySges,
        Error::InlineTooLong,
        Error::MessageTooLong,
        Error::QueueFull,
        Error::WrongObject,
        Error::BadRegion,
        Error::BadAddress,
        Error::Busy,
        Error::NoResources,
        Error::NotSupported,
        Error::NotFound,
        Error::WouldBlock,
        Error::System(Errno::INTR),
    ];

    /// The positive number that the man pages name.
    pub const fn errno(self) -> Errno {
        match self {
            Error::UnknownNumber
            | Error::BadCapability
            | Error::WrongState
            | Error::BadTransition
            | Error::BadMask
            | Error::BadValue
            | Error::BadOpcode
            | Error::TooManySges
            | Error::InlineTooLong
            | Error::MessageTooLong
            | Error::WrongObject
            | Error::BadRegion
            | Error::NotFound => Errno::INVAL,
            Error::QueueFull | Error::NoResources => Errno(libc::ENOMEM),
            Error::BadAddress => Errno(libc::EFAULT),
            Error::Busy => Errno(libc::EBUSY),
            Error::NotSupported => Errno::NOTSUP,
            Error::WouldBlock => Errno::AGAIN,
            Error::System(errno) => errno,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::UnknownNumber => "unknown number",
            Error::BadCapability => "more than the device has",
            Error::WrongState => "not in this state of the queue pair",
            Error::BadTransition => "no such state transition",
            Error::BadMask => "missing or unexpected attributes",
            Error::BadValue => "attribute out of range",
            Error::BadOpcode => "not on this type of queue pair",
            Error::TooManySges => "too many pieces",
            Error::InlineTooLong => "too much inline data",
            Error::MessageTooLong => "message too long",
            Error::QueueFull => "queue full, poll completions first",
            Error::WrongObject => "object of another domain or device",
            Error::BadRegion => "bad access flags or address range",
            Error::BadAddress => "memory not accessible",
            Error::Busy => "still in use",
            Error::NoResources => "no more of these objects",
            Error::NotSupported => "not supported",
            Error::NotFound => "does not exist",
            Error::WouldBlock => "no event",
            Error::System(errno) => return write!(f, "{errno}"),
        })
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Error::WouldBlock,
            other => Error::System(other),
        }
    }
}

pub type Result<T, E = Error> = core::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The mapping of every variant, written down a second time.
    #[test]
    fn every_error_has_its_errno() {
        for error in Error::ALL {
            let expected = match error {
                Error::QueueFull | Error::NoResources => libc::ENOMEM,
                Error::BadAddress => libc::EFAULT,
                Error::Busy => libc::EBUSY,
                Error::NotSupported => libc::EOPNOTSUPP,
                Error::WouldBlock => libc::EAGAIN,
                Error::System(errno) => errno.0,
                _ => libc::EINVAL,
            };
            assert_eq!(error.errno().0, expected, "{error:?}");
        }
        let texts: HashSet<String> = Error::ALL.iter().map(|error| error.to_string()).collect();
        assert_eq!(texts.len(), Error::ALL.len(), "each says something else");
    }
}
