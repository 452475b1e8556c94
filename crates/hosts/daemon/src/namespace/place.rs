//! A network namespace, and what the kernel says of an announced socket there now.

use std::os::fd::AsFd;
use std::rc::Rc;

use sluice_sys::errno::Errno;
use sluice_sys::tcp;
use sluice_sys::unix::Fd;

use super::numbers::Numbers;
use super::probe::{self, Probe};
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

/// What the kernel says of where a socket's streams begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// There.
    At(Numbers),
    /// It does not say, and the program is believed.
    Believed,
    /// No socket with these addresses is established.
    Nowhere,
    /// It does not say.
    Unknown,
}

/// Reads of the numbers of one socket. Two numbers of one stream are read one after the other, and a
/// segment that comes in between falsifies what they say together.
const READS_MAX: usize = 8;

/// A network namespace in which programs announced sockets.
#[derive(Debug)]
pub struct Place {
    /// `None` for the one that this thread is in.
    way: Option<Way>,
    diag: Option<Diag>,
    probe: Option<Rc<Probe>>,
    is_believed: bool,
}

/// How to go to a namespace and come back.
#[derive(Debug)]
pub(super) struct Way {
    pub there: Fd,
    pub home: Rc<Fd>,
}

impl Place {
    /// One in which sockets are looked up by `diag`, and their numbers read by `probe` if this sluiced
    /// can.
    pub(super) fn seen(
        way: Option<Way>,
        diag: Diag,
        probe: Option<Rc<Probe>>,
        is_believed: bool,
    ) -> Place {
        Place {
            way,
            diag: Some(diag),
            probe,
            is_believed,
        }
    }

    /// One in which sockets cannot be looked up, of programs that are believed: those of sluiced's own
    /// user, in a sluiced that serves no other. Numbers are read by `probe`, if this thread is in that
    /// namespace and can.
    pub(super) fn unseen(probe: Option<Rc<Probe>>) -> Place {
        Place {
            way: None,
            diag: None,
            probe,
            is_believed: true,
        }
    }

    /// Where the streams of the socket with this announcement's addresses begin, by one look.
    pub(super) fn origin(&self, announced: &Announced) -> Origin {
        let Some(probe) = &self.probe else {
            return if self.is_believed {
                Origin::Believed
            } else {
                Origin::Unknown
            };
        };
        let read = || probe.numbers(announced.tuple, announced.domain.interface);
        let read = match &self.way {
            Some(way) => probe::inside(way.there.as_fd(), way.home.as_fd(), read).flatten(),
            None => read(),
        };
        match read {
            Ok(Some(numbers)) => Origin::At(numbers),
            Ok(None) => Origin::Nowhere,
            Err(error) => {
                tracing::debug!("sequence numbers cannot be read: {error}");
                Origin::Unknown
            }
        }
    }

    /// The same, the numbers read until two looks in turn agree.
    pub fn settled_origin(&self, announced: &Announced) -> Origin {
        let mut last = self.origin(announced);
        for _ in 1..READS_MAX {
            let next = self.origin(announced);
            if next == last || !matches!(next, Origin::At(_)) {
                return next;
            }
            last = next;
        }
        Origin::Unknown
    }

    /// Whether the socket of this announcement is the established one with its addresses now, and
    /// its streams begin where they began, if that was read.
    pub fn has(&self, announced: &Announced, numbers: Option<Numbers>) -> bool {
        let is_same =
            |numbers| (0..READS_MAX).any(|_| self.origin(announced) == Origin::At(numbers));
        self.presence(announced) == Presence::Here && numbers.is_none_or(is_same)
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::matching::{Domain, EndKey, Tuple};

    fn announced(stream: &TcpStream) -> Announced {
        Announced {
            key: EndKey { client: 1, end: 1 },
            generation: 1,
            tuple: Tuple {
                local: stream.local_addr().expect("an address"),
                peer: stream.peer_addr().expect("an address"),
            },
            domain: Domain {
                netns: 1,
                interface: 0,
            },
            cookie: 1,
        }
    }

    #[test]
    fn without_sock_diag_numbers_are_read_if_they_can_be_and_the_socket_is_believed() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = listener.local_addr().expect("an address");
        let connected = TcpStream::connect(address).expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        let [one, other] = [&connected, &accepted].map(announced);
        let probe = Probe::load().map(Rc::new);
        let place = Place::unseen(probe.as_ref().ok().cloned());
        assert_eq!(place.presence(&one), Presence::Here);
        match (place.settled_origin(&one), place.settled_origin(&other)) {
            (Origin::At(ours), Origin::At(theirs)) => assert!(ours.agree(theirs)),
            both => {
                assert_eq!(both, (Origin::Believed, Origin::Believed));
                assert!(probe.is_err());
            }
        }
    }
}
