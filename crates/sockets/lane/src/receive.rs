//! Reading: ring bytes and TCP bytes in the order in which the peer wrote them.
//!
//! Bytes come from TCP up to the published switch offset, then from the ring until it is empty, then,
//! if the sender left the ring, from TCP again. An *unbounded* read of TCP, one that no switch offset bounds,
//! is announced like a sleep: while it lasts the sender cannot return to the ring, so
//! whatever the kernel delivers belongs before any later ring byte.
#![allow(unsafe_code)]

mod give;
mod peek;

pub use give::{Given, Taker, give};

use crate::clock::{now_ns, ticks};
use crate::end::{End, Locked, Rx};
use crate::kernel::{is_final, kernel_events};
use crate::lock::{Guard, count, count_bytes};
use crate::reclaim;
use crate::spin::{Spinner, note_by_ring, note_taken, yield_processor};
use crate::wait::{Naps, SocketTimeout};
use crate::{Parts, Piece, for_pieces, parts_bytes};
use sluice_shmem::direction::{Direction, Mode};
use sluice_shmem::handover::Next;
use sluice_sys::errno::Errno;
use sluice_sys::socket_note::NoteLock;
use sluice_sys::tcp;
use sluice_waiting::limits::LIMITS;

/// How often an idle ring's reader asks the kernel for the end of the stream: 12 to 60 µs.
const END_CHECK_TICKS: u64 = 60_000;

/// One read call of the program.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where the bytes go.
    pub parts: Parts<'a>,
    /// `MSG_PEEK`.
    pub peek: bool,
    /// `MSG_WAITALL`.
    pub waitall: bool,
    /// `MSG_DONTWAIT`, or the description is nonblocking.
    pub dontwait: bool,
}

/// The kernel's part of a read: the program's own call, on a piece of its buffers.
///
/// A piece of no bytes, in a call that wants some: waits as the call would until there is
/// something to read, bytes or the end of the stream, and takes nothing.
pub type KernelRead<'a> = &'a mut dyn FnMut(Piece) -> Result<usize, Errno>;

/// What one look at the lane led to.
enum Step {
    /// The call is over.
    Done(Result<usize, Errno>),
    /// Look again at once.
    Again,
    /// Nothing there; wait, or give up if the call does not block.
    Nothing,
}

/// Reads as `recv` does: returns the number of bytes, 0 at the end of the stream.
///
/// Blocks like the socket would; the blocking itself is the kernel's.
pub fn receive(
    end: &End,
    generation: u32,
    fd: i32,
    request: &Request,
    kernel: KernelRead,
) -> Result<usize, Errno> {
    let total = parts_bytes(request.parts);
    let is_plain = !request.dontwait && !request.peek && !request.waitall && total > 0;
    let mut reader = Reader {
        end,
        generation,
        fd,
        request,
        total,
        done: 0,
        naps: Naps::new(fd, SocketTimeout::Receive),
        held_awake: 0,
        stopped: None,
        note_lock: None,
        sleeps_first: is_plain && end.gaps.are_long(),
        kernel,
    };
    let mut spinner: Option<Spinner> = None;
    loop {
        let step = reader.look();
        reader.note_lock = None;
        match step {
            Step::Done(result) => {
                if let Some(spinner) = spinner {
                    end.gaps.record(spinner.gap_ns());
                    end.events.spun();
                }
                return result;
            }
            Step::Again => continue,
            Step::Nothing => reclaim::look(end, generation, fd),
        }
        if request.dontwait || reader.has_enough() {
            return reader.finish(Err(Errno::AGAIN));
        }
        let spinner = spinner.get_or_insert_with(|| Spinner::start(end.gaps.budget_ns()));
        if spinner.polls() && spinner.step() {
            reader.sleeps_first = false;
            continue;
        }
        if let Step::Done(result) = reader.sleep(spinner) {
            return result;
        }
    }
}

struct Reader<'a, 'k> {
    end: &'a End,
    generation: u32,
    fd: i32,
    request: &'a Request<'a>,
    total: usize,
    done: usize,
    naps: Naps,
    /// Looks while sluiced kept this end from sleeping.
    held_awake: u32,
    /// The call's time is over, or a signal came: it ends with what the next look finds.
    stopped: Option<Errno>,
    /// While others have copies of the ring's bytes.
    note_lock: Option<NoteLock>,
    /// The call is about to sleep in the kernel where the ring has nothing. What the kernel has it gets there, so it is
    /// not asked before: that is a second system call, and where all sleep the only thing that a lane would cost.
    sleeps_first: bool,
    kernel: KernelRead<'k>,
}

impl<'a> Reader<'a, '_> {
    /// The call's result, when `last` is how its last piece ended.
    fn finish(&self, last: Result<usize, Errno>) -> Result<usize, Errno> {
        // A thread that slept in the kernel meanwhile is told something else there.
        let last = match last {
            Ok(0) | Err(_) if self.end.is_broken_by_peer() => Err(Errno(libc::ECONNRESET)),
            last => last,
        };
        match last {
            Ok(bytes) => Ok(self.done + bytes),
            Err(errno) if self.done > 0 => {
                self.end.keep_error(errno);
                Ok(self.done)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The connection was closed under the call: the descriptor's new owner answers.
    fn bypass(&mut self) -> Result<usize, Errno> {
        if self.done > 0 {
            return Ok(self.done);
        }
        let piece = self.rest(false);
        (self.kernel)(piece)
    }

    fn rest(&self, dontwait: bool) -> Piece {
        Piece {
            skip: self.done,
            limit: self.total - self.done,
            dontwait,
        }
    }

    /// Takes what is there without blocking; a connection that is wholly the kernel's may
    /// block there.
    fn look(&mut self) -> Step {
        let end = self.end;
        let mut rx = match end.lock_rx(self.generation) {
            Locked::Held(rx) => rx,
            Locked::Gone => return Step::Done(self.bypass()),
            Locked::Reentered => return Step::Done(Err(self.reentered())),
        };
        end.leave_rules_if_pinned(&mut rx);
        if !end.is_enabled() {
            end.try_enable(self.fd, &mut rx);
        }
        let Some(into) = end.incoming().filter(|_| end.is_enabled()) else {
            let piece = self.rest(self.has_enough());
            let result = self.read_kernel(rx, None, piece);
            return Step::Done(self.finish(result));
        };
        if end.is_broken() {
            return Step::Done(self.finish(Err(Errno(libc::ECONNRESET))));
        }
        end.recount(self.fd, &mut rx);
        self.note_lock = match end.lock_note(self.fd, &mut rx, &into) {
            Ok(lock) => lock,
            Err(Errno::AGAIN) => return Step::Nothing,
            Err(errno) => return Step::Done(self.finish(Err(errno))),
        };
        if rx.stream.is_uncounted() {
            // Bytes arrive too fast to be counted; nothing may be read by a wrong count.
            return Step::Nothing;
        }
        match rx.stream.next(&into) {
            Err(broken) => Step::Done(self.finish(Err(end.break_lane(self.fd, broken)))),
            Ok(Next::Owed(owed)) if self.request.peek => self.peek(rx, &into, owed),
            Ok(Next::Owed(owed)) => self.read_to_switch(rx, &into, owed),
            Ok(Next::Ring(_)) if self.request.peek => self.peek(rx, &into, 0),
            Ok(Next::Ring(available)) => self.read_ring(rx, &into, available),
            Ok(Next::Tcp | Next::Empty) if self.sleeps_first && self.done == 0 => Step::Nothing,
            Ok(Next::Tcp) => self.read_free(rx, &into),
            Ok(Next::Empty) if end.is_end_near() || self.is_end_check_due(&mut rx) => {
                self.read_free(rx, &into)
            }
            Ok(Next::Empty) => Step::Nothing,
        }
    }

    fn reentered(&self) -> Errno {
        if self.request.dontwait {
            Errno::AGAIN
        } else {
            Errno::INTR
        }
    }

    /// Whether the kernel has something to say about a stream that is on the ring.
    fn is_end_check_due(&self, rx: &mut Rx) -> bool {
        let now = ticks();
        // Should the counter have jumped, it is due.
        if now.wrapping_sub(rx.checked) < END_CHECK_TICKS {
            return false;
        }
        if self.request.dontwait && rx.checked != 0 {
            // A program that asks again and again without poll or epoll between would keep a
            // peer on the same core from running.
            yield_processor();
        }
        rx.checked = now;
        kernel_events(self.fd, libc::POLLIN | libc::POLLRDHUP) != 0
    }

    fn read_ring(&mut self, mut rx: Guard<'a, Rx>, into: &Direction, available: usize) -> Step {
        let taken = available.min(self.total - self.done);
        let mut copied = 0;
        for_pieces(self.request.parts, self.done, taken, |address, len| {
            // SAFETY: the program gave these buffers to be written (recv(2)), and no more than
            // `available` bytes are taken.
            unsafe { rx.stream.consumer().load(into, copied, address, len) };
            copied += len;
        });
        rx.stream.consumer().consume(into, taken);
        self.end.note_taken(self.fd, &mut rx, into);
        count_bytes(&self.end.bytes.ring_rx, taken);
        note_by_ring();
        self.done += taken;
        // Behind the ring's last byte there may be bytes in the kernel.
        self.more(into.mode() == Mode::Tcp)
    }

    /// After a piece: whether the call wants more. `is_boundary`: the next bytes of the stream
    /// would come the other way. A short read tells a program that it has read everything
    /// (epoll(7), question 9; with `EPOLLRDHUP` even that the stream is over), so a call goes
    /// on there.
    fn more(&self, is_boundary: bool) -> Step {
        if self.done == self.total || !(self.request.waitall || is_boundary) {
            Step::Done(Ok(self.done))
        } else {
            Step::Again
        }
    }

    /// Whether the call may return with what it has.
    fn has_enough(&self) -> bool {
        self.done > 0 && !self.request.waitall
    }

    /// Reads TCP bytes that precede the ring segment. They were written before the switch offset was
    /// published, so they are queued or about to be.
    fn read_to_switch(&mut self, mut rx: Guard<'a, Rx>, into: &Direction, owed: u64) -> Step {
        let limit = usize::try_from(owed).unwrap_or(usize::MAX);
        let piece = Piece {
            skip: self.done,
            limit: limit.min(self.total - self.done),
            dontwait: true,
        };
        // Under the lock: a second reader would otherwise read beyond the switch offset.
        match rx.stream.count_read(into, || (self.kernel)(piece)) {
            Ok(0) if piece.limit > 0 => Step::Done(self.finish(Ok(0))),
            Ok(bytes) => {
                count_bytes(&self.end.bytes.tcp_rx, bytes);
                self.done += bytes;
                self.more(bytes as u64 == owed)
            }
            Err(Errno::AGAIN) if !self.request.dontwait && !self.has_enough() => {
                drop(rx);
                self.wait_in_kernel()
            }
            Err(errno) => Step::Done(self.finish(Err(errno))),
        }
    }

    /// Blocks in the program's own call until the kernel has something, and leaves it there:
    /// which bytes this call may take is decided anew, under the lock. Timeouts, signals and
    /// cancellation are the kernel's business so.
    fn wait_in_kernel(&mut self) -> Step {
        self.note_lock = None;
        let nothing = Piece {
            skip: self.done,
            limit: 0,
            dontwait: false,
        };
        match (self.kernel)(nothing) {
            Ok(_) => Step::Again,
            Err(errno) => {
                if is_final(errno) {
                    self.end.set_peer_done();
                }
                Step::Done(self.finish(Err(errno)))
            }
        }
    }

    /// Reads from TCP without a bound and without blocking.
    fn read_free(&mut self, mut rx: Guard<'a, Rx>, into: &Direction) -> Step {
        let has_sender = self.end.has_sender();
        let was_told = rx.stream.is_promised() && self.request.dontwait && !self.request.peek;
        if was_told && rx.stream.may_read_free(into, has_sender) {
            // What was announced then is this read's, and there to be withdrawn.
            rx.stream.keep_promise();
            return self.read_announced(rx, into);
        }
        if !rx.stream.announce(into, has_sender) {
            if !self.end.is_write_in_flight(into) {
                return Step::Again;
            }
            let counted = bytes_before_write(self.end, self.fd, &mut rx, into);
            if counted > 0 && self.request.peek {
                return self.peek(rx, into, counted);
            }
            if counted > 0 {
                return self.read_to_switch(rx, into, counted);
            }
            if !matches!(rx.stream.next(into), Ok(Next::Tcp | Next::Empty)) {
                // It has returned to the ring since the look: what was to be read without a
                // bound has one now.
                return Step::Again;
            }
            drop(rx);
            // A call that blocks asks in `sleep`, when polling did not help.
            if self.request.dontwait {
                self.end.check_sender_or_carrier(self.fd);
            }
            // One that has broken just now is said so at once: the program may have been told of it already.
            return if self.end.is_write_in_flight(into) && !self.end.is_broken() {
                Step::Nothing
            } else {
                Step::Again
            };
        }
        self.read_announced(rx, into)
    }

    /// The same by who has announced it.
    fn read_announced(&mut self, rx: Guard<'a, Rx>, into: &Direction) -> Step {
        let piece = self.rest(true);
        match self.read_kernel(rx, Some(into), piece) {
            Err(Errno::AGAIN) => Step::Nothing,
            // The kernel looks again, and waits, in `sleep`.
            Ok(bytes) if self.wants_all() && bytes > 0 && bytes < self.total => Step::Nothing,
            Ok(bytes) if self.request.waitall && bytes > 0 && !self.request.peek => {
                self.done += bytes;
                self.more(false)
            }
            result => Step::Done(self.finish(result)),
        }
    }

    /// Sleeps in the kernel until bytes come there; the sender sees the announcement.
    fn sleep(&mut self, spinner: &mut Spinner) -> Step {
        if let Some(errno) = self.stopped {
            return Step::Done(self.finish(Err(errno)));
        }
        let was_asked = !core::mem::take(&mut self.sleeps_first);
        let end = self.end;
        let mut rx = match end.lock_rx(self.generation) {
            Locked::Held(rx) => rx,
            Locked::Gone => return Step::Done(self.bypass()),
            Locked::Reentered => return Step::Done(Err(self.reentered())),
        };
        let Some(into) = end.incoming().filter(|_| end.is_enabled()) else {
            return Step::Again;
        };
        if !rx.stream.announce(&into, end.has_sender()) {
            drop(rx);
            self.wait_for_writer(&into);
            if self.wants_all() && self.stopped.is_none() {
                self.wait_for_more();
            }
            return Step::Again;
        }
        end.events.slept();
        let piece = self.rest(false);
        let result = self.read_kernel(rx, Some(&into), piece);
        let asleep_ns = now_ns().saturating_sub(spinner.now_ns());
        if was_asked || has_slept(asleep_ns, result) {
            end.gaps.record(spinner.gap_with_sleep_ns(asleep_ns));
        }
        Step::Done(self.finish(result))
    }

    /// Lets a sender finish that is between deciding and publishing.
    fn wait_for_writer(&mut self, into: &Direction) {
        if self.end.is_remote() {
            self.wait_for_carrier();
            return;
        }
        for look in 0..LIMITS.writer_looks {
            if !self.end.is_write_in_flight(into) {
                return;
            }
            if look < LIMITS.writer_looks_hard {
                core::hint::spin_loop();
            } else {
                yield_processor();
            }
        }
        self.end.check_sender(self.fd);
        if self.end.is_write_in_flight(into) {
            // Stopped in the middle of a write (docs/decisions/0001, last consequence).
            self.stopped = self.naps.nap(self.done > 0).err();
        }
    }

    /// The writer is sluiced, whose write lasts as long as bytes may come by the ring. It ends
    /// soon after this end wants to sleep, unless it has no link to the other host.
    fn wait_for_carrier(&mut self) {
        self.held_awake += 1;
        yield_processor();
        if u64::from(self.held_awake) > LIMITS.awake_looks {
            self.end.check_sender_or_carrier(self.fd);
            self.stopped = self.naps.nap(self.done > 0).err();
        }
    }

    /// The program's call on `piece`, counted. `announced` is the direction on which the
    /// caller announced it.
    fn read_kernel(
        &mut self,
        rx: Guard<'a, Rx>,
        announced: Option<&Direction>,
        piece: Piece,
    ) -> Result<usize, Errno> {
        let end = self.end;
        if self.done == 0
            && let Some(errno) = end.take_postponed()
        {
            if let Some(into) = announced {
                rx.stream.withdraw(into);
            }
            return Err(errno);
        }
        count(&end.rx.in_kernel, 1);
        let number = end.kernel_calls.begin_read();
        drop(rx);
        let mut result = (self.kernel)(piece);
        if result == Ok(0)
            && piece.limit > 0
            && let Locked::Held(mut tx) = end.lock_tx(self.generation)
            && let Some(errno) = end.take_loss(&mut tx, self.fd)
        {
            result = Err(errno);
        }
        match result {
            Ok(0) if piece.limit > 0 => end.set_peer_done(),
            Err(errno) if is_final(errno) => end.set_peer_done(),
            _ => {}
        }
        if let Locked::Held(mut rx) = end.lock_rx(self.generation) {
            if let (Ok(bytes), false) = (result, self.request.peek) {
                match announced {
                    Some(into) => rx.stream.count_said(into, bytes as u64),
                    None => rx.stream.count(bytes as u64),
                }
                count_bytes(&end.bytes.tcp_rx, bytes);
                note_taken(bytes as u64);
            }
            let found_end = match result {
                Ok(bytes) => 0 < bytes && bytes < piece.limit,
                Err(errno) => errno == Errno::AGAIN,
            };
            if found_end && piece.limit > 0 && !self.request.peek {
                end.kernel_calls.drained_by(number);
            }
            count(&end.rx.in_kernel, -1);
            if let Some(into) = announced {
                rx.stream.withdraw(into);
                if !self.request.peek {
                    rx.stream.redeem_promise(into);
                }
            }
        }
        result
    }
}

/// Whether a read that took so long waited for what it got, and did not find it there.
fn has_slept(took_ns: u64, result: Result<usize, Errno>) -> bool {
    let copied_ns = result.unwrap_or(0) as u64 / LIMITS.bytes_per_ns_copied;
    took_ns > LIMITS.yield_switch_ns + copied_ns
}

/// Bytes in the kernel that come before whatever a sender with a write in flight is about to
/// publish. They need not wait for it: it may have stopped or died there, and the FIN of a
/// dead one waits until there is room for what it had written before.
fn bytes_before_write(end: &End, fd: i32, rx: &mut Rx, into: &Direction) -> u64 {
    if rx.stream.is_uncounted() {
        return 0;
    }
    if end.is_remote() {
        // From another host they may have overtaken ring bytes, and their switch offset; but not those
        // that were there before sluiced granted the ring.
        return rx.stream.assured_unread();
    }
    let queued = tcp::unread_bytes(fd).unwrap_or(0);
    // The ring is looked at behind the count: if nothing was published by now, all these bytes were written before.
    // Readers without a bound keep the sender from the ring for as long as this one has
    // the lock, which they need to go.
    if into.mode() == Mode::Tcp && matches!(rx.stream.consumer().available(into), Ok(0)) {
        u64::from(queued)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_only_copied_has_not_slept() {
        assert!(!has_slept(900, Ok(100)));
        assert!(has_slept(4_000, Ok(100)));
        assert!(has_slept(4_000, Err(Errno::INTR)));
        assert!(!has_slept(20_000, Ok(64 << 10)));
        assert!(has_slept(60_000, Ok(64 << 10)));
    }
}
