//! Whether two announced sockets are the ends of one connection, in one network namespace or in two.
//!
//! An announcement is of a moment: its socket may have been closed since, without a word, and its
//! port may be somebody else's. So whenever an entry is used the kernel is asked whether the
//! socket with its cookie is the established one with its addresses.
//!
//! That two such sockets have mirrored addresses proves nothing. In two namespaces there may be the
//! same address plan. In one, packets may be redirected, marked, routed or sent by a device on the
//! way, so that the other end of either is a third socket, or was one that has been removed without
//! a word. Byte counts prove nothing either: who shares a namespace with a connection can read its
//! counts and imitate them. A wrong answer would hand one connection's bytes to another.
//!
//! What the two ends of a connection share, and no other socket has, are the initial sequence
//! numbers of its two streams ([`Numbers`]), 32 bits each, which the kernel makes in the handshake.
//! They are what remains if one takes from a socket's sequence numbers what it has counted, so they
//! are the same at all times, while bytes are in flight as well. A BPF program that is run on demand
//! ([`probe`]) reads them without touching the socket, which takes `CAP_BPF` and `CAP_NET_ADMIN`, and
//! `CAP_SYS_ADMIN` for other namespaces than sluiced's own (decision 0005 and
//! `docs/decisions/0093-initial-sequence-numbers.md`).
//!
//! Without these, a sluiced of several users joins no ends. One that serves its own user alone
//! believes that two sockets of that user in one namespace, with mirrored addresses, are one
//! connection's.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

use crate::matching::Announced;

mod homes;
mod numbers;
mod place;
mod probe;

pub use homes::Homes;
pub use numbers::Numbers;
pub use place::{Origin, Place, Presence};
pub use probe::namespace_of as of_socket;

use place::Way;
use probe::Probe;
use sluice_sys::sock_diag::Diag;

/// Most namespaces held open at a time.
pub const NAMESPACES_MAX: usize = 256;

/// Looks at the numbers of two sockets that do not agree. A segment that comes during a look can make
/// it wrong.
const LOOKS_MAX: usize = 4;

/// What was found out about two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are the two ends of one connection.
    Same,
    /// They are not.
    Different,
    /// The first, or the second, is not the socket with its addresses any more.
    Gone(usize),
    /// One of them is being closed.
    Closing,
    /// This sluiced cannot tell.
    Unable,
}

/// A network namespace that stays while somebody holds this.
pub type Namespace = Rc<Place>;

/// An announcement, and the namespace of its socket.
pub type Located<'a> = (&'a Announced, &'a Namespace);

/// Tells whether two announced sockets are the ends of one connection.
#[derive(Debug)]
pub struct Prover {
    probe: Option<Rc<Probe>>,
    /// To come back to, where this process may enter others.
    home: Option<Rc<Fd>>,
    /// sluiced's own, by its cookie.
    own: Option<(u64, Namespace)>,
    known: HashMap<u64, Weak<Place>>,
    believes: bool,
    /// Why it joins no ends.
    incapable: Option<String>,
}

impl Prover {
    /// Finds out what this process may do. `is_alone`: all programs are in its own namespace.
    /// `believes`: no other user is served, so that what cannot be looked at is as it was
    /// announced.
    pub fn new(is_alone: bool, believes: bool) -> Prover {
        let mut incapable = None;
        let probe = Probe::load().map(Rc::new);
        if let Err(error) = &probe {
            if believes {
                tracing::info!(
                    "sequence numbers cannot be read: {error}; connections of this user are matched by \
                     their addresses, and those across network namespaces stay on TCP"
                );
            } else {
                incapable = Some(format!(
                    "TCP sequence numbers cannot be read: {error}; a sluiced that serves all users needs \
                     CAP_BPF and CAP_NET_ADMIN"
                ));
            }
        }
        let diag = Diag::open();
        if let Err(error) = &diag {
            if believes {
                tracing::info!(
                    "sockets cannot be looked up by sock_diag: {error}; programs of this user are believed \
                     (to have them looked up, load the kernel module tcp_diag)"
                );
            } else {
                incapable = Some(format!(
                    "sockets cannot be looked up by sock_diag: {error}; load the kernel module tcp_diag, and \
                     allow sluiced AF_NETLINK"
                ));
            }
        }
        if let Some(reason) = &incapable {
            tracing::error!(reason, "no connection gets a lane: {reason}");
        }
        let probe = probe.ok();
        let place = match diag {
            Ok(diag) => Some(Place::seen(None, diag, probe.clone(), believes)),
            Err(_) => believes.then(|| Place::unseen(probe.clone())),
        };
        let own = homes::own_cookie().zip(place.map(Rc::new));
        let home = if is_alone { None } else { enterable() };
        Prover {
            probe,
            home: home.map(Rc::new),
            own,
            known: HashMap::new(),
            believes,
            incapable,
        }
    }

    /// Why no ends are joined here, for people; `None` where they are.
    pub fn incapable(&self) -> Option<&str> {
        self.incapable.as_deref()
    }

    /// Whether `netns` is sluiced's own namespace.
    pub fn is_own(&self, netns: u64) -> bool {
        self.own.as_ref().is_some_and(|(own, _)| *own == netns)
    }

    /// Keeps the namespace whose cookie is `netns`: sluiced's own, or the one that is given. `None`
    /// if nothing can be found out there.
    pub fn keep(&mut self, netns: u64, given: Option<Fd>) -> Option<Namespace> {
        if let Some((own, place)) = &self.own
            && *own == netns
        {
            return Some(place.clone());
        }
        if let Some(namespace) = self.known.get(&netns).and_then(Weak::upgrade) {
            return Some(namespace);
        }
        if self.known.len() >= NAMESPACES_MAX {
            self.known.retain(|_, held| held.strong_count() > 0);
            if self.known.len() >= NAMESPACES_MAX {
                return None;
            }
        }
        let place = match self.enter(given) {
            Ok((way, diag)) => Place::seen(Some(way), diag, self.probe.clone(), self.believes),
            Err(_) if self.believes => Place::unseen(None),
            Err(error) => {
                tracing::debug!("a network namespace cannot be looked into: {error}");
                return None;
            }
        };
        let namespace = Rc::new(place);
        self.known.insert(netns, Rc::downgrade(&namespace));
        Some(namespace)
    }

    fn enter(&self, given: Option<Fd>) -> Result<(Way, Diag), Errno> {
        let home = self.home.as_ref().ok_or(Errno(libc::EPERM))?;
        let there = given.ok_or(Errno(libc::EPERM))?;
        let diag = probe::inside(there.as_fd(), home.as_fd(), Diag::open)??;
        let home = home.clone();
        Ok((Way { there, home }, diag))
    }
}

/// Whether `a` and `b`, of which one at least was announced by a program that tells sluiced the truth
/// about its own socket, are the ends of one connection.
///
/// Each was established with its addresses when it was announced. The look that finds it so still comes
/// before the look at the numbers. A program that lies can only have connected its own socket anew
/// meanwhile; then the numbers are of another handshake than the honest socket's, which is older than
/// that one's announcement.
pub fn prove(a: Located<'_>, b: Located<'_>) -> Verdict {
    for (at, (announced, place)) in [(0, a), (1, b)] {
        match place.presence(announced) {
            Presence::Here => {}
            Presence::Gone => return Verdict::Gone(at),
            Presence::Closing => return Verdict::Closing,
            Presence::Unknown => return Verdict::Unable,
        }
    }
    let ((first, here), (second, there)) = (a, b);
    for _ in 0..LOOKS_MAX {
        match (here.origin(first), there.origin(second)) {
            (Origin::At(one), Origin::At(other)) if one.agree(other) => return Verdict::Same,
            (Origin::At(_), Origin::At(_)) => {}
            (Origin::Believed, Origin::Believed) => return believe(a, b),
            // One of them is not connected any more.
            (Origin::Nowhere, _) | (_, Origin::Nowhere) => return Verdict::Different,
            _ => return Verdict::Unable,
        }
    }
    Verdict::Different
}

/// In one namespace, without privileges, for one user's sockets. Both are there at one instant: the
/// first one after the second, too.
fn believe((first, here): Located<'_>, (second, _): Located<'_>) -> Verdict {
    if first.domain.netns != second.domain.netns {
        return Verdict::Unable;
    }
    match here.presence(first) {
        Presence::Here => Verdict::Same,
        Presence::Gone => Verdict::Gone(0),
        Presence::Closing => Verdict::Closing,
        Presence::Unknown => Verdict::Unable,
    }
}

/// The namespace of this process, if it may leave it and come back, which takes `CAP_SYS_ADMIN`.
fn enterable() -> Option<Fd> {
    let home: Fd =
        std::os::fd::OwnedFd::from(std::fs::File::open("/proc/self/ns/net").ok()?).into();
    probe::inside(home.as_fd(), home.as_fd(), || ()).ok()?;
    Some(home)
}
