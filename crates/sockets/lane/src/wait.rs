//! Whether a connection is ready, as far as its lane decides, and how to sleep on it. The
//! kernel's own answer for the socket (end of stream, errors, TCP bytes) comes on top.
#![allow(unsafe_code)]

use crate::end::{End, Locked};
use crate::full::{full_budget_ns, stalled_ns};
use crate::lock::count;
use crate::reclaim::serve;
use sluice_shmem::direction::{Direction, Mode};
use sluice_shmem::handover::{Next, Sender};
use sluice_shmem::parking::ParkingTable;
use sluice_sys::errno::Errno;

mod asked;
mod naps;

pub use asked::Asked;
pub(crate) use naps::{Naps, SocketTimeout};

/// What a lane says of its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The ring has bytes that are next in the stream.
    pub readable: bool,
    /// Up to which position of the ring it has them; 0 unless `readable`.
    pub readable_to: u64,
    /// When the last write began of the bytes that are next in the stream, if there are some. Nanoseconds of
    /// the sender's clock, and its own word; 0 for unknown.
    pub written_ns: u64,
    /// Where the peer's process says when it last wrote to a connection without a lane, if there are bytes
    /// that are next in the stream.
    pub peer_parking: Option<ParkingTable>,
    /// The ring has room, or its writer has waited long enough for TCP. `None`: the kernel
    /// decides.
    pub writable: Option<bool>,
    /// The sender is about to publish something.
    pub in_flight: bool,
    /// That sender is sluiced, which grants the ring for as long as it is used.
    pub granted: bool,
    /// What the kernel has cannot be read now, because bytes that come before it may be on their
    /// way to the ring from another host; `in_flight` says until when.
    pub kernel_waits: bool,
    /// The kernel's bytes may be next in the stream.
    pub kernel_next: bool,
    /// The kernel may have something to report beside `readable` (end of stream, errors, urgent
    /// data): whoever causes that has left the ring or closed first. A peer that was killed has
    /// not; it is seen when the ring is empty.
    pub kernel_adds: bool,
    /// An error waits for the next call ([`postponed_error`]), which is `POLLERR`.
    pub error: bool,
}

/// Looks at the lane of a connection. `None` when it has none that is read by its rules: then
/// the kernel alone decides.
pub fn ready(end: &End, generation: u32, fd: i32) -> Option<Ready> {
    let into = end.incoming()?;
    let mut ready = Ready::default();
    match end.lock_rx(generation) {
        Locked::Held(mut rx) => {
            end.leave_rules_if_pinned(&mut rx);
            end.try_enable(fd, &mut rx);
            if !end.is_enabled() {
                return None;
            }
            if end.is_broken_by_peer() {
                return Some(broken());
            }
            end.recount(fd, &mut rx);
            end.pass_over(fd, &mut rx, &into);
            // Who asks is about to be told by the kernel, maybe once only, and reads then.
            rx.checked = 0;
            let look = rx.stream.look(&into, end.has_sender());
            ready.in_flight = look.in_flight && !rx.stream.is_promised();
            ready.granted = ready.in_flight && end.is_remote();
            if ready.in_flight {
                end.check_sender(fd);
            }
            match look.next {
                Ok(Next::Tcp | Next::Owed(_)) => ready.kernel_next = true,
                Ok(Next::Empty) => {}
                Ok(Next::Ring(_)) => {
                    ready.readable = true;
                    ready.readable_to = rx.stream.consumer().published();
                    // Another host's clock says nothing here.
                    ready.written_ns = if end.is_direct() {
                        0
                    } else {
                        into.ring_began_ns()
                    };
                }
                // The read reports it.
                Err(_) => ready.readable = true,
            }
            // Here, too: nothing that comes can be read.
            ready.readable |= end.has_gap();
            ready.kernel_waits = ready.granted && !rx.stream.has_assured(&into);
            ready.kernel_next &= !ready.kernel_waits;
            if ready.kernel_next {
                ready.written_ns = tcp_began_ns(end);
            }
            if ready.readable || ready.kernel_next {
                ready.peer_parking = end.peer_parking();
            }
            ready.kernel_adds = into.mode() == Mode::Tcp || end.is_end_near();
        }
        Locked::Gone | Locked::Reentered => return None,
    }
    // A sender on TCP that nobody asks for bytes back leaves it to the kernel. Should one have died
    // in a write, its lock tells.
    if let Some(out) = end.outgoing()
        && (out.mode() == Mode::Ring || Sender::is_asked_back(&out) || out.is_write_in_flight())
        && let Locked::Held(mut tx) = end.lock_tx(generation)
        && !serve(end, fd, &mut tx, &out)
        && tx.stream.is_on_ring()
        && !end.is_tx_pinned()
    {
        let full_since = tx.full_since_ns;
        let quarter = out.capacity() as usize / 4;
        ready.writable = Some(match tx.stream.producer().room(&out, quarter) {
            Err(_) => true,
            Ok(1..) if full_since == 0 => true,
            // A full ring's time runs from here, if no write has found it full.
            Ok(room) => room >= quarter || stalled_ns(&mut tx, &out) >= full_budget_ns(),
        });
    }
    ready.error = postponed_error(end, generation, false).is_some();
    Some(ready)
}

/// Reads and writes fail, and the kernel says that the connection was reset. That is news to who is told of news alone,
/// once: the kernel may have said it before the lane was found to be broken.
fn broken() -> Ready {
    Ready {
        readable: true,
        readable_to: u64::MAX,
        writable: Some(true),
        kernel_adds: true,
        ..Ready::default()
    }
}

/// When the peer last began to write to the socket, its own word; 0 for unknown. Before it knew of the
/// lane it has said so in its parking table only, for all such connections.
pub fn tcp_began_ns(end: &End) -> u64 {
    if end.is_direct() {
        return 0;
    }
    match end.incoming().map_or(0, |into| into.tcp_began_ns()) {
        0 if end.is_remote() => 0,
        0 => end
            .peer_parking()
            .map_or(0, |parking| parking.tcp_began_ns()),
        began => began,
    }
}

/// Asked before a program is told that the kernel has bytes: whether a read that follows gets them.
/// Behind a grant of the ring the kernel's bytes would have to wait, and a program that was told and
/// finds nothing may take that for an error of the connection. So `true` is a promise: a sleep is
/// announced, which keeps sluiced from granting the ring until the program reads.
pub fn assure(end: &End, generation: u32) -> bool {
    if !end.is_remote() {
        return true;
    }
    let Some(into) = end.incoming() else {
        return true;
    };
    let Locked::Held(mut rx) = end.lock_rx(generation) else {
        return true;
    };
    if !end.is_enabled() || rx.stream.is_uncounted() {
        return true;
    }
    rx.stream.promise(&into, end.has_sender())
        || !matches!(rx.stream.consumer().available(&into), Ok(0))
}

/// Asked when the kernel has just said that it has bytes, and nothing else: whether that is all there is
/// to say of a connection to another host, whose stream is on TCP both ways. `true` is the promise of
/// [`assure`]; otherwise [`ready`] knows.
pub fn assure_kernel_alone(end: &End, generation: u32) -> bool {
    if !end.reads_by_rules_alone() || !end.is_remote() {
        return false;
    }
    let Locked::Held(mut rx) = end.lock_rx(generation) else {
        return false;
    };
    if !end.reads_by_rules_alone() {
        return false;
    }
    let (Some(into), Some(out)) = (end.incoming(), end.outgoing()) else {
        return false;
    };
    if into.mode() == Mode::Ring || out.mode() == Mode::Ring || Sender::is_asked_back(&out) {
        return false;
    }
    rx.checked = 0;
    rx.stream.promise_all(&into, end.has_sender())
}

/// The error that a call found behind the bytes it returned. The kernel no longer has it, since
/// that call was told; a call of the kernel's own would have stopped at the bytes. `take`: as
/// `SO_ERROR` does, so that nobody else is told.
pub fn postponed_error(end: &End, generation: u32, take: bool) -> Option<Errno> {
    // Whoever postpones an error has said that the peer is done.
    if !end.is_tx_pinned() {
        return None;
    }
    // Both locks, which reads and writes hold when they take it: none looks in between. In the
    // order of `End::lock_tx`.
    let Locked::Held(_rx) = end.lock_rx(generation) else {
        return None;
    };
    let Locked::Held(_tx) = end.lock_tx(generation) else {
        return None;
    };
    let errno = end.take_postponed()?;
    if !take {
        end.postpone(errno);
    }
    Some(errno)
}

/// An announced sleep on one connection; withdraw it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Announced {
    into: Option<Direction>,
    generation: u32,
}

/// Why a thread must not sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The ring has bytes, or is about to have.
    Awake,
    /// It is in a signal handler, on top of a call that has the connection in hand and goes on only behind it.
    Reentered,
}

/// Announces that a thread is about to sleep in the kernel until the socket is readable, by
/// poll or select.
pub fn announce(end: &End, generation: u32) -> Result<Announced, Refused> {
    let mut rx = match end.lock_rx(generation) {
        Locked::Held(rx) => rx,
        Locked::Reentered => return Err(Refused::Reentered),
        Locked::Gone => {
            return Ok(Announced {
                into: None,
                generation: generation.wrapping_sub(1),
            });
        }
    };
    count(&end.rx.in_kernel, 1);
    let into = end.incoming().filter(|_| end.is_enabled());
    if let Some(into) = into
        && !rx.stream.announce_wait(&into, end.has_sender())
    {
        count(&end.rx.in_kernel, -1);
        return Err(Refused::Awake);
    }
    end.events.slept();
    Ok(Announced { into, generation })
}

/// Takes an announcement back.
pub fn withdraw(end: &End, announced: Announced) {
    if let Locked::Held(rx) = end.lock_rx(announced.generation) {
        count(&end.rx.in_kernel, -1);
        if let Some(into) = announced.into {
            rx.stream.withdraw(&into);
        }
    }
}
