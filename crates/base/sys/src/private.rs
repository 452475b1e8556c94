//! Descriptors of this process only.

use std::os::fd::RawFd;

use crate::unix::Fd;

/// A descriptor that only the process that opened it closes. A child of fork closes its copy by
/// number, and then the number may be somebody else's.
#[derive(Debug)]
pub struct Private {
    fd: Option<Fd>,
    raw: RawFd,
    pid: u32,
}

impl Private {
    pub fn own(fd: Fd) -> Self {
        Self {
            raw: fd.raw(),
            fd: Some(fd),
            pid: std::process::id(),
        }
    }

    pub const fn raw(&self) -> RawFd {
        self.raw
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if self.pid != std::process::id()
            && let Some(fd) = self.fd.take()
        {
            let _ = fd.into_raw();
        }
    }
}
