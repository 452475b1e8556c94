//! Time for deciding how long to poll.

pub use sluice_sys::clock::now_ns;

/// The processor's time stamp counter, which runs at one to five gigahertz: it tells a moment ago
/// from long ago at a third of the price of [`now_ns`]. It may be far off on another core.
#[cfg(target_arch = "x86_64")]
pub fn ticks() -> u64 {
    #[allow(unsafe_code)]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        core::arch::x86_64::_rdtsc()
    }
}

/// The same without such a counter.
#[cfg(not(target_arch = "x86_64"))]
pub fn ticks() -> u64 {
    now_ns().wrapping_mul(3)
}
