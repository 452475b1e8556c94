//! Copies whose bytes become visible in ascending order.
//!
//! Programs wait for an RDMA write by polling on its last byte, so no byte may become visible
//! after a byte behind it. `memcpy` stores the end first for some lengths, and the string
//! instructions promise no order inside one instruction (Intel SDM vol. 1, 7.3.9.3), only
//! between one and the store after it. Here the bulk is stored by ordered vector stores, and
//! the tail by single stores of falling size, so that an aligned value of 1, 2, 4 or 8 bytes
//! at the end is never seen in parts.
#![allow(unsafe_code)]

use core::sync::atomic::{Ordering, fence};

/// From this length on the string instruction is used, in pieces of this many bytes: the order
/// between pieces is that of single stores.
#[cfg(target_arch = "x86_64")]
const STRING_BYTES: usize = 4096;

/// Copies `len` bytes in ascending order; the last bytes are stored last.
///
/// # Safety
/// `source` is readable and `target` writable for `len` bytes, and the two do not overlap.
/// Others may access either at the same time; they may see a copy in progress.
#[inline]
pub unsafe fn ascending(target: *mut u8, source: *const u8, len: usize) {
    // Loads and stores of the caller before the copy stay before it.
    fence(Ordering::Release);
    // SAFETY: the caller's promise, passed on.
    unsafe {
        let done = bulk(target, source, len);
        tail(target.add(done), source.add(done), len - done);
    }
}

/// Stores all but the last 1 to 64 bytes; returns how many.
///
/// # Safety
/// As [`ascending`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn bulk(target: *mut u8, source: *const u8, len: usize) -> usize {
    if len <= 64 {
        return 0;
    }
    let mut done = 0;
    // SAFETY: `done + STRING_BYTES < len` inside the first loop and `done + 64 < len` inside
    // the second, so every access lies within the caller's `len` bytes. The direction flag is
    // clear by the calling convention.
    unsafe {
        while len - done > STRING_BYTES {
            core::arch::asm!(
                "rep movsb",
                inout("rcx") STRING_BYTES => _,
                inout("rdi") target.add(done) => _,
                inout("rsi") source.add(done) => _,
                options(nostack, preserves_flags)
            );
            done += STRING_BYTES;
        }
        while len - done > 64 {
            core::arch::asm!(
                "movups {a}, [{source}]",
                "movups {b}, [{source} + 16]",
                "movups {c}, [{source} + 32]",
                "movups {d}, [{source} + 48]",
                "movups [{target}], {a}",
                "movups [{target} + 16], {b}",
                "movups [{target} + 32], {c}",
                "movups [{target} + 48], {d}",
                source = in(reg) source.add(done),
                target = in(reg) target.add(done),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags)
            );
            done += 64;
        }
    }
    done
}

/// Stores all but the last 1 to 64 bytes; returns how many.
///
/// # Safety
/// As [`ascending`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn bulk(target: *mut u8, source: *const u8, len: usize) -> usize {
    let mut done = 0;
    while len - done > 64 {
        let piece = (len - done - 1).min(4096);
        // SAFETY: `done + piece < len`. Pieces are ordered by the fence; inside one piece a
        // weakly ordered machine may show bytes in any order, which the tail is never part of.
        unsafe { core::ptr::copy_nonoverlapping(source.add(done), target.add(done), piece) };
        fence(Ordering::Release);
        done += piece;
    }
    done
}

/// Stores up to 64 bytes by single stores: units of eight, then four, two and one, or the
/// other way round where only that keeps an aligned last value whole.
///
/// # Safety
/// As [`ascending`].
#[inline]
unsafe fn tail(target: *mut u8, source: *const u8, len: usize) {
    let mut done = 0;
    // SAFETY: each branch checks that the unit ends within `len` bytes. Volatile accesses are
    // single instructions in program order.
    unsafe {
        // Small units first until the target is aligned for larger ones, so that what is left
        // is naturally aligned.
        while done < len {
            let left = len - done;
            let place = target.add(done) as usize;
            let unit = if left >= 8 && place.is_multiple_of(8) {
                8
            } else if left >= 4 && place.is_multiple_of(4) {
                4
            } else if left >= 2 && place.is_multiple_of(2) {
                2
            } else {
                1
            };
            fence(Ordering::Release);
            let (to, from) = (target.add(done), source.add(done));
            match unit {
                8 => to
                    .cast::<u64>()
                    .write_volatile(from.cast::<u64>().read_unaligned()),
                4 => to
                    .cast::<u32>()
                    .write_volatile(from.cast::<u32>().read_unaligned()),
                2 => to
                    .cast::<u16>()
                    .write_volatile(from.cast::<u16>().read_unaligned()),
                _ => to.write_volatile(from.read()),
            }
            done += unit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU8};
    use std::sync::Arc;

    #[test]
    fn every_length_and_alignment_arrives() {
        let source: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for len in (0..300).chain([4095, 4096, 4097, 4160, 4161, 8192, 12_345]) {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (5, 7), (8, 4)] {
                let mut target = vec![0xEE; len + 16];
                // SAFETY: both vectors are longer than `len` plus the offsets.
                unsafe { ascending(target.as_mut_ptr().add(to), source.as_ptr().add(from), len) };
                assert_eq!(target[to..to + len], source[from..from + len], "{len}");
                assert!(target[..to].iter().all(|byte| *byte == 0xEE));
                assert!(target[to + len..].iter().all(|byte| *byte == 0xEE));
            }
        }
    }

    /// Whoever sees the last byte sees all before it.
    #[test]
    fn the_last_byte_is_visible_last() {
        for len in [9usize, 64, 65, 200, 4096, 5000, 70_000] {
            let target: Arc<Vec<AtomicU8>> = Arc::new((0..len).map(|_| AtomicU8::new(0)).collect());
            let stop = Arc::new(AtomicBool::new(false));
            let reader = {
                let (target, stop) = (target.clone(), stop.clone());
                std::thread::spawn(move || {
                    let mut seen = 0u8;
                    while !stop.load(Ordering::Relaxed) {
                        let last = target[len - 1].load(Ordering::Acquire);
                        if last != seen {
                            for at in [0, len / 2, len.saturating_sub(65), len - 2] {
                                let byte = target[at].load(Ordering::Relaxed);
                                // The writer may be many rounds further already.
                                assert!(byte >= last, "byte {at} of {len} came after the last");
                            }
                            seen = last;
                        }
                    }
                })
            };
            for round in 1..=u8::MAX {
                let source = vec![round; len];
                // SAFETY: the atomics are `len` bytes of memory that may be written through a
                // shared reference; the reader uses atomic loads only.
                unsafe { ascending(target.as_ptr() as *mut u8, source.as_ptr(), len) };
            }
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        }
    }
}
