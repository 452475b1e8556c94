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

/// As long as this lives, forks close a descriptor at once that somebody else owns. To be dropped
/// before the descriptor is closed, whose number may then be another's.
#[derive(Debug)]
pub struct ClosedInChildren {
    pid: u32,
    place: Option<usize>,
}

impl ClosedInChildren {
    /// Has children close `raw`, which its owner must not use there, nor close.
    pub fn new(raw: RawFd) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler is a function of this library that makes system calls only.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let place = CLOSE_IN_CHILD.iter().position(|slot| {
            slot.compare_exchange(-1, raw, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        Self {
            pid: std::process::id(),
            place,
        }
    }

    /// Whether this is a child of the process that it was made in.
    pub fn is_child(&self) -> bool {
        self.pid != std::process::id()
    }
}

impl Drop for ClosedInChildren {
    fn drop(&mut self) {
        // In a child the place is free already, and may be taken again.
        if let Some(place) = self.place
            && !self.is_child()
        {
            CLOSE_IN_CHILD[place].store(-1, Ordering::Release);
        }
    }
}

/// A descriptor of this process only: forks close it at once.
#[derive(Debug)]
pub struct LocalFd {
    raw: RawFd,
    closed: Option<ClosedInChildren>,
}

impl LocalFd {
    pub fn own(fd: Fd) -> Self {
        let raw = fd.into_raw();
        Self {
            raw,
            closed: Some(ClosedInChildren::new(raw)),
        }
    }

    pub fn raw(&self) -> RawFd {
        self.raw
    }
}

impl Drop for LocalFd {
    fn drop(&mut self) {
        let closed = self.closed.take();
        // In a child the number was closed and may be somebody else's now.
        if closed.as_ref().is_some_and(ClosedInChildren::is_child) {
            return;
        }
        drop(closed);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wake::eventfd;

    /// Which of the descriptors a child of fork has, as bits.
    fn in_child(descriptors: &[RawFd]) -> i32 {
        // SAFETY: the child makes system calls only, which a fork of a process with threads may.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let open = |fd: &RawFd| i32::from(libc::fcntl(*fd, libc::F_GETFD) >= 0);
                libc::_exit(
                    descriptors
                        .iter()
                        .enumerate()
                        .fold(0, |bits, (n, fd)| bits | open(fd) << n),
                );
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn children_have_none_of_them() {
        let _children = crate::testing::with_children();
        let plain = eventfd().unwrap();
        let local = LocalFd::own(eventfd().unwrap());
        let lent = eventfd().unwrap();
        let descriptors = [plain.raw(), local.raw(), lent.raw()];
        assert_eq!(in_child(&descriptors), 0b111 & !0b010);
        let closed = ClosedInChildren::new(lent.raw());
        assert_eq!(in_child(&descriptors), 0b001);
        drop(closed);
        assert_eq!(in_child(&descriptors), 0b101);
    }
}
