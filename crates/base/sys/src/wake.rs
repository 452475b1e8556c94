//! Waking a thread, and waiting: eventfds and epoll.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::local_fd::LocalFd;
use crate::raw::{check, int, syscall1, syscall2, syscall3, syscall4, syscall6};
use crate::unix::Fd;

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

/// Makes an eventfd unreadable again.
pub fn drain(eventfd: RawFd) {
    let mut value = 0u64;
    // SAFETY: the kernel writes 8 bytes to `value`.
    let _ = unsafe { syscall3(libc::SYS_read, int(eventfd), &raw mut value as usize, 8) };
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

    /// For another instance to watch this one.
    pub fn raw(&self) -> RawFd {
        self.0.raw()
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
