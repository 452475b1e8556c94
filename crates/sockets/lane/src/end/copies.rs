//! Unread ring bytes of which several programs have copies.
//!
//! A connection is given to another program while this one may go on with it: by exec from a
//! fork, by `SCM_RIGHTS`. Both can read the kernel's bytes, and whoever reads first gets them. So
//! it has to be with the ring's: each has a copy, and how many of them are unread still is noted
//! with the socket, the one thing that all of them have ([`sluice_sys::socket_note`]). Counted from
//! the end, as each copy begins where its giver was.
//!
//! The connection is pinned, so nothing is added to these bytes.

use super::flags::Flags;
use super::{Carried, End, Locked, Rx};
use crate::confined::is_refusing;
use crate::held::{self, Kind};
use crate::spin::yield_processor;
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_shmem::direction::Direction;
use sluice_sys::errno::Errno;
use sluice_sys::socket_note::{self, NoteLock, ThreadLock};

/// How often a lock is asked for that others have. They have it while they copy.
const LOOKS_MAX: u32 = 10_000;

/// This process has had copies, or has made some.
static HAS_COPIES: AtomicBool = AtomicBool::new(false);

impl End {
    /// Whether other programs may have copies of the ring's unread bytes.
    pub fn has_copies(&self) -> bool {
        self.flag(Flags::COPIED)
    }

    /// Copies the unread ring bytes of a pinned end to `sink`, for another program that reads the
    /// same socket. `None`, and nothing has changed, if there are none, `sink` does not take them, or
    /// nothing can be noted with the socket.
    pub fn copy_out(&self, generation: u32, fd: i32, sink: super::Sink) -> Option<Carried> {
        let Locked::Held(mut rx) = self.lock_rx(generation) else {
            return None;
        };
        let into = self.incoming().filter(|_| self.is_enabled())?;
        let _lock = match self.lock_note(fd, &mut rx, &into).ok()? {
            Some(lock) => lock,
            None => take_note_lock(fd).ok()?,
        };
        let bytes = self.load_unread(&mut rx, &into, sink)?;
        if !self.has_copies() {
            // One that is left from bytes which all have been read.
            if !matches!(socket_note::read(fd), Ok(None | Some(0))) {
                return None;
            }
            socket_note::write(fd, bytes as u32).ok()?;
            self.set_copied();
        }
        // Should all copies but this process's be read and closed, the sender must not think that
        // the bytes in its ring were lost.
        rx.stream.close(&into);
        Some(Carried {
            switch_offset: into.switch_offset(),
            bytes,
            copied: true,
        })
    }

    /// Under the lock, before the ring's bytes are looked at: passes over what others have read.
    /// The lock lasts until the bytes are taken and that is noted ([`End::note_taken`]); `None` if
    /// nobody else has them.
    ///
    /// Errors: `EAGAIN` while others do not let go of theirs; `ECONNRESET` if the note is lost.
    pub(crate) fn lock_note(
        &self,
        fd: i32,
        rx: &mut Rx,
        into: &Direction,
    ) -> Result<Option<NoteLock>, Errno> {
        // A confined process makes no calls of its own, and reads what it has.
        if !self.has_copies() || self.has_gap() || is_refusing() {
            return Ok(None);
        }
        let lock = take_note_lock(fd)?;
        let own = rx.stream.consumer().available(into).unwrap_or(0);
        let left = match socket_note::read(fd) {
            Ok(Some(left)) => own.checked_sub(left as usize).map(|read| (read, left)),
            _ => None,
        };
        let Some((read, left)) = left else {
            self.flags.set(Flags::GAP);
            return Err(Errno(libc::ECONNRESET));
        };
        rx.stream.consumer().consume(into, read);
        // Others read from the kernel, too.
        rx.stream.doubt_count();
        self.recount(fd, rx);
        if left == 0 {
            self.clear_copied();
        }
        Ok(Some(lock))
    }

    /// Under the lock: notes what is left.
    pub(crate) fn note_taken(&self, fd: i32, rx: &mut Rx, into: &Direction) {
        if !self.has_copies() || is_refusing() {
            return;
        }
        let left = rx.stream.consumer().available(into).unwrap_or(0);
        if socket_note::write(fd, left as u32).is_err() {
            // Better none than a wrong one: the others' reads fail.
            let _ = socket_note::remove(fd);
        }
        if left == 0 {
            self.clear_copied();
        }
    }

    fn clear_copied(&self) {
        self.flags.clear(Flags::COPIED);
    }

    /// What lies before a look at the ring outside of a read.
    pub(crate) fn pass_over(&self, fd: i32, rx: &mut Rx, into: &Direction) {
        let _ = self.lock_note(fd, rx, into);
    }

    /// From here on others have copies of the unread bytes that this end was given.
    pub(super) fn set_copied(&self) {
        HAS_COPIES.store(true, Ordering::Relaxed);
        self.flags.set(Flags::COPIED);
    }
}

/// Closes descriptors of sockets, while no other thread has a [`NoteLock`]: the kernel would take it away, as soon as any
/// descriptor of its socket is closed in this process.
///
/// A handler that has interrupted the holder does not wait for it.
pub fn close_beside_copies<R>(close: impl FnOnce() -> R) -> R {
    if !HAS_COPIES.load(Ordering::Relaxed) {
        return close();
    }
    let waits = !held::is_any_held();
    held::hold(Kind::Spin);
    let lock = loop {
        match ThreadLock::take() {
            None if waits => yield_processor(),
            lock => break lock,
        }
    };
    let closed = close();
    drop(lock);
    held::let_go(Kind::Spin);
    closed
}

/// To be called in the child after a fork: other threads' locks are the parent's.
pub fn forget_locks() {
    ThreadLock::forget_holder();
}

fn take_note_lock(fd: i32) -> Result<NoteLock, Errno> {
    for _ in 0..LOOKS_MAX {
        match NoteLock::take(fd) {
            Err(Errno::AGAIN) => yield_processor(),
            taken => return taken,
        }
    }
    Err(Errno::AGAIN)
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Whether this process has the socket locked. An open file description's locks and a process's exclude
    /// each other (fcntl(2)).
    fn is_locked(fd: i32) -> bool {
        // SAFETY: `flock` is integers, for which zero is valid: all bytes, from the start.
        let mut lock: libc::flock = unsafe { core::mem::zeroed() };
        lock.l_type = libc::F_WRLCK as libc::c_short;
        // SAFETY: the kernel reads and writes one `struct flock`.
        let asked = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &raw mut lock) };
        assert_eq!(asked, 0);
        lock.l_type != libc::F_UNLCK as libc::c_short
    }

    #[test]
    fn descriptors_that_other_threads_close_take_no_lock_away() {
        const CLOSED: usize = 500;
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let fd = socket.as_raw_fd();
        HAS_COPIES.store(true, Ordering::Relaxed);
        let (closed, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while closed.load(Ordering::Relaxed) < CLOSED {
                    let copy = socket.try_clone().expect("a duplicate");
                    close_beside_copies(|| drop(copy));
                    closed.fetch_add(1, Ordering::Relaxed);
                    yield_processor();
                }
            });
            while closed.load(Ordering::Relaxed) < CLOSED || held.load(Ordering::Relaxed) < CLOSED {
                let Ok(lock) = take_note_lock(fd) else {
                    continue;
                };
                for _ in 0..4 {
                    assert!(is_locked(fd));
                    yield_processor();
                }
                drop(lock);
                held.fetch_add(1, Ordering::Relaxed);
            }
        });
        assert!(!is_locked(fd));
    }
}
