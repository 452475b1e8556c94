//! A network namespace, and whether an announced socket is there now.

use std::os::fd::{AsFd, BorrowedFd};

use sluice_sys::errno::Errno;
use sluice_sys::tcp;
use sluice_sys::unix::Fd;

use crate::matching::Announced;
use sluice_sys::sock_diag::{Diag, Ends};

/// What has become of the socket of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is the established socket with its addresses.
    Here,
    /// It is the socket with its addresses, and not established any more.
    Closing,
    /// It is not the socket with its addresses, and never will be again unless its own program
    /// connects it anew.
    Gone,
    /// The kernel does not say.
    Unknown,
}

/// A network namespace in which programs announced sockets.
#[derive(Debug)]
pub struct Place {
    /// `None` where it cannot be held.
    pub(super) file: Option<Fd>,
    diag: Option<Diag>,
    is_believed: bool,
}

impl Place {
    /// One in which sockets are looked up by `diag`.
    pub(super) fn seen(file: Option<Fd>, diag: Diag) -> Place {
        Place {
            file,
            diag: Some(diag),
            is_believed: false,
        }
    }

    /// One that cannot be looked into, of programs that are believed: those of sluiced's own user,
    /// in a sluiced that serves no other.
    pub(super) fn unseen(file: Option<Fd>) -> Place {
        Place {
            file,
            diag: None,
            is_believed: true,
        }
    }

    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Whether the socket of this announcement is the established one with its addresses now.
    pub fn presence(&self, announced: &Announced) -> Presence {
        let Some(diag) = &self.diag else {
            return if self.is_believed {
                Presence::Here
            } else {
                Presence::Unknown
            };
        };
        let interface = announced.domain.interface;
        let ends = Ends {
            local: announced.tuple.local,
            peer: announced.tuple.peer,
        };
        match diag.state(ends, interface, announced.cookie) {
            Ok(Some(tcp::STATE_ESTABLISHED)) => Presence::Here,
            Ok(Some(_)) => Presence::Closing,
            Ok(None) => Presence::Gone,
            Err(error) => {
                report(error);
                Presence::Unknown
            }
        }
    }
}

fn report(error: Errno) {
    tracing::warn!(reason = %error, "sock_diag does not answer, a connection stays on TCP: {error}");
}
