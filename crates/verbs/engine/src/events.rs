//! Asynchronous events, and the fds that announce events.
//!
//! The fd is an eventfd in semaphore mode whose count is the number of queued events: readable
//! for poll and epoll (also edge-triggered: every event is a write), blocking or not as the
//! program sets it, and a read takes one event, so that several threads may wait.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use sluice_sys::errno::Errno;
use sluice_sys::raw;
use sluice_verbs_model::error::Result;
use sluice_verbs_model::types::EventType;

pub use sluice_verbs_model::events::{AsyncEvent, Element};

/// An eventfd in semaphore mode.
struct Semaphore {
    fd: RawFd,
}

impl Semaphore {
    fn new() -> Result<Semaphore> {
        let flags = libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE;
        // SAFETY: no pointers; the answer is a new descriptor of ours.
        let ret = unsafe { raw::syscall6(libc::SYS_eventfd2, 0, flags as usize, 0, 0, 0, 0) };
        let fd = raw::check(ret)? as RawFd;
        Ok(Semaphore { fd })
    }

    /// Cannot block: that takes 2⁶⁴ events.
    fn raise(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the kernel reads eight bytes from an array of eight.
        let ret = unsafe {
            let at = one.as_ptr() as usize;
            raw::syscall6(libc::SYS_write, self.fd as usize, at, 8, 0, 0, 0)
        };
        debug_assert!(ret == 8, "a write to an eventfd: {ret}");
    }

    /// Takes one, waiting for it unless the fd is non-blocking.
    ///
    /// This is libc's `read`, because programs end their event threads with `pthread_cancel` and
    /// rely on the wait being a cancellation point. Nothing here needs to be undone then.
    fn take(&self) -> Result<(), Errno> {
        let mut count = [0u8; 8];
        // SAFETY: the kernel writes at most eight bytes to an array of eight.
        let ret = unsafe { libc::read(self.fd, count.as_mut_ptr().cast(), count.len()) };
        if ret >= 0 {
            return Ok(());
        }
        let errno = std::io::Error::last_os_error().raw_os_error();
        Err(Errno(errno.unwrap_or(libc::EIO)))
    }

    /// Takes one if there is one.
    fn take_now(&self) {
        let mut count = [0u8; 8];
        let part = libc::iovec {
            iov_base: count.as_mut_ptr().cast(),
            iov_len: count.len(),
        };
        // SAFETY: one iovec that describes an array of eight bytes, both alive during the call.
        // Offset -1 is the fd's own position; RWF_NOWAIT never waits (preadv2(2)). Where the
        // kernel does not know it for eventfds, the count stays one too high, which `pop` bears.
        unsafe {
            raw::syscall6(
                libc::SYS_preadv2,
                self.fd as usize,
                &raw const part as usize,
                1,
                usize::MAX,
                usize::MAX,
                libc::RWF_NOWAIT as usize,
            );
        }
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let _ = sluice_sys::unix::close(self.fd);
    }
}

/// Events and their fd.
pub(crate) struct EventQueue<T> {
    semaphore: Semaphore,
    queue: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    pub fn new() -> Result<EventQueue<T>> {
        Ok(EventQueue {
            semaphore: Semaphore::new()?,
            queue: Mutex::new(VecDeque::new()),
        })
    }

    pub fn fd(&self) -> RawFd {
        self.semaphore.fd
    }

    pub fn push(&self, event: T) {
        // First the event, then its announcement: who is woken finds it.
        self.lock().push_back(event);
        self.semaphore.raise();
    }

    pub fn pop(&self) -> Result<T> {
        loop {
            self.semaphore.take()?;
            // None: the event's object was destroyed after it was announced.
            if let Some(event) = self.lock().pop_front() {
                return Ok(event);
            }
        }
    }

    /// Takes out the events of an object that is being destroyed.
    pub fn purge(&self, is_its: impl Fn(&T) -> bool) {
        let mut queue = self.lock();
        let before = queue.len();
        queue.retain(|event| !is_its(event));
        for _ in queue.len()..before {
            self.semaphore.take_now();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An object's cookie, and the events about it that the program got and acknowledged.
pub(crate) struct Acks {
    cookie: AtomicU64,
    counts: Mutex<Counts>,
    acknowledged: Condvar,
}

#[derive(Default)]
struct Counts {
    delivered: u64,
    acknowledged: u64,
}

impl Acks {
    pub fn new(cookie: u64) -> Arc<Acks> {
        Arc::new(Acks {
            cookie: AtomicU64::new(cookie),
            counts: Mutex::default(),
            acknowledged: Condvar::new(),
        })
    }

    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Acquire)
    }

    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Release);
    }

    fn delivered(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.delivered += 1;
    }

    pub fn acknowledge(&self, count: u64) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.acknowledged += count;
        self.acknowledged.notify_all();
    }

    /// Until the program has acknowledged every event that it got: the man pages of the destroy
    /// calls.
    pub fn wait(&self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        while counts.acknowledged < counts.delivered {
            counts = self
                .acknowledged
                .wait(counts)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The events of a completion channel: whose CQ they are about.
pub(crate) type ChannelQueue = EventQueue<Arc<Acks>>;

impl EventQueue<Arc<Acks>> {
    pub fn next(&self) -> Result<u64> {
        let acks = self.pop()?;
        acks.delivered();
        Ok(acks.cookie())
    }

    pub fn purge_of(&self, acks: &Arc<Acks>) {
        self.purge(|of| Arc::ptr_eq(of, acks));
    }
}

/// What an asynchronous event in the queue is about.
pub(crate) enum About {
    Cq(Arc<Acks>),
    Qp(Arc<Acks>),
    Srq(Arc<Acks>),
    Port(u8),
}

impl About {
    fn acks(&self) -> Option<&Arc<Acks>> {
        match self {
            About::Cq(acks) | About::Qp(acks) | About::Srq(acks) => Some(acks),
            About::Port(_) => None,
        }
    }
}

pub(crate) type AsyncQueue = EventQueue<(EventType, About)>;

impl EventQueue<(EventType, About)> {
    pub fn next(&self) -> Result<AsyncEvent> {
        let (event, about) = self.pop()?;
        if let Some(acks) = about.acks() {
            acks.delivered();
        }
        let element = match &about {
            About::Cq(acks) => Element::Cq(acks.cookie()),
            About::Qp(acks) => Element::Qp(acks.cookie()),
            About::Srq(acks) => Element::Srq(acks.cookie()),
            About::Port(port) => Element::Port(*port),
        };
        Ok(AsyncEvent { event, element })
    }

    pub fn purge_of(&self, acks: &Arc<Acks>) {
        self.purge(|(_, about)| about.acks().is_some_and(|of| Arc::ptr_eq(of, acks)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_verbs_model::error::Error;

    fn set_nonblocking(fd: RawFd) {
        // SAFETY: fcntl on a descriptor of ours, without pointers.
        let ret = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(ret, 0);
    }

    fn readable(fd: RawFd) -> bool {
        sluice_sys::unix::wait_readable(fd, 0).unwrap()
    }

    #[test]
    fn one_event_per_read_in_order() {
        let queue = EventQueue::new().unwrap();
        set_nonblocking(queue.fd());
        assert_eq!(queue.pop(), Err(Error::WouldBlock));
        queue.push(1);
        queue.push(2);
        assert!(readable(queue.fd()));
        assert_eq!(queue.pop(), Ok(1));
        assert!(readable(queue.fd()));
        assert_eq!(queue.pop(), Ok(2));
        assert!(!readable(queue.fd()));
        assert_eq!(queue.pop(), Err(Error::WouldBlock));
    }

    #[test]
    fn a_purged_event_is_not_announced() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        queue.push(2);
        queue.purge(|event| *event == 1);
        assert_eq!(queue.pop(), Ok(2));
        assert!(!readable(queue.fd()), "the count is the number of events");
    }

    #[test]
    fn a_blocked_reader_gets_the_event() {
        let queue = EventQueue::new().unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| queue.pop());
            queue.push(3);
            assert_eq!(reader.join().unwrap(), Ok(3));
        });
    }

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let acks = Acks::new(9);
        acks.wait();
        acks.delivered();
        acks.delivered();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acks.wait());
            acks.acknowledge(1);
            assert!(!waiter.is_finished());
            acks.acknowledge(1);
            waiter.join().unwrap();
        });
    }
}
