//! The plain TCP connection that does the same.

use crate::common::{self, kernel_recv, kernel_send};
use sluice_sys::errno::Errno;
use std::cell::Cell;

/// One end.
pub struct Plain {
    fd: i32,
    /// Bytes that it has written and read.
    pub sent: Cell<u64>,
    pub read: Cell<u64>,
}

impl Plain {
    pub fn pair() -> [Self; 2] {
        let (connected, accepted) = common::sockets();
        [connected, accepted].map(|fd| Self {
            fd,
            sent: Cell::new(0),
            read: Cell::new(0),
        })
    }

    /// One write that does not block.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let count = kernel_send(self.fd, bytes, libc::MSG_DONTWAIT)?;
        self.sent.set(self.sent.get() + count as u64);
        Ok(count)
    }

    /// One read that does not block.
    pub fn recv(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let count = kernel_recv(self.fd, buffer, libc::MSG_DONTWAIT)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }

    pub fn shutdown_write(&self) -> Result<(), Errno> {
        // SAFETY: no memory is passed.
        common::from_c(unsafe { libc::shutdown(self.fd, libc::SHUT_WR) } as isize).map(drop)
    }

    pub fn close(&self, reset: bool) {
        if reset {
            common::set_linger_zero(self.fd);
        }
        common::close(self.fd);
    }
}
