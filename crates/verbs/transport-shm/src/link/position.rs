//! How far a side has come, where the other side can read it.
#![allow(unsafe_code)]

use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

/// A position in an area, written by the area's owner.
#[derive(Clone, Copy, Debug)]
pub struct Position(NonNull<AtomicU64>);

// SAFETY: reached as an atomic only.
unsafe impl Send for Position {}
// SAFETY: a shared `Position` gives out only the atomic.
unsafe impl Sync for Position {}

impl Position {
    /// # Safety
    /// 8 aligned bytes at `offset` stay mapped as long as the value is used.
    pub unsafe fn at(base: NonNull<u8>, offset: usize) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { base.add(offset) }.cast())
    }

    pub fn get(&self) -> &AtomicU64 {
        // SAFETY: mapped and aligned by `at`; any value is a valid u64.
        unsafe { self.0.as_ref() }
    }
}
