//! Ring bytes on their way back: a connection is given to a program that cannot read the ring, so
//! the sender takes back what nobody has read yet and sends it by TCP, before anything later.
//!
//! The receiver asks by a word in shared memory and waits a moment; the sender answers when it
//! next writes, polls, or waits for bytes. A sender that sleeps in the kernel does not answer:
//! then the bytes stay in the ring, for the caller to do something about
//! ([`End::take_out`], [`End::copy_out`], docs/limitations.md).
//!
//! [`fetch`] holds the lock of the receiving half of its end while `help` waits for those of the
//! sending halves of others. Nobody waits for a receiving half while holding a sending one
//! ([`End::lock_tx`]), so nobody waits in a circle.
#![allow(unsafe_code)]

use crate::clock::now_ns;
use crate::confined::is_refusing;
use crate::counts::tcp_bytes_written;
use crate::end::{End, Locked, Tx};
use crate::kernel::{sleep_until_over, sleep_until_writable};
use crate::lock::count_bytes;
use crate::spin::yield_processor;
use sluice_shmem::direction::Direction;
use sluice_shmem::handover::{Back, Sender};
use sluice_sys::errno::Errno;
use sluice_sys::{raw, tcp};
use sluice_waiting::limits::LIMITS;

/// What became of bytes that were in the ring when the socket was to be given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetched {
    /// None are left: there were none, or the sender has them and sends them by TCP.
    All,
    /// This many bytes stay in the ring, where only this process and its forks can read them.
    Left(usize),
    /// The sender stopped in the middle of a write. What it is about to put into the ring can
    /// be read by this process and its forks only.
    Unfinished,
}

/// Before [`fetch`], for an end that is pinned: waits until sluiced grants its ring to no program on another host any
/// more, or the connection is reset, or `deadline_ns` ([`now_ns`]). Both daemons have to hear of it, which takes as long
/// as their hosts are busy.
pub fn await_grant_end(end: &End, fd: i32, deadline_ns: u64) {
    let mut looks = 0;
    while end.is_granted() && now_ns() < deadline_ns {
        looks += 1;
        if looks < LIMITS.awake_looks {
            yield_processor();
        } else if sleep_until_over(fd, 1) {
            return;
        }
    }
}

/// The receiver's part, for an end that is pinned: makes the ring's unread bytes come by TCP.
/// `help` is called once while the sender is asked; it may answer for senders of this process.
///
/// Blocks until `deadline_ns` at most ([`now_ns`]), but for the locks of the end.
pub fn fetch(
    end: &End,
    generation: u32,
    fd: i32,
    deadline_ns: u64,
    help: &mut dyn FnMut(),
) -> Fetched {
    let Locked::Held(mut rx) = end.lock_rx(generation) else {
        return Fetched::All;
    };
    let Some(into) = end.incoming().filter(|_| end.is_enabled()) else {
        return Fetched::All;
    };
    while end.is_write_in_flight(&into) && now_ns() < deadline_ns {
        yield_processor();
    }
    if end.is_write_in_flight(&into) {
        end.check_sender(fd);
    }
    if end.is_write_in_flight(&into) {
        return Fetched::Unfinished;
    }
    end.pass_over(fd, &mut rx, &into);
    let unread = match rx.stream.consumer().available(&into) {
        Ok(0) => return Fetched::All,
        Ok(unread) => unread,
        Err(broken) => {
            // Whoever gets the socket must not take what comes next for all of the stream.
            end.break_lane(fd, broken);
            return Fetched::All;
        }
    };
    // Who has a copy would get them twice.
    if !end.has_sender() || end.has_copies() {
        return Fetched::Left(unread);
    }
    rx.stream.ask_back(&into);
    help();
    loop {
        match rx.stream.hear_back(&into, now_ns() >= deadline_ns) {
            Back::Asked => yield_processor(),
            Back::Taken => return Fetched::All,
            Back::Kept => return Fetched::Left(unread),
        }
    }
}

/// The sender's part, wherever it looks at its connection and holds no lock of it.
pub fn look(end: &End, generation: u32, fd: i32) {
    let Some(out) = end.outgoing() else {
        return;
    };
    if Sender::is_asked_back(&out)
        && let Locked::Held(mut tx) = end.lock_tx(generation)
    {
        serve(end, fd, &mut tx, &out);
    }
}

/// The same under the sending half's lock. Whether the peer had asked.
pub(crate) fn serve(end: &End, fd: i32, tx: &mut Tx, out: &Direction) -> bool {
    if !Sender::is_asked_back(out) {
        return false;
    }
    end.leave_ring(tx);
    // Somebody who writes past this end's lock may have written behind the ring's bytes: another program that has the
    // socket, or the C library by itself.
    let is_last = || tcp_bytes_written(fd, end.role()) == Ok(out.switch_offset());
    let can_send = |unread| {
        !is_refusing()
            && !end.has_shut_tx()
            && is_open_for_writing(fd)
            && has_room(fd, unread)
            && is_last()
    };
    for (address, len) in tx.stream.take_back(out, can_send).into_iter().flatten() {
        if send_all(fd, address, len).is_err() {
            // The reader has given the bytes up. If somebody has shut the socket down since, the reader must not take
            // the end of the stream for its end.
            tcp::reset(fd);
            return true;
        }
        count_bytes(&end.bytes.tcp_tx, len);
    }
    true
}

/// Whether the stream has not been ended on this side, by whoever has the socket.
fn is_open_for_writing(fd: i32) -> bool {
    let is_open = |state| matches!(state, tcp::STATE_ESTABLISHED | tcp::STATE_CLOSE_WAIT);
    tcp::info(fd).is_ok_and(|info| is_open(info.state))
}

/// Whether the socket takes `bytes` at once. The kernel counts its own overhead, too, against
/// `SO_SNDBUF`, hence the half.
fn has_room(fd: i32, bytes: u64) -> bool {
    let mut limit = 0_i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the option is an int; both live on this stack.
    let known = raw::check(unsafe {
        raw::syscall5(
            libc::SYS_getsockopt,
            fd as usize,
            libc::SOL_SOCKET as usize,
            libc::SO_SNDBUF as usize,
            &raw mut limit as usize,
            &raw mut len as usize,
        )
    });
    let (Ok(_), Ok(queued)) = (known, tcp::unacked_bytes(fd)) else {
        return false;
    };
    u64::from(queued) + bytes <= u64::from(limit.unsigned_abs()) / 2
}

/// Sends ring bytes by TCP. There was room for them, so that this hardly ever waits; it goes on
/// until all are sent, as the receiver has given them up.
fn send_all(fd: i32, address: *const u8, len: usize) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        // SAFETY: the kernel reads the ring's bytes, which stay mapped.
        let sent = raw::check(unsafe {
            raw::syscall6(
                libc::SYS_sendto,
                fd as usize,
                address as usize + done,
                len - done,
                (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize,
                0,
                0,
            )
        });
        match sent {
            Ok(sent) => done += sent,
            Err(Errno::AGAIN) => sleep_until_writable(fd),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
