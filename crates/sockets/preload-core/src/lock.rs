//! A lock for private memory that is never waited for by a frame that interrupted its holder.
#![allow(unsafe_code)]

use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use sluice_lane::thread::own;
use sluice_waiting::limits::LIMITS;

/// Locks of this kind that the thread holds. With one held, a signal handler may run on top of the
/// holder, so nothing may be waited for.
#[inline]
fn held<R>(body: impl FnOnce(&Cell<u32>) -> R) -> R {
    own(|own| body(&own.locks_held))
}

/// A spin lock that gives the processor away while it waits.
pub struct SpinLock<T> {
    taken: AtomicBool,
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
            value: UnsafeCell::new(value),
        }
    }

    /// Takes the lock if it is open.
    pub fn try_lock(&self) -> Option<SpinGuard<'_, T>> {
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        held(|held| held.set(held.get() + 1));
        Some(SpinGuard(self))
    }

    /// Waits for the lock. `None` if this thread holds any such lock already: it is in a
    /// signal handler, or would wait for itself.
    pub fn lock(&self) -> Option<SpinGuard<'_, T>> {
        if held(Cell::get) != 0 {
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

    /// Takes the lock to hold it across a fork, whatever else the thread holds.
    pub fn try_lock_fork(&self) -> Option<SpinGuard<'_, T>> {
        for _ in 0..10_000 {
            if let Some(guard) = self.try_lock() {
                return Some(guard);
            }
            sluice_lane::spin::yield_processor();
        }
        None
    }

    /// Opens the lock in the child of a fork, where its holder does not exist.
    pub fn force_open(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// Whether this thread holds a lock: it is in a signal handler on top of a hook.
pub fn is_any_held() -> bool {
    held(Cell::get) != 0
}

/// Forgets what the forking thread held; for the child of a fork.
pub fn forget_held() {
    held(|held| held.set(0));
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
        held(|held| held.set(held.get().saturating_sub(1)));
    }
}
