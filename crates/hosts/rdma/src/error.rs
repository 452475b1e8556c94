//! What can go wrong, apart from requests ([`Status`](crate::Status)).

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Why a library, a node, a region or a link could not be made or used.
#[derive(Debug)]
pub enum Error {
    /// The dynamic linker refused the library.
    Load { library: PathBuf, reason: String },
    /// The library lacks a function of the interface.
    Symbol {
        library: PathBuf,
        name: &'static str,
        version: &'static str,
    },
    /// The text is none of `shm`, `roce`, `roce-udp`, `window:PATH`, `hw:NAME`.
    Choice(String),
    /// Our library shows the devices of [`DEVICES_VARIABLE`](crate::DEVICES_VARIABLE), and that
    /// does not name the chosen one.
    Environment {
        variable: &'static str,
        wanted: OsString,
    },
    /// There is no such device among those that the library shows.
    NoDevice { wanted: String, found: Vec<String> },
    /// No port of the device has the address as a RoCEv2 GID.
    NoAddress {
        device: String,
        wanted: IpAddr,
        found: Vec<IpAddr>,
    },
    /// A field of [`Limits`](crate::Limits) is out of its range.
    Limits(&'static str),
    /// The device does not have so much.
    Device {
        what: &'static str,
        wanted: u32,
        has: u32,
    },
    /// A call of libibverbs failed.
    Call {
        call: &'static str,
        error: io::Error,
    },
    /// There are [`Limits::links_max`](crate::Limits::links_max) links.
    TooManyLinks,
    /// The link was destroyed, or is of another node.
    NoSuchLink,
    /// The link was connected already, or has failed.
    Connected,
    /// What is said to be an endpoint is none; the text says why.
    Endpoint(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Load { library, reason } => {
                write!(to, "cannot load {}: {reason}", library.display())
            }
            Error::Symbol {
                library,
                name,
                version,
            } => write!(
                to,
                "{} has no {name}@{version}; use rdma-core 32 or newer",
                library.display()
            ),
            Error::Choice(text) => write!(
                to,
                "{text:?} is no device; shm, roce, roce-udp, window:PATH and hw:NAME are"
            ),
            Error::Environment { variable, wanted } => write!(
                to,
                "the environment does not say {variable}={}, as it must before the library is loaded",
                wanted.display()
            ),
            Error::NoDevice { wanted, found } if found.is_empty() => {
                write!(to, "there is no RDMA device {wanted}, nor any other")
            }
            Error::NoDevice { wanted, found } => write!(
                to,
                "there is no RDMA device {wanted}; there is {}",
                found.join(", ")
            ),
            Error::NoAddress {
                device,
                wanted,
                found,
            } => {
                write!(to, "{device} does not have the address {wanted}; it has")?;
                for address in found {
                    write!(to, " {address}")?;
                }
                if found.is_empty() {
                    write!(to, " none")?;
                }
                Ok(())
            }
            Error::Limits(why) => write!(to, "limits of a node: {why}"),
            Error::Device { what, wanted, has } => write!(
                to,
                "the device has at most {has} {what}, and {wanted} were asked for: choose smaller \
                 limits"
            ),
            Error::Call { call, error } => write!(to, "{call}: {error}"),
            Error::TooManyLinks => write!(to, "the node has as many links as it may have"),
            Error::NoSuchLink => write!(to, "there is no such link"),
            Error::Connected => write!(to, "the link is not a new one"),
            Error::Endpoint(why) => write!(to, "this is no endpoint of a link: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Call { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Why a request was not taken. Nothing of it happened, and no event tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostError {
    /// Try again when [`poll`](crate::Node::poll) has told of some that are done.
    Full,
    /// The link is destroyed, failed, or not connected.
    NotConnected,
    /// Longer than [`MESSAGE_BYTES_MAX`](crate::MESSAGE_BYTES_MAX).
    TooLong,
    /// The library refused it with this errno; the link cannot be relied on any more.
    Refused(i32),
}

impl fmt::Display for PostError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PostError::Full => write!(to, "as many requests are outstanding as may be"),
            PostError::NotConnected => write!(to, "the link is not connected"),
            PostError::TooLong => write!(to, "the message is too long"),
            PostError::Refused(errno) => write!(
                to,
                "ibv_post_send: {}",
                io::Error::from_raw_os_error(*errno)
            ),
        }
    }
}

impl std::error::Error for PostError {}
