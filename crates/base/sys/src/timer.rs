//! A timer that can be waited for like a socket (timerfd_create(2)).
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use crate::errno::Errno;
use crate::local_fd::LocalFd;
use crate::raw::{check, int, syscall2, syscall4};
use crate::unix::Fd;

/// One timer.
#[derive(Debug)]
pub struct Timer {
    descriptor: LocalFd,
    is_set: bool,
}

impl Timer {
    /// A timer that is not set.
    pub fn new() -> Result<Self, Errno> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: timerfd_create takes integers only.
        let made = check(unsafe {
            syscall2(
                libc::SYS_timerfd_create,
                int(libc::CLOCK_MONOTONIC),
                int(flags),
            )
        })?;
        Ok(Self {
            descriptor: LocalFd::own(Fd::own(made as RawFd)),
            is_set: false,
        })
    }

    /// Readable from so many nanoseconds from now on.
    pub fn set(&mut self, ns: u64) {
        self.is_set = true;
        // Zero would mean never.
        self.write(ns.max(1));
    }

    /// Not readable.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.is_set) {
            self.write(0);
        }
    }

    fn write(&self, ns: u64) {
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let setting = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            },
        };
        // SAFETY: the kernel reads one itimerspec; null says that the old one is not wanted. It
        // refuses only what is no time or no timer.
        let _ = unsafe {
            syscall4(
                libc::SYS_timerfd_settime,
                int(self.descriptor.raw()),
                0,
                &raw const setting as usize,
                0,
            )
        };
    }

    /// To wait for.
    pub fn raw(&self) -> RawFd {
        self.descriptor.raw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix::wait_readable;

    #[test]
    fn it_is_readable_from_its_time_on_until_it_is_cleared() {
        let mut timer = Timer::new().unwrap();
        assert_eq!(wait_readable(timer.raw(), 0), Ok(false));
        timer.set(0);
        assert_eq!(wait_readable(timer.raw(), 60_000), Ok(true));
        timer.clear();
        assert_eq!(wait_readable(timer.raw(), 0), Ok(false));
        timer.set(3_600_000_000_000);
        assert_eq!(wait_readable(timer.raw(), 0), Ok(false));
    }
}
