//! A lock in memory that a process shares with its forks, which survives its owner.
//!
//! The word says which thread holds it. Whoever finds the lock held by a thread that no
//! longer exists takes it over and is told so, to publish again what the owner had committed
//! privately. Held for a copy at most, never across a blocking call.
#![allow(unsafe_code)]

pub mod threads;

use crate::held::{self, Kind};
use crate::kernel::kernel_events;
use crate::thread::own;
use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sys::raw;
use sluice_waiting::limits::LIMITS;

/// The word of this thread, remembered: its place, or the kernel's number of it.
#[inline]
fn thread() -> u32 {
    own(|own| match own.number.get() {
        0 => find_word(&own.number),
        number => number,
    })
}

#[cold]
fn find_word(number: &Cell<u32>) -> u32 {
    // SAFETY: gettid takes nothing and cannot fail.
    let by_kernel = || unsafe { raw::syscall0(libc::SYS_gettid) } as u32;
    number.set(threads::take_place().unwrap_or_else(by_kernel));
    number.get()
}

/// Forgets the remembered word; to be called in the child after a fork.
pub fn forget_thread() {
    own(|own| own.number.set(0));
}

/// What this thread does from here on is another thread's: locks that it holds are a dead one's, whose holder will not
/// come back to them.
pub fn abandon() {
    threads::leave_place(own(|own| own.number.replace(0)));
}

/// Counts what only the holder of a lock changes, and others may look at. Without the locked
/// instruction that several writers would need. What the counter was.
#[inline]
pub(crate) fn count(counter: &AtomicU32, by: i32) -> u32 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add_signed(by), Ordering::Release);
    before
}

/// The same for bytes.
#[inline]
pub(crate) fn count_bytes(counter: &AtomicU64, bytes: usize) -> u64 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(bytes as u64), Ordering::Release);
    before
}

/// `T` behind a lock word.
#[repr(C)]
pub struct OwnerLock<T> {
    owner: AtomicU32,
    /// Threads inside the kernel on behalf of this half of the connection. Changed by the holder of
    /// the lock.
    pub in_kernel: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only by the owner of the lock.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

/// How the lock was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obtained {
    /// It was free.
    Free,
    /// From an owner that died holding it.
    FromTheDead,
}

/// The lock, held.
pub struct Guard<'a, T> {
    lock: &'a OwnerLock<T>,
    /// How it was obtained.
    pub obtained: Obtained,
}

impl<T> OwnerLock<T> {
    /// Waits for the lock. `None` if this very thread holds it, which can only be in a signal
    /// handler that interrupted the holder.
    pub fn lock(&self) -> Option<Guard<'_, T>> {
        let me = thread();
        held::hold(Kind::Ring);
        match self
            .owner
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Some(Guard {
                lock: self,
                obtained: Obtained::Free,
            }),
            Err(owner) if owner == me => {
                held::let_go(Kind::Ring);
                None
            }
            Err(_) => Some(self.lock_slowly(me)),
        }
    }

    #[cold]
    fn lock_slowly(&self, me: u32) -> Guard<'_, T> {
        loop {
            for round in 0..LIMITS.lock_looks + LIMITS.lock_yields {
                if self.owner.load(Ordering::Relaxed) == 0
                    && self
                        .owner
                        .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
                {
                    return Guard {
                        lock: self,
                        obtained: Obtained::Free,
                    };
                }
                if round < LIMITS.lock_looks {
                    core::hint::spin_loop();
                } else {
                    crate::spin::yield_processor();
                }
            }
            let owner = self.owner.load(Ordering::Relaxed);
            if owner != 0
                && threads::is_dead(owner).unwrap_or_else(|| is_thread_dead(owner))
                && self
                    .owner
                    .compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
            {
                return Guard {
                    lock: self,
                    obtained: Obtained::FromTheDead,
                };
            }
        }
    }
}

/// Whether a thread will never run again.
///
/// Signal 0 does not tell: it finds a killed process until its parent has reaped it, and the
/// parent may be the one that waits for this lock. A process without memory is dead; reading a
/// byte of its memory fails with `ESRCH` then, before any permission is looked at.
fn is_thread_dead(thread: u32) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let remote = local;
    // SAFETY: the kernel writes at most one byte, into `byte`.
    let ret = unsafe {
        raw::syscall6(
            libc::SYS_process_vm_readv,
            thread as usize,
            &raw const local as usize,
            1,
            &raw const remote as usize,
            1,
            0,
        )
    };
    ret == -(libc::ESRCH as isize)
}

/// Whether a process has ended, with all its threads. One of which nothing can be learned has not.
pub(crate) fn is_process_dead(pid: u32) -> bool {
    // SAFETY: pidfd_open takes numbers, and returns a new descriptor.
    let fd = unsafe { raw::syscall2(libc::SYS_pidfd_open, pid as usize, 0) };
    if fd < 0 {
        return fd == -(libc::ESRCH as isize);
    }
    let has_ended = kernel_events(fd as i32, libc::POLLIN) & libc::POLLIN != 0;
    // SAFETY: the descriptor is this function's own.
    unsafe { raw::syscall1(libc::SYS_close, fd as usize) };
    has_ended
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only owner.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only owner.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.lock.owner.store(0, Ordering::Release);
        held::let_go(Kind::Ring);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_has_abandoned_is_a_dead_ones() {
        threads::share();
        let lock = OwnerLock {
            owner: AtomicU32::new(0),
            in_kernel: AtomicU32::new(0),
            value: UnsafeCell::new(7),
        };
        core::mem::forget(lock.lock().expect("a free lock"));
        assert!(lock.lock().is_none(), "it is this thread's own");
        abandon();
        crate::held::forget();
        let guard = lock.lock().expect("a lock to be taken over");
        assert_eq!((guard.obtained, *guard), (Obtained::FromTheDead, 7));
        drop(guard);
        assert_eq!(
            lock.lock().map(|guard| guard.obtained),
            Some(Obtained::Free)
        );
    }
}
