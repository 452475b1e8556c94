//! Whether two sockets in two network namespaces are the ends of one connection.
//!
//! Mirrored addresses do not say so: two pairs of namespaces may use the same address plan, and
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
use std::os::fd::{AsFd, RawFd};
use std::rc::{Rc, Weak};

use sluice_sys::errno::Errno;
use sluice_sys::unix::Fd;

use crate::matching::Tuple;

mod homes;
mod probe;

pub use homes::Homes;

use probe::{Probe, Sample};

/// Most namespaces held open at a time.
const NAMESPACES_MAX: usize = 256;

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
    /// This sluiced cannot tell.
    Unable,
}

/// A network namespace that stays while somebody holds this.
pub type Namespace = Rc<Fd>;

/// Compares sockets in different namespaces.
#[derive(Debug)]
pub struct Prover {
    probe: Option<Probe>,
    known: HashMap<u64, Weak<Fd>>,
}

impl Prover {
    /// Finds out what this process may do.
    pub fn new() -> Prover {
        let probe = match Probe::load() {
            Ok(probe) => Some(probe),
            Err(error) => {
                tracing::info!(
                    "connections across network namespaces stay on TCP, as sequence numbers \
                     cannot be read: {error}; a sluiced of root can"
                );
                None
            }
        };
        Prover {
            probe,
            ..Prover::none()
        }
    }

    /// Compares none.
    pub fn none() -> Prover {
        Prover {
            probe: None,
            known: HashMap::new(),
        }
    }

    /// The namespace of a socket, whose cookie is `netns`; `None` if it cannot be had.
    pub fn namespace_of(&mut self, socket: RawFd, netns: u64) -> Option<Namespace> {
        self.probe.as_ref()?;
        if let Some(namespace) = self.known.get(&netns).and_then(Weak::upgrade) {
            return Some(namespace);
        }
        if self.known.len() >= NAMESPACES_MAX {
            self.known.retain(|_, held| held.strong_count() > 0);
            if self.known.len() >= NAMESPACES_MAX {
                return None;
            }
        }
        let namespace = Rc::new(probe::namespace_of(socket).ok()?);
        self.known.insert(netns, Rc::downgrade(&namespace));
        Some(namespace)
    }

    /// Compares the connection named `tuple` in namespace `a` with the mirrored one in `b`.
    pub fn compare(&self, tuple: Tuple, a: &Namespace, b: &Namespace) -> Verdict {
        let Some(probe) = &self.probe else {
            return Verdict::Unable;
        };
        let mirrored = tuple.mirrored();
        let samples = (|| {
            let before = probe.sample(a.as_fd(), tuple)?;
            let there = probe.sample(b.as_fd(), mirrored)?;
            let after = probe.sample(a.as_fd(), tuple)?;
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
