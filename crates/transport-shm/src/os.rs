//! The system calls of this crate, and descriptors that a fork does not keep.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::RawFd;
use std::sync::Once;

use sluice_sys::errno::Errno;
use sluice_sys::raw::{check, int, syscall0, syscall1, syscall2, syscall3, syscall4, syscall6};
use sluice_sys::unix::Fd;

/// Descriptors that a child closes right after fork. A link whose socket lived on in a child
/// would not end with its process. More than this many are not closed.
const FORK_FDS: usize = 8192;
static CLOSE_IN_CHILD: [AtomicI32; FORK_FDS] = [const { AtomicI32::new(-1) }; FORK_FDS];

/// A descriptor of this process only: forks close it at once.
#[derive(Debug)]
pub struct LocalFd {
    raw: RawFd,
    pid: u32,
    place: Option<usize>,
}

impl LocalFd {
    pub fn own(fd: Fd) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler is a function of this library that makes system calls only.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let raw = fd.into_raw();
        let place = CLOSE_IN_CHILD.iter().position(|slot| {
            slot.compare_exchange(-1, raw, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        Self {
            raw,
            pid: std::process::id(),
            place,
        }
    }

    pub fn raw(&self) -> RawFd {
        self.raw
    }
}

impl Drop for LocalFd {
    fn drop(&mut self) {
        // In a child the number was closed and may be somebody else's now.
        if self.pid != std::process::id() {
            return;
        }
        if let Some(place) = self.place {
            CLOSE_IN_CHILD[place].store(-1, Ordering::Release);
        }
        drop(Fd::own(self.raw));
    }
}

extern "C" fn close_in_child() {
    for slot in &CLOSE_IN_CHILD {
        let raw = slot.swap(-1, Ordering::AcqRel);
        if raw >= 0 {
            drop(Fd::own(raw));
        }
    }
}

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

/// A non-blocking eventfd.
pub fn eventfd() -> Result<Fd, Errno> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    // SAFETY: eventfd2 takes integers only.
    check(unsafe { syscall2(libc::SYS_eventfd2, 0, int(flags)) }).map(|fd| Fd::own(fd as RawFd))
}

/// Adds one. A full counter is readable already, which is all that is wanted.
pub fn ring(eventfd: RawFd) {
    let one = 1u64;
    // SAFETY: the kernel reads 8 bytes from `one`.
    let _ = unsafe { syscall3(libc::SYS_write, int(eventfd), &raw const one as usize, 8) };
}

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

/// Makes an eventfd unreadable again.
pub fn drain(eventfd: RawFd) {
    let mut value = 0u64;
    // SAFETY: the kernel writes 8 bytes to `value`.
    let _ = unsafe { syscall3(libc::SYS_read, int(eventfd), &raw mut value as usize, 8) };
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
    let kind = if locked { libc::F_WRLCK } else { libc::F_UNLCK };
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

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll(LocalFd);

impl Epoll {
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: epoll_create1 takes an integer.
        let fd = check(unsafe { syscall1(libc::SYS_epoll_create1, int(libc::EPOLL_CLOEXEC)) })?;
        Ok(Self(LocalFd::own(Fd::own(fd as RawFd))))
    }

    /// Watches for something to read or the end; answers with `token`.
    pub fn add(&self, fd: RawFd, token: u64) -> Result<(), Errno> {
        let event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLRDHUP) as u32,
            u64: token,
        };
        // SAFETY: the kernel reads one event.
        let ret = unsafe {
            syscall4(
                libc::SYS_epoll_ctl,
                int(self.0.raw()),
                int(libc::EPOLL_CTL_ADD),
                int(fd),
                &raw const event as usize,
            )
        };
        check(ret).map(drop)
    }

    /// Stops watching. Closing alone would not do where a fork holds a copy.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: deletion takes no event.
        let _ = unsafe {
            syscall4(
                libc::SYS_epoll_ctl,
                int(self.0.raw()),
                int(libc::EPOLL_CTL_DEL),
                int(fd),
                0,
            )
        };
    }

    /// Waits at most `timeout_ns` (None: for ever) and gives the tokens of what is ready.
    pub fn wait<'a>(
        &self,
        tokens: &'a mut [u64; 64],
        timeout_ns: Option<u64>,
    ) -> Result<&'a [u64], Errno> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // Milliseconds rounded up, so that a timer is never early and never spun for.
        let timeout = match timeout_ns {
            None => -1,
            Some(ns) => i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX),
        };
        // SAFETY: the kernel writes at most 64 events; no signal mask is given.
        let ret = unsafe {
            syscall6(
                libc::SYS_epoll_pwait,
                int(self.0.raw()),
                events.as_mut_ptr() as usize,
                events.len(),
                int(timeout),
                0,
                8,
            )
        };
        let count = check(ret)?.min(events.len());
        for (token, event) in tokens.iter_mut().zip(&events[..count]) {
            *token = event.u64;
        }
        Ok(&tokens[..count])
    }
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
        // SAFETY: as above.
        unsafe { libc::fcntl(bell.raw(), libc::F_SETFL, libc::O_NONBLOCK) };
        let mut value = 0u64;
        // SAFETY: the kernel writes 8 bytes.
        let got = unsafe { libc::read(bell.raw(), (&raw mut value).cast(), 8) };
        assert_eq!(got, -1, "{value}");
    }
}
