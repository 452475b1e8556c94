//! The clock, chance, locks and signals of this process.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::raw::{check, int, syscall0, syscall3};

/// Nanoseconds of the monotonic clock.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the C library writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// 16 random bytes.
pub fn random() -> Result<[u64; 2], Errno> {
    let mut bytes = [0u64; 2];
    // SAFETY: the kernel writes at most 16 bytes.
    let got = check(unsafe {
        syscall3(
            libc::SYS_getrandom,
            bytes.as_mut_ptr() as usize,
            size_of_val(&bytes),
            0,
        )
    })?;
    if got == 16 {
        Ok(bytes)
    } else {
        Err(Errno::AGAIN)
    }
}

/// Takes an exclusive lock of the open file description on one byte. `EAGAIN`: taken.
pub fn lock_byte(fd: RawFd, offset: u64, locked: bool) -> Result<(), Errno> {
    set_lock(
        fd,
        offset,
        if locked { libc::F_WRLCK } else { libc::F_UNLCK },
    )
}

/// Takes a lock that others may have at the same time. `EAGAIN`: somebody has an exclusive one.
pub fn share_byte(fd: RawFd, offset: u64) -> Result<(), Errno> {
    set_lock(fd, offset, libc::F_RDLCK)
}

fn set_lock(fd: RawFd, offset: u64, kind: libc::c_int) -> Result<(), Errno> {
    // SAFETY: `flock` is integers, for which zero is valid.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset as libc::off_t;
    lock.l_len = 1;
    // SAFETY: the kernel reads one `struct flock`.
    let ret = unsafe {
        syscall3(
            libc::SYS_fcntl,
            int(fd),
            int(libc::F_OFD_SETLK),
            &raw const lock as usize,
        )
    };
    check(ret).map(drop)
}

/// Blocks all signals of the calling thread, which is ours and must run no handler of the
/// program's.
pub fn block_signals() {
    // SAFETY: sigset_t is integers; sigfillset initialises it, pthread_sigmask reads it.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&raw mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
    }
}

/// The real user id.
pub fn uid() -> u32 {
    // SAFETY: getuid takes nothing and cannot fail.
    unsafe { syscall0(libc::SYS_getuid) as u32 }
}
