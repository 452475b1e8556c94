//! The system calls of this crate.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall2, syscall3, syscall4, syscall6};
use sluice_sys::unix::Fd;

pub use sluice_sys::clock::now_ns;
pub use sluice_sys::local_fd::LocalFd;
pub use sluice_sys::process::random;
pub use sluice_sys::wake::{Epoll, drain, eventfd, ring};

/// Rings where a peer said. Its file is the peer's as well as ours, and so are the flags of the
/// file: one that has become blocking is not written to.
pub fn ring_foreign(eventfd: RawFd) {
    if is_non_blocking(eventfd) {
        ring(eventfd);
    }
}

/// Whether what a peer passed can be rung: a write to it neither waits nor raises a signal, as
/// one to a pipe would. `EPROTO` if not.
pub fn check_bell(fd: RawFd) -> Result<(), Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one `struct stat`, whose layout libc mirrors.
    check(unsafe { syscall2(libc::SYS_fstat, int(fd), stat.as_mut_ptr() as usize) })?;
    // SAFETY: zeroed, which is valid for its integers, and then filled.
    let mode = unsafe { stat.assume_init() }.st_mode;
    // Eventfds and their like have no type; pipes, sockets and files have one.
    if mode & libc::S_IFMT == 0 && is_non_blocking(fd) {
        Ok(())
    } else {
        Err(Errno::PROTO)
    }
}

fn is_non_blocking(fd: RawFd) -> bool {
    // SAFETY: F_GETFL takes integers only.
    let flags = check(unsafe { syscall3(libc::SYS_fcntl, int(fd), int(libc::F_GETFL), 0) });
    flags.is_ok_and(|flags| flags as i32 & libc::O_NONBLOCK != 0)
}

/// A handle of a process. What is asked of it is never answered for another process that has
/// got the same number since.
pub fn pidfd(pid: i32) -> Result<Fd, Errno> {
    // SAFETY: pidfd_open takes integers only.
    check(unsafe { syscall2(libc::SYS_pidfd_open, int(pid), 0) }).map(|fd| Fd::own(fd as RawFd))
}

/// Whether the number of the process is still its own: it lives, or nobody has waited for it.
pub fn has_pid(pidfd: RawFd) -> bool {
    // SAFETY: signal 0 sends nothing and asks only; no siginfo is passed.
    let asked = unsafe { syscall4(libc::SYS_pidfd_send_signal, int(pidfd), 0, 0, 0) };
    check(asked).is_ok()
}

/// `process_vm_writev` or `process_vm_readv`. Bytes moved, which may be fewer than asked for.
///
/// # Safety
/// The local pieces are readable (writev) or writable (readv) memory of this process.
pub unsafe fn process_vm(
    pid: i32,
    write: bool,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    let number = if write {
        libc::SYS_process_vm_writev
    } else {
        libc::SYS_process_vm_readv
    };
    // SAFETY: the caller vouches for the local pieces; the kernel checks the remote ones.
    check(unsafe {
        syscall6(
            number,
            int(pid),
            local.as_ptr() as usize,
            local.len(),
            remote.as_ptr() as usize,
            remote.len(),
            0,
        )
    })
}

/// Ends a connection for both sides; the descriptor stays open.
pub fn shutdown(socket: RawFd) {
    // SAFETY: shutdown takes integers only.
    let _ = unsafe { syscall2(libc::SYS_shutdown, int(socket), int(libc::SHUT_RDWR)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_does_not_answer_for_the_next_owner_of_a_pid() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let handle = pidfd(child.id() as i32).unwrap();
        assert!(has_pid(handle.raw()));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!has_pid(handle.raw()));
    }

    #[test]
    fn a_bell_that_has_become_blocking_is_not_rung() {
        let bell = eventfd().unwrap();
        assert_eq!(check_bell(bell.raw()), Ok(()));
        // SAFETY: F_SETFL takes integers only.
        unsafe { libc::fcntl(bell.raw(), libc::F_SETFL, 0) };
        assert_eq!(check_bell(bell.raw()), Err(Errno::PROTO));
        ring_foreign(bell.raw());
        // SAFETY: F_SETFL takes integers only.
        unsafe { libc::fcntl(bell.raw(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut value = 0u64;
        // SAFETY: the kernel writes 8 bytes.
        let got = unsafe { libc::read(bell.raw(), (&raw mut value).cast(), 8) };
        assert_eq!(got, -1, "{value}");
    }
}
