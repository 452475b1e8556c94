//! Descriptors that a fork does not keep.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, Ordering};
use std::os::fd::RawFd;
use std::sync::Once;

use crate::unix::Fd;

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
