//! How this crate takes a mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks; what a panicking thread left is as good as any, since nothing here unwinds half-way.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
