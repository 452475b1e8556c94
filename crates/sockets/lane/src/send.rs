//! Writing: into the ring while its reader is awake and makes room, to TCP otherwise.
#![allow(unsafe_code)]

mod patience;

use crate::clock::now_ns;
use crate::counts::tcp_bytes_written;
use crate::end::{End, Locked, Tx};
use crate::full::{full_budget_ns, stalled_ns};
use crate::kernel::kernel_events;
use crate::lock::{Guard, count, count_bytes};
use crate::parking::count_kernel_transfer;
use crate::reclaim::serve;
use crate::{Parts, Piece, for_pieces, parts_bytes};
use core::sync::atomic::Ordering;
use patience::Patience;
use sluice_shmem::Broken;
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::{Begun, Route};
use sluice_sys::errno::Errno;

/// How often a sender asks the kernel whether its peer is still there, nanoseconds.
const PEER_CHECK_NS: u64 = 1_000_000;
/// Bytes copied before they are published, so that the reader copies along.
const PUBLISH_BYTES: usize = 32 * 1024;
/// A blocking write of no more than this goes to the ring in one piece, or to TCP.
const WHOLE_BYTES: usize = 4096;
/// One write call of the program.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where the bytes are.
    pub parts: Parts<'a>,
    /// `MSG_DONTWAIT`, or the description is nonblocking.
    pub dontwait: bool,
}

/// The kernel's part of a write: the program's own call, on a piece of its buffers.
pub type KernelWrite<'a> = &'a mut dyn FnMut(Piece) -> Result<usize, Errno>;

enum Step {
    Done(Result<usize, Errno>),
    /// Write on; bytes went, or the way changed.
    Again,
    /// The ring is full.
    Full,
    /// Other threads are in the kernel with their writes; without them the ring could be used.
    Others,
}

/// Writes as `send` does. Blocks like the socket would.
pub fn send(
    end: &End,
    generation: u32,
    fd: i32,
    request: &Request,
    kernel: KernelWrite,
) -> Result<usize, Errno> {
    let mut writer = Writer {
        end,
        generation,
        fd,
        request,
        total: parts_bytes(request.parts),
        done: 0,
        kernel,
    };
    let mut patience = Patience::new(fd);
    loop {
        match writer.step(&patience) {
            Step::Done(result) => return result,
            Step::Again => patience.end(),
            Step::Full => {
                if let Err(errno) = patience.pass(writer.done > 0) {
                    return writer.finish(Err(errno));
                }
            }
            Step::Others => patience.pass_others(),
        }
    }
}

/// A write of another form (sendfile, splice) that only the kernel can do: the stream goes to
/// TCP first. `call` is the program's own; it may block.
pub fn through_kernel(
    end: &End,
    generation: u32,
    fd: i32,
    call: &mut dyn FnMut() -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut tx = match end.lock_tx(generation) {
        Locked::Held(tx) => tx,
        Locked::Gone => return call(),
        Locked::Reentered => return Err(Errno::INTR),
    };
    if let Some(out) = end.outgoing() {
        serve(end, fd, &mut tx, &out);
    }
    end.leave_ring(&mut tx);
    tx.stream.note_tcp();
    end.note_tcp_write();
    count(&end.tx.in_kernel, 1);
    drop(tx);
    let result = call();
    count_written(end, generation, result);
    result
}

/// From here on bytes may be written that this end does not see: what is in the ring comes before them, and cannot be taken
/// back any more.
pub fn leave_to_others(end: &End, generation: u32, fd: i32) {
    let Locked::Held(mut tx) = end.lock_tx(generation) else {
        return;
    };
    if let Some(out) = end.outgoing() {
        serve(end, fd, &mut tx, &out);
    }
    end.leave_ring(&mut tx);
    tx.stream.note_tcp();
}

/// Whether what this end writes next would go to the ring, as things are.
pub fn is_ring_next(end: &End, generation: u32) -> bool {
    let Locked::Held(mut tx) = end.lock_tx(generation) else {
        return false;
    };
    let may_use = !end.is_tx_pinned() && !end.is_patient();
    let Some(out) = end.outgoing().filter(|_| may_use) else {
        return false;
    };
    if !matches!(route(end, &mut tx, &out), Ok(Route::Ring)) {
        return false;
    }
    tx.stream.probe(&out, end.peer_parking())
}

fn count_written(end: &End, generation: u32, result: Result<usize, Errno>) {
    count_kernel_transfer();
    // Under the lock: the record may be given to another connection meanwhile.
    if let Locked::Held(tx) = end.lock_tx(generation) {
        count(&end.tx.in_kernel, -1);
        if let Ok(bytes) = result {
            let before = count_bytes(&end.bytes.tcp_tx, bytes);
            end.kernel_calls.count_write();
            if tx.tcp_base != u64::MAX
                && let Some(out) = end.outgoing()
            {
                let sent = before.wrapping_add(bytes as u64);
                let sent = sent.wrapping_add(tx.tcp_base);
                tx.stream.say_tcp_sent(&out, sent);
            }
        }
    }
}

/// Begins to tell sluiced how many bytes go by TCP, once it reads by the lane's rules: a reader on
/// another host may read them while the ring is granted.
fn begin_to_count(end: &End, fd: i32, tx: &mut Tx, out: &Direction) {
    if tx.tcp_base == u64::MAX
        && end.is_remote()
        && out.is_enabled()
        && end.tx.in_kernel.load(Ordering::SeqCst) == 0
        && let Ok(written) = tcp_bytes_written(fd, end.role())
    {
        let counted = end.bytes.tcp_tx.load(Ordering::Relaxed);
        tx.tcp_base = written.wrapping_sub(counted);
        tx.stream.say_tcp_sent(out, written);
    }
}

struct Writer<'a, 'k> {
    end: &'a End,
    generation: u32,
    fd: i32,
    request: &'a Request<'a>,
    total: usize,
    done: usize,
    kernel: KernelWrite<'k>,
}

impl<'a> Writer<'a, '_> {
    fn finish(&self, last: Result<usize, Errno>) -> Result<usize, Errno> {
        match last {
            Ok(bytes) => Ok(self.done + bytes),
            Err(errno) if self.done > 0 => {
                // EPIPE comes again by itself, and only to writers.
                if errno != Errno::PIPE {
                    self.end.keep_error(errno);
                }
                Ok(self.done)
            }
            Err(errno) => Err(errno),
        }
    }

    fn rest(&self) -> Piece {
        Piece {
            skip: self.done,
            limit: self.total - self.done,
            dontwait: false,
        }
    }

    /// One piece.
    fn step(&mut self, patience: &Patience) -> Step {
        let patience_over = patience.is_over();
        let end = self.end;
        let mut tx = match end.lock_tx(self.generation) {
            Locked::Held(tx) => tx,
            // Closed under the call: the descriptor's new owner must not get the rest.
            Locked::Gone if self.done > 0 => return Step::Done(Ok(self.done)),
            Locked::Gone => {
                let piece = self.rest();
                return Step::Done((self.kernel)(piece));
            }
            Locked::Reentered => {
                let errno = if self.request.dontwait {
                    Errno::AGAIN
                } else {
                    Errno::INTR
                };
                return Step::Done(self.finish(Err(errno)));
            }
        };
        if end.is_broken_by_peer() {
            return Step::Done(self.finish(Err(Errno(libc::ECONNRESET))));
        }
        if end.is_patient() {
            // Nothing was ever written to the ring.
            return self.write_kernel(tx);
        }
        let out = end.outgoing();
        if let Some(out) = &out {
            serve(end, self.fd, &mut tx, out);
        }
        let Some(out) = out.filter(|_| !end.is_tx_pinned()) else {
            end.leave_ring(&mut tx);
            return self.write_kernel(tx);
        };
        if self.total == 0 {
            return self.write_kernel(tx);
        }
        // Bytes that go by TCP need no clock.
        let now = tx.stream.is_on_ring().then(now_ns);
        if now.is_some_and(|now| self.is_peer_gone(&mut tx, &out, now)) {
            end.set_peer_done();
            end.leave_ring(&mut tx);
            return self.write_kernel(tx);
        }
        begin_to_count(end, self.fd, &mut tx, &out);
        if !tx.stream.is_on_ring() {
            match route(end, &mut tx, &out) {
                Ok(Route::Ring) => {}
                Ok(Route::RingWithoutOthers) if self.waits_for_others(patience, &tx, &out) => {
                    return Step::Others;
                }
                Ok(_) => return self.write_kernel(tx),
                Err(broken) => {
                    return Step::Done(self.finish(Err(end.break_lane(self.fd, broken))));
                }
            }
            // Most often it sleeps, and the ring stays out of it.
            if !out.is_reader_awake(end.peer_parking()) {
                return self.write_kernel(tx);
            }
        }
        let now = now.unwrap_or_else(now_ns);
        if !self.begin(&mut tx, &out) {
            return self.write_kernel(tx);
        }
        // This comes behind the lock, whose taking has made visible what this thread published before.
        out.note_ring_write(now);
        let step = self.write_ring(&mut tx, &out, patience_over);
        tx.stream.end(&out);
        match step {
            // Overflow: the reader is awake but takes nothing.
            Step::Full if self.is_overflow(&mut tx, &out, patience_over) => {
                end.leave_ring(&mut tx);
                self.write_kernel(tx)
            }
            Step::Full if self.request.dontwait => Step::Done(self.finish(Err(Errno::AGAIN))),
            step => step,
        }
    }

    /// Whether a stream on TCP is to wait until the others' writes are through, instead of
    /// keeping it there: two threads that always find each other in the kernel would never
    /// return to the ring. A reader that sleeps is woken at once.
    fn waits_for_others(&self, patience: &Patience, tx: &Tx, out: &Direction) -> bool {
        if self.request.dontwait || patience.is_over_for_others() {
            return false;
        }
        if patience.is_waiting() {
            return true;
        }
        tx.stream.probe(out, self.end.peer_parking())
    }

    /// Whether a stream on the ring has nobody left to read it.
    fn is_peer_gone(&self, tx: &mut Tx, out: &Direction, now: u64) -> bool {
        if out.is_closed() {
            return true;
        }
        if now.saturating_sub(tx.checked_ns) < PEER_CHECK_NS {
            return false;
        }
        tx.checked_ns = now;
        kernel_events(self.fd, libc::POLLRDHUP) != 0
    }

    /// Begins a write to the ring; false if the bytes go by TCP.
    fn begin(&self, tx: &mut Tx, out: &Direction) -> bool {
        let end = self.end;
        let written = || tcp_bytes_written(self.fd, end.role());
        let (is_ring, switched) = match tx.stream.begin(out, end.peer_parking(), written) {
            Ok(Begun::Ring { switched }) => (true, switched),
            Ok(Begun::Tcp { switched }) => (false, switched),
            // Bytes move too fast to be counted: at another write.
            Err(Errno::AGAIN) => (false, false),
            Err(_) => {
                // Closing, or of unknown origin: stays on TCP for good.
                end.stop_sending_by_ring();
                (false, false)
            }
        };
        if switched {
            tx.full_since_ns = 0;
            end.events.switched();
        }
        is_ring
    }

    fn write_ring(&mut self, tx: &mut Tx, out: &Direction, patience_over: bool) -> Step {
        let wanted = self.total - self.done;
        let room = match tx.stream.producer().room(out, wanted) {
            Ok(room) => room,
            Err(broken) => {
                return Step::Done(self.finish(Err(self.end.break_lane(self.fd, broken))));
            }
        };
        // The ring is not filled in crumbs: a writer that may wait does so for a good part of it. A small
        // write stays whole even then, as other threads may write too.
        let capacity = out.capacity() as usize;
        let enough = if self.request.dontwait {
            1
        } else if patience_over {
            wanted.min(WHOLE_BYTES).min(capacity / 2)
        } else {
            wanted
                .min((capacity / 8).max(WHOLE_BYTES))
                .min(capacity / 2)
        };
        if room < enough {
            return Step::Full;
        }
        tx.full_since_ns = 0;
        let fits = room.min(wanted);
        let mut left = fits;
        while left > 0 {
            let len = left.min(PUBLISH_BYTES);
            let mut stored = 0;
            for_pieces(self.request.parts, self.done, len, |address, len| {
                // SAFETY: the program gave these buffers to be read (send(2)), and no more than
                // `room` bytes are stored.
                unsafe { tx.stream.producer().store(out, stored, address, len) };
                stored += len;
            });
            tx.stream.producer().publish(out, len);
            self.done += len;
            left -= len;
        }
        count_bytes(&self.end.bytes.ring_tx, fits);
        if self.done == self.total || self.request.dontwait {
            Step::Done(Ok(self.done))
        } else {
            Step::Again
        }
    }

    /// Whether a full ring has been full for too long.
    fn is_overflow(&self, tx: &mut Tx, out: &Direction, patience_over: bool) -> bool {
        let stalled = stalled_ns(tx, out) >= full_budget_ns();
        if self.request.dontwait {
            stalled && self.done == 0
        } else {
            stalled || patience_over
        }
    }

    /// The program's call on the rest, counted.
    fn write_kernel(&mut self, mut tx: Guard<'a, Tx>) -> Step {
        let end = self.end;
        if self.done == 0
            && let Some(errno) = end.take_postponed()
        {
            return Step::Done(Err(errno));
        }
        if let Some(errno) = end.take_loss(&mut tx, self.fd) {
            return Step::Done(self.finish(Err(errno)));
        }
        tx.stream.note_tcp();
        end.note_tcp_write();
        count(&end.tx.in_kernel, 1);
        drop(tx);
        let piece = self.rest();
        let result = (self.kernel)(piece);
        count_written(end, self.generation, result);
        Step::Done(self.finish(result))
    }
}

fn route(end: &End, tx: &mut Tx, out: &Direction) -> Result<Route, Broken> {
    let others = end.tx.in_kernel.load(Ordering::SeqCst) != 0;
    tx.stream.route(out, others)
}
