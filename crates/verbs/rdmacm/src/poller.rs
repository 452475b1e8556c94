//! epoll and eventfd, as thin as this module needs them.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use std::sync::Arc;

use sluice_sys::unix::Fd;

use super::{Errno, errno_of};

/// Descriptors reported by one wait.
const READY_MAX: usize = 64;

/// An eventfd used as a level: it is readable from [`Level::raise`] until [`Level::lower`].
pub struct Level(File);

impl Level {
    /// Close-on-exec, blocking unless a program changes that with `fcntl`.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: eventfd takes integers only.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(errno_of(&std::io::Error::last_os_error()));
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn raise(&self) {
        // Fails only when the counter is at its maximum: then it is raised.
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Call only while it is raised and nobody else lowers it: it would block.
    pub fn lower(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    /// Whether a program has set `O_NONBLOCK` on the descriptor.
    pub fn nonblocking(&self) -> bool {
        // SAFETY: F_GETFL takes no argument and reads no memory.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        flags >= 0 && flags & libc::O_NONBLOCK != 0
    }
}

/// Waits until `fd` is readable; `EINTR` when a signal handler ran.
pub fn wait_readable(fd: RawFd) -> Result<(), Errno> {
    let mut item = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `item` is one pollfd and lives through the call.
    if unsafe { libc::poll(&mut item, 1, -1) } < 0 {
        return Err(errno_of(&std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Runs `spawn` with every signal blocked, so that the thread it starts takes none of the
/// program's.
pub fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    let mut old = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises `all`; pthread_sigmask reads it and initialises `old`.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr());
    }
    let result = spawn();
    // SAFETY: `old` was initialised by the call above, which does not fail with valid
    // arguments.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut()) };
    result
}

/// An epoll instance whose descriptors carry a number.
pub struct Poller(OwnedFd);

impl Poller {
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: epoll_create1 takes integers only.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(errno_of(&std::io::Error::last_os_error()));
        }
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches `fd` for input and hang-up until the result is dropped.
    pub fn watch(self: &Arc<Self>, fd: Fd, number: u64) -> Result<Watched, Errno> {
        self.add(fd.raw(), number)?;
        let poller = Arc::clone(self);
        Ok(Watched { fd, poller })
    }

    /// Watches `fd` for input and hang-up as long as its file is open.
    pub fn add(&self, fd: RawFd, number: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        // SAFETY: the kernel reads `event`, which lives through the call.
        let ret =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        if ret < 0 {
            return Err(errno_of(&std::io::Error::last_os_error()));
        }
        Ok(())
    }

    /// The numbers that have something; none after `timeout_ms` or a signal. -1 waits
    /// for ever.
    pub fn wait(&self, timeout_ms: i32) -> Vec<u64> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // SAFETY: the kernel writes at most READY_MAX events into the array.
        let count = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                READY_MAX as i32,
                timeout_ms,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        events[..count].iter().map(|event| event.u64).collect()
    }
}

/// A descriptor that is taken out of the poller before it is closed. Closing alone is not
/// enough: a forked child may hold a copy, and epoll watches the file behind both.
pub struct Watched {
    fd: Fd,
    poller: Arc<Poller>,
}

impl Watched {
    pub fn raw(&self) -> RawFd {
        self.fd.raw()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: EPOLL_CTL_DEL reads no event.
        unsafe {
            libc::epoll_ctl(
                self.poller.0.as_raw_fd(),
                libc::EPOLL_CTL_DEL,
                self.fd.raw(),
                std::ptr::null_mut(),
            )
        };
    }
}
