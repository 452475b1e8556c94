//! The atomics of the machine, or loom's when the models run (`--cfg loom`).
#![allow(unsafe_code)]

#[cfg(not(loom))]
use core::ptr::NonNull;

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use crate::loom_area::{copy_in, word32, word64};

/// The word `offset` bytes into an area of shared memory.
///
/// # Safety
/// `offset` is a multiple of 8, and the 8 bytes there stay mapped as long as `'a` lasts. `base`
/// is aligned to 8.
#[cfg(not(loom))]
#[inline]
pub(crate) unsafe fn word64<'a>(base: NonNull<u8>, offset: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; any value is a valid u64, and it is reached as an atomic only.
    unsafe { base.add(offset).cast::<AtomicU64>().as_ref() }
}

/// As [`word64`], for 4 bytes.
///
/// # Safety
/// As [`word64`], with 4 in place of 8.
#[cfg(not(loom))]
#[inline]
pub(crate) unsafe fn word32<'a>(base: NonNull<u8>, offset: usize) -> &'a AtomicU32 {
    // SAFETY: the caller's promise: 4 aligned, mapped bytes. Any value is a valid u32, and it is reached
    // as an atomic only.
    unsafe { base.add(offset).cast::<AtomicU32>().as_ref() }
}

/// Copies `len` bytes to `offset` in an area of shared memory, ascending.
///
/// # Safety
/// The target lies in the area, is writable, and nobody else writes it now; `source` is readable.
#[cfg(not(loom))]
#[inline]
pub(crate) unsafe fn copy_in(base: NonNull<u8>, offset: usize, source: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::copy::ascending(base.as_ptr().add(offset), source, len) };
}

/// A full fence between own stores and the loads that come after it.
#[inline]
pub(crate) fn full_fence() {
    #[cfg(not(loom))]
    core::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// A full fence directly behind a read-modify-write with `SeqCst` order.
///
/// In the language's memory model such an operation orders only itself, so the handshakes need a
/// fence behind it. On x86-64 the locked instruction that it compiles to is one already (Intel
/// SDM volume 3A, "Loads and Stores Are Not Reordered with Locked Instructions"; AMD's manual
/// says the same), and a second would cost as much as the first.
#[inline]
pub(crate) fn fence_after_rmw() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(all(not(loom), target_arch = "x86_64", not(miri)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(all(not(loom), any(not(target_arch = "x86_64"), miri)))]
    core::sync::atomic::fence(Ordering::SeqCst);
}
