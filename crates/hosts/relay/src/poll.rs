//! epoll(7), through the C library.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Events of one system call.
const EVENTS_MAX: usize = 256;

/// What a watched descriptor is waited for; errors and hang-ups always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Until it is read, or accepted from.
    Readable,
    /// Until it can be written to: a connection that is being made.
    Writable,
}

/// What is to be done with a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// There is something to read, or the end of it.
    pub readable: bool,
    /// There is room.
    pub writable: bool,
    /// The peer will send no more (`EPOLLRDHUP`, `EPOLLHUP`).
    pub hung_up: bool,
    /// There is urgent data, which a read stops at (`EPOLLPRI`).
    pub urgent: bool,
    /// The socket has failed (`EPOLLERR`).
    pub failed: bool,
}

/// An epoll instance, and what the last wait found.
#[derive(Debug)]
pub(crate) struct Poll {
    instance: OwnedFd,
    events: Box<[libc::epoll_event; EVENTS_MAX]>,
    found: usize,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointers.
        let raw = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self {
            // SAFETY: the kernel gave this descriptor to nobody else.
            instance: unsafe { OwnedFd::from_raw_fd(raw) },
            events: Box::new([libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX]),
            found: 0,
        })
    }

    /// Everything, each time that something changes.
    pub fn add_edges(&self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        let reading = libc::EPOLLIN | libc::EPOLLPRI | libc::EPOLLRDHUP;
        let all = reading | libc::EPOLLOUT | libc::EPOLLET;
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), all, data)
    }

    /// As long as it is so.
    pub fn add_level(&self, fd: BorrowedFd<'_>, interest: Interest, data: u64) -> io::Result<()> {
        let events = level(Some(interest));
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), events, data)
    }

    /// From now on as long as it is so, or not at all, of a descriptor that was added.
    pub fn change_level(&self, fd: RawFd, interest: Option<Interest>, data: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, level(interest), data)
    }

    pub fn remove(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0)
    }

    fn control(&self, what: i32, fd: RawFd, events: i32, data: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: events as u32,
            u64: data,
        };
        // SAFETY: the event is a valid structure for the time of the call.
        let done = unsafe { libc::epoll_ctl(self.instance.as_raw_fd(), what, fd, &mut event) };
        check(done).map(drop)
    }

    /// None: until something happens. A signal ends the wait with nothing found.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.found = 0;
        // Rounded up: a wait must not come back just before its deadline, again and again.
        let timeout_ms = timeout.map_or(-1, |timeout| {
            let ms = timeout.as_nanos().div_ceil(1_000_000);
            i32::try_from(ms).unwrap_or(i32::MAX)
        });
        let instance = self.instance.as_raw_fd();
        let room = self.events.len() as i32;
        // SAFETY: the array has as many elements as are named, and lives for the call.
        let found =
            unsafe { libc::epoll_wait(instance, self.events.as_mut_ptr(), room, timeout_ms) };
        match check(found) {
            Ok(found) => self.found = usize::try_from(found).unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What the last wait found.
    pub fn found(&self) -> usize {
        self.found
    }

    /// The data and what is so, of one of those found.
    pub fn event(&self, index: usize) -> Option<(u64, Readiness)> {
        let event = self.events.get(..self.found)?.get(index)?;
        let (events, data) = (event.events as i32, event.u64);
        let any = |bits: i32| events & bits != 0;
        let failed = any(libc::EPOLLERR);
        let hung_up = any(libc::EPOLLRDHUP | libc::EPOLLHUP);
        let readiness = Readiness {
            readable: any(libc::EPOLLIN) || hung_up || failed,
            writable: any(libc::EPOLLOUT) || failed,
            hung_up,
            urgent: any(libc::EPOLLPRI),
            failed,
        };
        Some((data, readiness))
    }
}

const fn level(interest: Option<Interest>) -> i32 {
    match interest {
        Some(Interest::Readable) => libc::EPOLLIN,
        Some(Interest::Writable) => libc::EPOLLOUT,
        None => 0,
    }
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
