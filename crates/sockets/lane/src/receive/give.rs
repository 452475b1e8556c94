//! Bytes for a call that wants them somewhere else than in memory of the program (splice(2)).
//!
//! The ring's bytes are shown to who takes them, and count as read as far as they were taken: where
//! they go may be full, or have nobody left to read.
#![allow(unsafe_code)]

use super::bytes_before_write;
use crate::end::{End, Locked, Rx};
use crate::kernel::kernel_events;
use crate::lock::count_bytes;
use crate::spin::note_by_ring;
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::Next;
use sluice_sys::errno::Errno;
use sluice_sys::tcp;

/// Bytes that are shown at a time.
const PIECE_BYTES: usize = 4096;

/// Who takes the bytes. Neither may wait for long: readers of the connection wait for the lock
/// meanwhile.
pub trait Taker {
    /// Takes bytes of the ring, as many as it can; 0 for none now.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
    /// Takes bytes from the socket, at most `limit`, of which some are there.
    fn take_from_kernel(&mut self, limit: usize) -> Result<usize, Errno>;
}

/// What there was to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// This many bytes were taken; 0: the taker had no room.
    Bytes(usize),
    /// Nothing is the lane's: the kernel goes on.
    Kernel,
    /// Bytes are owed by TCP that have not arrived.
    Owed,
    /// The sender is about to publish.
    InFlight,
}

/// Gives at most `max` bytes of the stream that must not be left to the kernel alone: those in the
/// ring, and those by TCP that come before. It is for an end whose receiving half is pinned, and does not wait.
pub fn give(
    end: &End,
    generation: u32,
    fd: i32,
    max: usize,
    taker: &mut dyn Taker,
) -> Result<Given, Errno> {
    let Locked::Held(mut rx) = end.lock_rx(generation) else {
        return Ok(Given::Kernel);
    };
    end.leave_rules_if_pinned(&mut rx);
    let Some(into) = end.incoming().filter(|_| end.is_enabled()) else {
        return Ok(Given::Kernel);
    };
    if end.is_broken() {
        return Err(Errno(libc::ECONNRESET));
    }
    end.recount(fd, &mut rx);
    let note_lock = match end.lock_note(fd, &mut rx, &into) {
        Err(Errno::AGAIN) => return Ok(Given::InFlight),
        lock => lock?,
    };
    if rx.stream.is_uncounted() {
        return Ok(Given::InFlight);
    }
    let look = rx.stream.look(&into, end.has_sender());
    let next = look.next.map_err(|broken| end.break_lane(fd, broken))?;
    if let Next::Ring(available) = next {
        return give_ring(end, fd, &mut rx, &into, available.min(max), taker);
    }
    let unread = tcp::unread_bytes(fd).unwrap_or(0);
    let owed = match next {
        Next::Owed(_) if unread == 0 => {
            // Who has ended, or was reset, owes nothing any more.
            let has_ended = kernel_events(fd, libc::POLLIN | libc::POLLRDHUP) != 0;
            return Ok(if has_ended {
                Given::Kernel
            } else {
                Given::Owed
            });
        }
        Next::Owed(owed) => owed,
        _ if look.in_flight => bytes_before_write(end, fd, &mut rx, &into),
        _ => return Ok(Given::Kernel),
    };
    if owed == 0 || unread == 0 {
        drop((note_lock, rx));
        end.check_sender_or_carrier(fd);
        return if end.is_broken() {
            Err(Errno(libc::ECONNRESET))
        } else {
            Ok(Given::InFlight)
        };
    }
    let limit = usize::try_from(owed).map_or(max, |owed| owed.min(max));
    let read = || taker.take_from_kernel(limit);
    let bytes = rx.stream.count_read(&into, read)?;
    count_bytes(&end.bytes.tcp_rx, bytes);
    Ok(Given::Bytes(bytes))
}

/// Gives `wanted` bytes of the ring, which has so many.
fn give_ring(
    end: &End,
    fd: i32,
    rx: &mut Rx,
    into: &Direction,
    wanted: usize,
    taker: &mut dyn Taker,
) -> Result<Given, Errno> {
    let mut given = 0;
    let mut piece = [0_u8; PIECE_BYTES];
    while given < wanted {
        let len = (wanted - given).min(PIECE_BYTES);
        // SAFETY: the piece has that many bytes, and no more than `available` are looked at, as all
        // that were taken before were consumed.
        unsafe { rx.stream.consumer().load(into, 0, piece.as_mut_ptr(), len) };
        let taken = match taker.take(&piece[..len]) {
            Ok(taken) => taken.min(len),
            Err(errno) if given == 0 => return Err(errno),
            Err(_) => break,
        };
        rx.stream.consumer().consume(into, taken);
        given += taken;
        if taken < len {
            break;
        }
    }
    if given > 0 {
        end.note_taken(fd, rx, into);
        count_bytes(&end.bytes.ring_rx, given);
        note_by_ring();
    }
    Ok(Given::Bytes(given))
}
