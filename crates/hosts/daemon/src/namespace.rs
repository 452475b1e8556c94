//! Whether two announced sockets are the ends of one connection, also in two network namespaces.
//!
//! An announcement is of a moment: its socket may have been closed since, without a word, and its
//! port may be somebody else's. So whenever an entry is used the kernel is asked whether the
//! socket with its cookie is the established one with its addresses ([`Prover::prove`]). Within a
//! namespace that is all: two such sockets with mirrored addresses get each other's segments.
//!
//! In two namespaces mirrored addresses prove nothing: two pairs of namespaces may use the same address plan, and
//! the true peer of either socket may be on another host. Byte counts do not say so either: two
//! instances of one workload count alike, and whoever shares a namespace with a connection can
//! read its counts and imitate them. A wrong answer would hand one connection's bytes to
//! another.
//!
//! What the two ends of a connection share, and nobody else knows, are its sequence numbers: 32
//! bits in each direction, random from the handshake on. `TCP_INFO` does not tell them, and
//! `TCP_REPAIR`, which does, makes concurrent writes of the program fail. A BPF program that is
//! run on demand ([`probe`]) reads them without touching the socket. It needs privileges
//! (`CAP_BPF`, `CAP_NET_ADMIN`, `CAP_SYS_ADMIN`), so this works for a sluiced of root; with any
//! other, connections across namespaces stay on TCP.
//!
//! The demand: at one instant, in at least one direction, nothing is in flight and the one end's
//! next sequence number to send equals the other's next to receive, while in the other direction
//! the numbers are consistent with what may be in flight. On one host the initial numbers of two
//! connections with equal addresses differ by the time between their handshakes in units of 64
//! ns, plus the difference of what they carried. To be taken for one another they would have to
//! be made within the same 64 ns, modulo 274 s, in both directions.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

use crate::matching::{Announced, Tuple};
use crate::socket::leaves_namespace;

mod homes;
mod place;
mod probe;

pub use homes::Homes;
pub use place::{Place, Presence};
pub use probe::namespace_of as of_socket;

use probe::{Probe, Sample};
use sluice_sys::sock_diag::Diag;

/// Most namespaces held open at a time.
pub const NAMESPACES_MAX: usize = 256;

/// In one direction the two ends' numbers may differ by what is in flight, which no buffer
/// lets grow beyond this many bytes.
const IN_FLIGHT_BYTES_MAX: u32 = 1 << 24;

/// What was found out about two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are the two ends of one connection.
    Same,
    /// They are not.
    Different,
    /// Bytes moved while we looked; another look may tell.
    NotNow,
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
    probe: Option<Probe>,
    /// To come back to, where this process may enter others.
    home: Option<Fd>,
    /// sluiced's own, by its cookie.
    own: Option<(u64, Namespace)>,
    known: HashMap<u64, Weak<Place>>,
    believes: bool,
}

impl Prover {
    /// Finds out what this process may do. `is_alone`: all programs are in its own namespace.
    /// `believes`: no other user is served, so that what cannot be looked at is as it was
    /// announced.
    pub fn new(is_alone: bool, believes: bool) -> Prover {
        let home = if is_alone { None } else { enterable() };
        let probe = home.is_some().then(Probe::load);
        let probe = match probe {
            Some(Ok(probe)) => Some(probe),
            Some(Err(error)) => {
                say_that_numbers_are_not_read(error);
                None
            }
            None => {
                if !is_alone {
                    say_that_numbers_are_not_read(Errno(libc::EPERM));
                }
                None
            }
        };
        let diag = Diag::open();
        if let Err(error) = &diag {
            if believes {
                tracing::debug!("sock_diag is not to be had: {error}");
            } else {
                tracing::error!(
                    reason = %error,
                    "no connection gets a lane, as announced sockets cannot be looked up by \
                     sock_diag: {error}"
                );
            }
        }
        let file = home
            .as_ref()
            .and_then(|home| sluice_sys::unix::duplicate(home.raw()).ok());
        let place = match diag {
            Ok(diag) => Some(Place::seen(file, diag)),
            Err(_) => believes.then(|| Place::unseen(file)),
        };
        let own = homes::own_cookie().zip(place.map(Rc::new));
        Prover {
            probe,
            home,
            own,
            known: HashMap::new(),
            believes,
        }
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
            Ok((file, diag)) => Place::seen(Some(file), diag),
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

    fn enter(&self, given: Option<Fd>) -> Result<(Fd, Diag), Errno> {
        let home = self.home.as_ref().ok_or(Errno(libc::EPERM))?;
        let file = given.ok_or(Errno(libc::EPERM))?;
        let diag = probe::inside(file.as_fd(), home.as_fd(), Diag::open)??;
        Ok((file, diag))
    }

    /// Whether `a` and `b`, of which neither has been closed and connected anew by a program that
    /// tells sluiced the truth about its own socket, are the ends of one connection.
    ///
    /// Each was established with its addresses when it was announced. If one is so still, it was
    /// at every instant in between; so there is an instant, within this call, when both were. A
    /// program that lies can only have connected its own socket anew, which the look at the other
    /// one in the middle does not let pass.
    pub fn prove(&self, a: Located<'_>, b: Located<'_>) -> Verdict {
        for (at, (announced, place)) in [(0, a), (1, b), (0, a)] {
            match place.presence(announced) {
                Presence::Here => {}
                Presence::Gone => return Verdict::Gone(at),
                Presence::Closing => return Verdict::Closing,
                Presence::Unknown => return Verdict::Unable,
            }
        }
        let ((first, here), (second, there)) = (a, b);
        if first.domain.netns == second.domain.netns {
            return self.confirm(first, here);
        }
        let verdict = self.compare(first.tuple, here, there);
        if verdict != Verdict::Same {
            return verdict;
        }
        // The numbers were found by addresses: those of these sockets, if they have been there
        // before and after.
        match (here.presence(first), there.presence(second)) {
            (Presence::Here, Presence::Here) => Verdict::Same,
            _ => Verdict::Different,
        }
    }

    /// Two established sockets with mirrored addresses, in one namespace, get each other's
    /// segments, as long as the addresses are the namespace's own. One that has moved to another
    /// host leaves sockets behind: their numbers are elsewhere.
    fn confirm(&self, first: &Announced, here: &Namespace) -> Verdict {
        let can_move = leaves_namespace(first.tuple.local) && first.domain.interface == 0;
        if !can_move || here.file.is_none() {
            return Verdict::Same;
        }
        match self.compare(first.tuple, here, here) {
            Verdict::Different => Verdict::Different,
            _ => Verdict::Same,
        }
    }

    /// Compares the connection named `tuple` in namespace `a` with the mirrored one in `b`.
    fn compare(&self, tuple: Tuple, a: &Place, b: &Place) -> Verdict {
        let (Some(probe), Some(home)) = (&self.probe, &self.home) else {
            return Verdict::Unable;
        };
        let (Some(a), Some(b)) = (a.file(), b.file()) else {
            return Verdict::Unable;
        };
        let mirrored = tuple.mirrored();
        let sample = |namespace, tuple| {
            probe::inside(namespace, home.as_fd(), || probe.sample(tuple)).flatten()
        };
        let samples = (|| {
            let before = sample(a, tuple)?;
            let there = sample(b, mirrored)?;
            let after = sample(a, tuple)?;
            Ok::<_, Errno>((before, there, after))
        })();
        match samples {
            Ok((Some(before), Some(there), Some(after))) => judge(before, there, after),
            // One of them is not connected any more.
            Ok(_) => Verdict::Different,
            Err(error) => {
                tracing::debug!("sequence numbers cannot be read: {error}");
                Verdict::Unable
            }
        }
    }
}

fn say_that_numbers_are_not_read(error: Errno) {
    tracing::info!(
        "connections across network namespaces stay on TCP, as sequence numbers \
         cannot be read: {error}; a sluiced of root can"
    );
}

/// The namespace of this process, if it may leave it and come back, which takes `CAP_SYS_ADMIN`.
fn enterable() -> Option<Fd> {
    let home: Fd =
        std::os::fd::OwnedFd::from(std::fs::File::open("/proc/self/ns/net").ok()?).into();
    probe::inside(home.as_fd(), home.as_fd(), || ()).ok()?;
    Some(home)
}

/// Compares one end, sampled twice, with the other, sampled in between.
fn judge(before: Sample, there: Sample, after: Sample) -> Verdict {
    // Of what the first end sends, the other has received no less than was acknowledged before
    // and no more than was sent after. Of what the other sends, the first end had received no
    // more before than was sent there, and no less after than was acknowledged there.
    let consistent = in_order(before.snd_una, there.rcv_nxt, after.snd_nxt)
        && in_order(before.rcv_nxt, there.snd_nxt, there.snd_nxt)
        && in_order(there.snd_una, after.rcv_nxt, after.rcv_nxt);
    if !consistent {
        return Verdict::Different;
    }
    let sent_still = before.snd_nxt == after.snd_nxt && there.rcv_nxt == after.snd_nxt;
    let received_still = before.rcv_nxt == after.rcv_nxt && there.snd_nxt == after.rcv_nxt;
    if sent_still || received_still {
        Verdict::Same
    } else {
        Verdict::NotNow
    }
}

/// Whether `low <= middle <= high` in sequence space, within what can be in flight.
fn in_order(low: u32, middle: u32, high: u32) -> bool {
    let span = high.wrapping_sub(low);
    span <= IN_FLIGHT_BYTES_MAX && middle.wrapping_sub(low) <= span
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An end that has received up to `rcv`, sent up to `snd` and has `una` acknowledged.
    fn sample(rcv: u32, una: u32, snd: u32) -> Sample {
        Sample {
            rcv_nxt: rcv,
            snd_nxt: snd,
            snd_una: una,
        }
    }

    #[test]
    fn a_quiet_connection_is_recognised_also_across_the_wrap() {
        for base in [0_u32, 5000, u32::MAX - 10, u32::MAX] {
            let here = sample(base, base.wrapping_add(700), base.wrapping_add(700));
            let there = sample(base.wrapping_add(700), base, base);
            assert_eq!(judge(here, there, here), Verdict::Same);
        }
    }

    #[test]
    fn one_byte_of_difference_in_a_quiet_direction_refutes() {
        let here = sample(100, 700, 700);
        assert_eq!(judge(here, sample(701, 100, 100), here), Verdict::Different);
        assert_eq!(judge(here, sample(699, 100, 100), here), Verdict::Different);
        assert_eq!(judge(here, sample(700, 101, 101), here), Verdict::Different);
        assert_eq!(judge(here, sample(700, 99, 99), here), Verdict::Different);
    }

    #[test]
    fn a_bulk_transfer_is_recognised_by_its_quiet_direction() {
        let (before, after) = (sample(50, 1000, 9000), sample(50, 4000, 12_000));
        assert_eq!(judge(before, sample(5000, 50, 50), after), Verdict::Same);
        // The quiet direction differs.
        assert_eq!(
            judge(before, sample(5000, 51, 51), after),
            Verdict::Different
        );
        // More received than sent, and less than acknowledged.
        assert_eq!(
            judge(before, sample(12_001, 50, 50), after),
            Verdict::Different
        );
        assert_eq!(
            judge(before, sample(999, 50, 50), after),
            Verdict::Different
        );
    }

    #[test]
    fn traffic_in_both_directions_needs_another_look() {
        let (before, after) = (sample(50, 1000, 9000), sample(90, 4000, 12_000));
        assert_eq!(judge(before, sample(5000, 60, 120), after), Verdict::NotNow);
    }
}
