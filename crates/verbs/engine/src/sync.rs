//! What threads share their memory with: the machine's, or loom's when the models run (`--cfg loom`).
#![allow(unsafe_code)]

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::{Arc, Mutex};

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::{Arc, Mutex};

#[cfg(not(loom))]
pub(crate) use crate::locks::lock;

#[cfg(loom)]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> loom::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// A full fence directly behind a read-modify-write with sequential consistency. In the language's memory
/// model such an operation orders only itself; on x86-64 it is a fence already.
#[inline]
pub(crate) fn fence_behind_rmw() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(all(not(loom), not(target_arch = "x86_64")))]
    core::sync::atomic::fence(Ordering::SeqCst);
}

/// To be called while another thread is waited for that is in the middle of a few instructions.
#[inline]
pub(crate) fn wait_a_moment(rounds: &mut u32) {
    *rounds = rounds.wrapping_add(1);
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    match *rounds {
        0..100 => core::hint::spin_loop(),
        // It has lost its processor.
        _ => std::thread::yield_now(),
    }
}

/// Memory that one thread may write, or several read. Loom's, which looks whether that is so, has the
/// same calls.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }

    #[inline]
    pub fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}
