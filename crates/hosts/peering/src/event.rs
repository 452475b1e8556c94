//! What a daemon is told of its peers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::frame::FrameError;
use crate::hello::{HelloError, Reason, VERSIONS, Versions};
use crate::proof::Binding;
use crate::tls::Method;

/// One session with a peer. Its number is never used again: what is meant for a session that has
/// ended cannot reach the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub(crate) u64);

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session begins.
    Up {
        peer: PeerId,
        name: String,
        /// The other end of its connection. Connections of programs with this address end at that
        /// host.
        address: SocketAddr,
        /// What both speak; see [`VERSIONS`].
        version: u16,
        /// For people.
        software: String,
        /// The secret of this session.
        binding: Binding,
    },
    /// The peer is at this address as well, which somebody asked about.
    Address { peer: PeerId, address: IpAddr },
    /// The session has ended, and what was sent last may not have arrived.
    Down { peer: PeerId, why: Why },
    /// Messages of one session come complete and in order.
    Message { peer: PeerId, bytes: Vec<u8> },
    /// No daemon to talk to was found at the address, which somebody asked about, or which is
    /// that of a peer of the configuration.
    Unreachable { address: IpAddr, why: Why },
}

/// Why a session has ended, or did not begin. The text is for people and says what to do where
/// something can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The other daemon ended, or was told to talk to this one no more.
    Closed,
    /// The connection ended without a word.
    Lost,
    /// Nothing was heard for [`Timing::silence`](crate::limits::Timing::silence).
    Silent,
    /// The kernel's error.
    Io(std::io::ErrorKind),
    /// No session within [`Timing::handshake`](crate::limits::Timing::handshake).
    Slow,
    /// What is there speaks no TLS, or broke it; the text says how.
    Tls(String),
    /// The two daemons authenticate in different ways, or it is no sluiced.
    Method {
        ours: Method,
    },
    /// The certificate of the other daemon; the text says what is wrong with it.
    Certificate(String),
    /// The other daemon does not believe our certificate; the text is its alert.
    OwnCertificate(String),
    /// The keys are different.
    Key,
    /// A daemon of another name than expected.
    OtherName {
        expected: String,
        found: String,
    },
    /// The certificate is not for the name, or not the one in the configuration.
    CertificateName(String),
    Version {
        theirs: Versions,
    },
    /// The other daemon refused, and its configuration says why.
    Refused(Option<Reason>),
    /// Our configuration does not name that daemon.
    Unknown(String),
    /// A daemon has reached itself.
    Itself,
    /// Two daemons have the same name.
    SameName,
    /// As many sessions as there can be.
    Full,
    /// What came is no frame.
    Frame(FrameError),
    /// What came is no hello.
    Hello(HelloError),
    /// A frame that does not belong there.
    Unexpected,
    /// More bytes than a stranger may send.
    TooMuch,
    /// A new connection of the same peer took its place.
    Replaced,
    /// There is another connection between the two.
    Duplicate,
    /// The configuration was changed.
    Reconfigured,
    /// Too many connections from strangers: this one gave its place to another.
    Crowded,
}

impl Why {
    /// Whether it stays so until somebody changes a configuration, a file, a clock or a program.
    pub fn needs_somebody(&self) -> bool {
        match self {
            Self::Method { .. }
            | Self::Certificate(_)
            | Self::OwnCertificate(_)
            | Self::Key
            | Self::OtherName { .. }
            | Self::CertificateName(_)
            | Self::Version { .. }
            | Self::Unknown(_)
            | Self::Itself
            | Self::SameName => true,
            Self::Refused(reason) => *reason != Some(Reason::Full),
            _ => false,
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the other daemon ended the session"),
            Self::Lost => f.write_str("the connection ended without a word"),
            Self::Silent => f.write_str("nothing was heard for too long"),
            Self::Io(std::io::ErrorKind::ConnectionRefused) => {
                f.write_str("no daemon listens there")
            }
            Self::Io(kind) => write!(f, "{kind}"),
            Self::Slow => f.write_str("no answer in time"),
            Self::Tls(what) => write!(f, "TLS failed: {what}"),
            Self::Method { ours } => write!(
                f,
                "the other side authenticates in another way, or is no sluiced: authentication \
                 is {ours} here and must be there"
            ),
            Self::Certificate(what) => write!(f, "the other daemon's certificate {what}"),
            Self::OwnCertificate(what) => {
                write!(
                    f,
                    "the other daemon does not accept our certificate: {what}"
                )
            }
            Self::Key => f.write_str("the pre-shared keys are different"),
            Self::OtherName { expected, found } => {
                write!(f, "the daemon there is {found} and not {expected}")
            }
            Self::CertificateName(name) => {
                write!(
                    f,
                    "the certificate of {name} is for another name, or another one"
                )
            }
            Self::Version { theirs } => write!(
                f,
                "the other daemon speaks version {theirs}, this one {VERSIONS}: update the older"
            ),
            Self::Refused(reason) => match reason {
                Some(Reason::Version) => f.write_str("the other daemon has another version"),
                Some(Reason::Key) => f.write_str("the pre-shared keys are different"),
                Some(Reason::Name) => f.write_str(
                    "the other daemon does not accept our certificate for our name, or expects \
                     another one",
                ),
                Some(Reason::Unknown) => f.write_str(
                    "the other daemon does not know this one: it needs a [[peer]] with this name \
                     there, or [discovery]",
                ),
                Some(Reason::Itself) => f.write_str("a daemon has reached itself"),
                Some(Reason::SameName) => {
                    f.write_str("the other daemon has the same name: change name in [daemon]")
                }
                Some(Reason::Full) => f.write_str("the other daemon has too many peers"),
                None => f.write_str("the other daemon refused for a reason of a later version"),
            },
            Self::Unknown(name) => write!(
                f,
                "{name} is not known here: it needs a [[peer]], or [discovery] with its network"
            ),
            Self::Itself => f.write_str("a daemon has reached itself"),
            Self::SameName => {
                f.write_str("the other daemon has the same name: change name in [daemon]")
            }
            Self::Full => f.write_str("too many peers"),
            Self::Frame(error) => error.fmt(f),
            Self::Hello(error) => error.fmt(f),
            Self::Unexpected => f.write_str("a frame that does not belong there"),
            Self::TooMuch => f.write_str("too many bytes before any proof"),
            Self::Replaced => f.write_str("a newer connection of the same peer"),
            Self::Duplicate => f.write_str("there is another connection with that daemon"),
            Self::Reconfigured => f.write_str("the configuration was changed"),
            Self::Crowded => f.write_str("too many strangers"),
        }
    }
}

impl std::error::Error for Why {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_until_somebody_acts_is_told_from_what_passes() {
        for why in [
            Why::Key,
            Why::Refused(Some(Reason::Key)),
            Why::Unknown("beta".to_owned()),
            Why::SameName,
        ] {
            assert!(why.needs_somebody(), "{why}");
        }
        let down = std::io::ErrorKind::ConnectionRefused;
        for why in [
            Why::Closed,
            Why::Io(down),
            Why::Slow,
            Why::Refused(Some(Reason::Full)),
        ] {
            assert!(!why.needs_somebody(), "{why}");
        }
    }
}
