//! `MSG_PEEK`: a look at the next bytes, across the borders of segments.
//!
//! A program that waits for a header peeks until it sees all of it, so a look must not end where
//! TCP bytes end and ring bytes begin.
#![allow(unsafe_code)]

use super::{Reader, Step};
use crate::end::Rx;
use crate::kernel::kernel_events;
use crate::lock::Guard;
use crate::{Piece, for_pieces};
use sluice_shmem::Broken;
use sluice_shmem::direction::{Direction, Mode};
use sluice_sys::errno::Errno;

impl<'a> Reader<'a, '_> {
    /// Looks at the bytes before the switch offset, then at those in the ring, then at those behind it,
    /// as far as they have come. For a stream whose next bytes are not an unbounded read's.
    pub(super) fn peek(&mut self, mut rx: Guard<'a, Rx>, into: &Direction, owed: u64) -> Step {
        let has_ended = self.wants_all() && self.has_ended();
        let mut seen = 0;
        if owed > 0 {
            match self.peek_kernel(0, usize::try_from(owed).unwrap_or(usize::MAX)) {
                Ok(bytes) => seen = bytes,
                Err(Errno::AGAIN) if !self.request.dontwait => {
                    drop(rx);
                    return self.wait_in_kernel();
                }
                Err(errno) => return Step::Done(Err(errno)),
            }
        }
        if seen as u64 == owed {
            match self.peek_ring(&mut rx, into, seen) {
                Ok(more) => seen = more,
                Err(broken) => return Step::Done(Err(self.end.break_lane(self.fd, broken))),
            }
        }
        if seen == self.total || has_ended || !self.wants_all() {
            return Step::Done(Ok(seen));
        }
        Step::Nothing
    }

    /// Whether this look is to wait until it sees all that was asked for.
    pub(super) fn wants_all(&self) -> bool {
        self.request.peek && self.request.waitall && !self.request.dontwait
    }

    /// Whether waiting for more is in vain. To be asked before the look that it ends.
    fn has_ended(&self) -> bool {
        self.stopped.is_some() || kernel_events(self.fd, libc::POLLRDHUP) != 0
    }

    /// Looks at ring bytes, `seen` bytes into the buffers, and at TCP bytes behind the ring's
    /// end. How many bytes the buffers have then.
    fn peek_ring(&mut self, rx: &mut Rx, into: &Direction, seen: usize) -> Result<usize, Broken> {
        // The mode first: what it says comes behind all that was published before.
        let mode = into.mode();
        let available = rx.stream.consumer().available(into)?;
        let count = available.min(self.total - seen);
        let mut copied = 0;
        for_pieces(self.request.parts, seen, count, |address, len| {
            // SAFETY: the program gave these buffers to be written (recv(2)), and no more than
            // `available` bytes are looked at.
            unsafe { rx.stream.consumer().load(into, copied, address, len) };
            copied += len;
        });
        let seen = seen + count;
        // Owed bytes are still in the kernel's way to those behind the ring. While the ring is
        // not empty, the sender does not return to it.
        if mode == Mode::Ring || seen > count || available == 0 || seen == self.total {
            return Ok(seen);
        }
        Ok(seen
            + self.peek_kernel(seen, usize::MAX).unwrap_or_else(|errno| {
                // The kernel tells it once, to a look as well.
                self.end.keep_error(errno);
                0
            }))
    }

    fn peek_kernel(&mut self, skip: usize, limit: usize) -> Result<usize, Errno> {
        (self.kernel)(Piece {
            skip,
            limit: limit.min(self.total - skip),
            dontwait: true,
        })
    }

    /// Passes a moment of a wait that cannot be the kernel's, because the ring is not empty. A
    /// signal or the socket's timeout ends the call with the bytes that it sees.
    pub(super) fn wait_for_more(&mut self) {
        self.stopped = self.naps.nap(true).err();
    }
}
