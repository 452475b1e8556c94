//! A lock for private memory that is never waited for by a frame that interrupted its holder.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sluice_lane::held::{self, Kind};
use sluice_lane::thread::own;
use sluice_waiting::limits::LIMITS;

/// A spin lock that gives the processor away while it waits.
pub struct SpinLock<T> {
    taken: AtomicBool,
    /// The thread that holds it across a fork, by the address of what is its own; 0 for none.
    forker: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached only by the holder.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// The lock, held.
pub struct SpinGuard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    /// An open lock.
    pub const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            forker: AtomicUsize::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock if it is open.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        held::hold(Kind::Spin);
        if self.taken.swap(true, Ordering::Acquire) {
            held::let_go(Kind::Spin);
            return None;
        }
        Some(SpinGuard(self))
    }

    /// Waits for the lock. `None` if this thread holds any such lock already: it is in a
    /// signal handler, or would wait for itself.
    pub fn lock(&self) -> Option<SpinGuard<'_, T>> {
        if is_any_held() {
            return self.try_lock();
        }
        let mut looks = 0_u64;
        loop {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            looks += 1;
            if looks < LIMITS.table_lock_looks {
                core::hint::spin_loop();
            } else {
                sluice_lane::spin::yield_processor();
            }
        }
    }

    /// Takes the lock to hold it across a fork, whatever else the thread holds. Gives up behind a holder that does
    /// not go on.
    pub fn hold_across_fork(&self) {
        for _ in 0..10_000 {
            if let Some(guard) = self.try_lock() {
                core::mem::forget(guard);
                self.forker.store(this_thread(), Ordering::Relaxed);
                return;
            }
            sluice_lane::spin::yield_processor();
        }
    }

    /// In the parent: opens the lock if this thread has held it across its fork. Others may have forked meanwhile, too.
    pub fn release_after_fork(&self) {
        let me = this_thread();
        let (order, nobody) = (Ordering::Relaxed, 0);
        if self
            .forker
            .compare_exchange(me, nobody, order, order)
            .is_ok()
        {
            self.taken.store(false, Ordering::Release);
        }
    }

    /// Opens the lock in the child of a fork, where its holder does not exist.
    pub fn force_open(&self) {
        self.forker.store(0, Ordering::Relaxed);
        self.taken.store(false, Ordering::Release);
    }
}

fn this_thread() -> usize {
    own(|own| core::ptr::from_ref(own) as usize)
}

/// Whether this thread holds such a lock: it is in a signal handler on top of a hook, and may wait for nothing.
pub fn is_any_held() -> bool {
    held::is_held(Kind::Spin)
}

/// Forgets what the forking thread held across the fork, in both processes.
pub fn forget_held() {
    held::forget();
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only holder.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only holder.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
        held::let_go(Kind::Spin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_holds_a_lock_across_a_fork_opens_it_behind_the_fork() {
        let lock = SpinLock::new(());
        lock.hold_across_fork();
        forget_held();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                // Behind a fork of its own, for which it did not get the lock.
                lock.release_after_fork();
                lock.try_lock().is_none()
            });
            assert!(other.join().unwrap(), "it is held still");
        });
        lock.release_after_fork();
        let guard = lock.try_lock().expect("it is open");
        lock.release_after_fork();
        assert!(lock.try_lock().is_none(), "held, but for no fork");
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
