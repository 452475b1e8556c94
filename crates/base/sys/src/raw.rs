//! The system call instruction itself.
//!
//! libc's `syscall` function is among those that the preload library interposes, so the other
//! files of this crate enter the kernel here and nowhere else. Nothing in this file reads or
//! writes the C library's `errno`.
#![allow(unsafe_code)]

use crate::errno::Errno;

/// Largest error number that the kernel encodes in a return value (`MAX_ERRNO` in its sources).
const ERRNO_MAX: isize = 4095;

/// Enters the kernel with six arguments and returns its raw answer: a result, or `-errno`.
///
/// # Safety
///
/// The call must be sound with these arguments: pointers are valid for what the kernel reads
/// and writes through them, and descriptors are the caller's to use or close.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn syscall6(
    nr: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 system call convention: number in rax, arguments in rdi, rsi, rdx, r10,
    // r8, r9, result in rax; the instruction overwrites rcx and r11. Memory effects are covered
    // by not declaring `nomem`; the caller vouches for the arguments.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") nr as isize => ret,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

/// Enters the kernel with six arguments and returns its raw answer: a result, or `-errno`.
///
/// # Safety
///
/// The call must be sound with these arguments: pointers are valid for what the kernel reads
/// and writes through them, and descriptors are the caller's to use or close.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn syscall6(
    nr: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let ret: isize;
    // SAFETY: the AArch64 system call convention: number in x8, arguments in x0 to x5, result in
    // x0, everything else kept. The caller vouches for the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") nr,
            inlateout("x0") a as isize => ret,
            in("x1") b,
            in("x2") c,
            in("x3") d,
            in("x4") e,
            in("x5") f,
            options(nostack)
        );
    }
    ret
}

macro_rules! shorter {
    ($($name:ident($($arg:ident),*; $($zero:literal),*);)*) => {$(
        /// [`syscall6`] with fewer arguments.
        ///
        /// # Safety
        ///
        /// As for [`syscall6`].
        #[inline]
        pub unsafe fn $name(nr: i64 $(, $arg: usize)*) -> isize {
            // SAFETY: the caller vouches for the arguments; the kernel ignores the unused ones.
            unsafe { syscall6(nr $(, $arg)* $(, $zero)*) }
        }
    )*};
}

shorter! {
    syscall0(; 0, 0, 0, 0, 0, 0);
    syscall1(a; 0, 0, 0, 0, 0);
    syscall2(a, b; 0, 0, 0, 0);
    syscall3(a, b, c; 0, 0, 0);
    syscall4(a, b, c, d; 0, 0);
    syscall5(a, b, c, d, e; 0);
}

/// Splits the kernel's raw answer into result and error.
#[inline]
pub fn check(ret: isize) -> Result<usize, Errno> {
    if (-ERRNO_MAX..0).contains(&ret) {
        Err(Errno(-ret as i32))
    } else {
        Ok(ret as usize)
    }
}

/// The argument for a descriptor (or another C `int`), sign-extended as the C ABI does it.
#[inline]
pub const fn int(value: i32) -> usize {
    value as isize as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getpid_agrees_with_std() {
        // SAFETY: getpid takes no argument and changes nothing.
        let pid = check(unsafe { syscall0(libc::SYS_getpid) });
        assert_eq!(pid, Ok(std::process::id() as usize));
    }

    #[test]
    fn an_unused_descriptor_gives_ebadf() {
        // SAFETY: closing a descriptor number that cannot exist changes nothing.
        let closed = check(unsafe { syscall1(libc::SYS_close, int(-1)) });
        assert_eq!(closed, Err(Errno::BADF));
    }

    #[test]
    fn only_the_errno_range_is_an_error() {
        assert_eq!(check(-1), Err(Errno(1)));
        assert_eq!(check(-4095), Err(Errno(4095)));
        assert_eq!(check(-4096), Ok(-4096_isize as usize));
        assert_eq!(check(0), Ok(0));
    }
}
