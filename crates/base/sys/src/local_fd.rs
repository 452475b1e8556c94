//! Descriptors that a fork does not keep.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::os::fd::RawFd;
use std::sync::Once;

use crate::memfd::{self, FileStat};
use crate::unix::Fd;

/// Descriptors that a child closes right after fork. A link whose socket lived on in a child
/// would not end with its process. More than this many are not closed.
const FORK_FDS: usize = 8192;
static CLOSE_IN_CHILD: [Place; FORK_FDS] = [const { Place::new() }; FORK_FDS];
/// Places behind these were never taken.
static USED: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct Place {
    /// The descriptor and 1; or one of these.
    number: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

const FREE: i32 = 0;
const BEING_TAKEN: i32 = -1;

impl Place {
    const fn new() -> Self {
        Self {
            number: AtomicI32::new(FREE),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        }
    }

    fn take(&self, raw: RawFd, file: File) -> bool {
        let (acquired, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        let taken = self
            .number
            .compare_exchange(FREE, BEING_TAKEN, acquired, failed);
        if taken.is_ok() {
            self.device.store(file.device, Ordering::Relaxed);
            self.inode.store(file.inode, Ordering::Relaxed);
            self.number.store(raw + 1, Ordering::Release);
        }
        taken.is_ok()
    }

    fn free(&self) {
        self.number.store(FREE, Ordering::Release);
    }

    /// Closes the descriptor, and frees the place.
    fn close(&self) {
        let raw = self.number.load(Ordering::Acquire) - 1;
        let file = File {
            device: self.device.load(Ordering::Relaxed),
            inode: self.inode.load(Ordering::Relaxed),
        };
        self.free();
        if raw >= 0 && File::of(raw) == Some(file) {
            drop(Fd::own(raw));
        }
    }
}

/// What a number led to when it was noted. A program that closes all descriptors, as daemons do, closes these too, and
/// gets their numbers for files of its own, which are not to be closed. (Eventfds and their like are one file.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    device: u64,
    inode: u64,
}

impl File {
    fn of(raw: RawFd) -> Option<Self> {
        let FileStat { device, inode, .. } = memfd::stat(raw).ok()?;
        Some(Self { device, inode })
    }
}

/// As long as this lives, forks close a descriptor at once that somebody else owns. To be dropped
/// before the descriptor is closed, whose number may then be another's.
#[derive(Debug)]
pub struct ClosedInChildren {
    pid: u32,
    file: Option<File>,
    place: Option<&'static Place>,
}

impl ClosedInChildren {
    /// Has children close `raw`, which its owner must not use there, nor close.
    pub fn new(raw: RawFd) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| {
            // SAFETY: the handler is a function of this library that makes system calls only.
            unsafe { libc::pthread_atfork(None, None, Some(close_in_child)) };
        });
        let file = File::of(raw);
        let index = file.and_then(|file| {
            CLOSE_IN_CHILD
                .iter()
                .position(|place| place.take(raw, file))
        });
        if let Some(index) = index {
            USED.fetch_max(index + 1, Ordering::Relaxed);
        }
        Self {
            pid: std::process::id(),
            file,
            place: index.map(|index| &CLOSE_IN_CHILD[index]),
        }
    }

    /// Whether the number that this was made with may be somebody else's now: in a child of the process, where it was
    /// closed, and where the program has closed it itself.
    pub fn is_another(&self, raw: RawFd) -> bool {
        self.is_child() || File::of(raw) != self.file
    }

    fn is_child(&self) -> bool {
        self.pid != std::process::id()
    }
}

impl Drop for ClosedInChildren {
    fn drop(&mut self) {
        // In a child the place is free already, and may be taken again.
        if let Some(place) = self.place
            && !self.is_child()
        {
            place.free();
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
        if closed
            .as_ref()
            .is_some_and(|closed| closed.is_another(self.raw))
        {
            return;
        }
        drop(closed);
        drop(Fd::own(self.raw));
    }
}

extern "C" fn close_in_child() {
    // Pages that are not looked at need not be copied.
    for place in CLOSE_IN_CHILD.iter().take(USED.load(Ordering::Relaxed)) {
        place.close();
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

    #[test]
    fn a_file_that_has_got_the_number_is_not_closed() {
        let _children = crate::testing::with_children();
        let theirs = memfd::create(c"theirs").unwrap();
        let local = LocalFd::own(eventfd().unwrap());
        let number = local.raw();
        // SAFETY: the number stays open, as another file's.
        assert_eq!(unsafe { libc::dup2(theirs.raw(), number) }, number);
        assert_eq!(in_child(&[number]), 1);
        drop(local);
        assert_eq!(File::of(number), File::of(theirs.raw()));
        drop(Fd::own(number));
    }
}
