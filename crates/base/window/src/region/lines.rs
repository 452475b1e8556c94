//! Cache lines: writing back and invalidating, where caches of hosts do not agree.
//!
//! Intel SDM volume 2, CLWB, CLFLUSHOPT, CLFLUSH: all three may be executed by any program on
//! memory that it can read. CLWB and CLFLUSHOPT are ordered by fences only.
#![allow(unsafe_code)]

use crate::view::LINE_BYTES;

#[cfg(target_arch = "x86_64")]
mod machine {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count, _mm_clflush, _mm_mfence, _mm_sfence};
    use core::sync::atomic::{AtomicU8, Ordering};

    const KNOWN: u8 = 1;
    const CLFLUSH: u8 = 2;
    const CLFLUSHOPT: u8 = 4;
    const CLWB: u8 = 8;

    static FEATURES: AtomicU8 = AtomicU8::new(0);

    fn features() -> u8 {
        let known = FEATURES.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let mut features = KNOWN;
        if __cpuid(1).edx >> 19 & 1 == 1 {
            features |= CLFLUSH;
        }
        if __cpuid(0).eax >= 7 {
            let ebx = __cpuid_count(7, 0).ebx;
            if ebx >> 23 & 1 == 1 {
                features |= CLFLUSHOPT;
            }
            if ebx >> 24 & 1 == 1 {
                features |= CLWB;
            }
        }
        FEATURES.store(features, Ordering::Relaxed);
        features
    }

    pub fn can_flush() -> bool {
        features() & CLFLUSH != 0
    }

    /// # Safety
    /// The line is mapped, and [`can_flush`].
    #[inline]
    unsafe fn flush_line(line: *const u8) {
        if features() & CLFLUSHOPT != 0 {
            // SAFETY: the processor has the instruction; it changes no memory of the program's.
            unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { _mm_clflush(line) }
        }
    }

    /// # Safety
    /// As [`flush_line`].
    #[inline]
    pub unsafe fn flush_lines(lines: impl Iterator<Item = *const u8>) {
        for line in lines {
            // SAFETY: the caller's promise.
            unsafe { flush_line(line) };
        }
        // SAFETY: every x86-64 processor has SSE2.
        unsafe { _mm_mfence() };
    }

    /// # Safety
    /// As [`flush_line`].
    #[inline]
    pub unsafe fn write_back_lines(lines: impl Iterator<Item = *const u8>) {
        for line in lines {
            if features() & CLWB != 0 {
                // SAFETY: the processor has the instruction; it changes no memory of the
                // program's.
                unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) }
            } else {
                // SAFETY: the caller's promise.
                unsafe { flush_line(line) };
            }
        }
        // SAFETY: every x86-64 processor has SSE.
        unsafe { _mm_sfence() };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    pub fn can_flush() -> bool {
        false
    }

    pub unsafe fn flush_lines(_lines: impl Iterator<Item = *const u8>) {}

    pub unsafe fn write_back_lines(_lines: impl Iterator<Item = *const u8>) {}
}

pub use machine::can_flush;

fn lines(start: *const u8, bytes: u64) -> impl Iterator<Item = *const u8> {
    let first = start as u64 & !(LINE_BYTES - 1);
    let end = start as u64 + bytes.max(1);
    (first..end)
        .step_by(LINE_BYTES as usize)
        .map(|line| line as *const u8)
}

/// Puts lines out of this host's caches, written back if they were changed. What is read
/// afterwards comes from memory.
///
/// # Safety
/// The range is mapped, and [`can_flush`].
#[inline]
pub unsafe fn flush(start: *const u8, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe { machine::flush_lines(lines(start, bytes)) }
}

/// Writes lines back, before anything that is written afterwards.
///
/// # Safety
/// As [`flush`].
#[inline]
pub unsafe fn write_back(start: *const u8, bytes: u64) {
    // SAFETY: the caller's promise.
    unsafe { machine::write_back_lines(lines(start, bytes)) }
}
