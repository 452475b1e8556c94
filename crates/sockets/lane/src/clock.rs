//! Time for deciding how long to poll.

/// Nanoseconds on `CLOCK_MONOTONIC`, by the vDSO.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    #[allow(unsafe_code)]
    // SAFETY: the call writes one timespec; this clock always exists.
    unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time);
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

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
