//! The monotonic clock, as the kernel has it: libraries that show a program another time (libfaketime) replace the
//! C library's `clock_gettime`, and their clock may stand still.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::mem::transmute;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::image::Image;
use crate::raw::{int, syscall2};

/// `clock_gettime` of the vDSO.
type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> libc::c_int;

#[cfg(target_arch = "x86_64")]
const SYMBOL: &CStr = c"__vdso_clock_gettime";
#[cfg(not(target_arch = "x86_64"))]
const SYMBOL: &CStr = c"__kernel_clock_gettime";

/// Not looked for yet.
const UNKNOWN: usize = 0;
/// There is none.
const NONE: usize = 1;
static FUNCTION: AtomicUsize = AtomicUsize::new(UNKNOWN);

/// Nanoseconds on `CLOCK_MONOTONIC`, by the vDSO (vdso(7)), or by the system call where there is none.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    match FUNCTION.load(Ordering::Relaxed) {
        UNKNOWN | NONE => ask_slowly(&mut time),
        address => {
            // SAFETY: the vDSO's function, which stays mapped, writes one timespec; this clock always exists.
            unsafe {
                transmute::<usize, ClockGettime>(address)(libc::CLOCK_MONOTONIC, &raw mut time)
            };
        }
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cold]
fn ask_slowly(time: &mut libc::timespec) {
    if FUNCTION.load(Ordering::Relaxed) == UNKNOWN {
        FUNCTION.store(find().unwrap_or(NONE), Ordering::Relaxed);
    }
    // SAFETY: the kernel writes one timespec.
    unsafe {
        syscall2(
            libc::SYS_clock_gettime,
            int(libc::CLOCK_MONOTONIC),
            &raw mut *time as usize,
        )
    };
}

/// The address of the function in this process.
fn find() -> Option<usize> {
    // SAFETY: the call takes a number.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    if base == 0 {
        return None;
    }
    // SAFETY: the kernel has mapped a whole ELF image there, for the life of the process.
    unsafe { Image::at(base) }?.symbol(SYMBOL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_between_two_looks_at_the_c_librarys_clock() {
        let theirs = || {
            let mut time = libc::timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            // SAFETY: the call writes one timespec.
            unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
            time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
        };
        for _ in 0..1000 {
            let (before, now, after) = (theirs(), now_ns(), theirs());
            assert!(before <= now && now <= after, "{before} {now} {after}");
        }
    }

    /// Where the kernel gives a vDSO, each table of hashes leads to the function.
    #[test]
    fn the_function_of_the_vdso_is_found() {
        // SAFETY: the call takes a number.
        if unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } == 0 {
            println!("SKIP the_function_of_the_vdso_is_found: the kernel gives no vDSO");
            return;
        }
        let found = find().expect("the function");
        now_ns();
        assert_eq!(FUNCTION.load(Ordering::Relaxed), found);
    }
}
