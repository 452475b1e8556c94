//! The atomics of the machine, or loom's when the models run (`--cfg loom`).

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
