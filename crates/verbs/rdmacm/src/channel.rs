//! Event channels: a queue of events behind a descriptor that is readable while the
//! queue has something.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Errno;
use super::message::{ConnParams, PrivateData};
use super::poller::{self, Level};

/// Names an identifier inside the connection manager. Never used twice in a process.
pub type Key = u64;

/// `enum rdma_cm_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventKind {
    AddrResolved = 0,
    AddrError = 1,
    RouteResolved = 2,
    RouteError = 3,
    ConnectRequest = 4,
    ConnectResponse = 5,
    ConnectError = 6,
    Unreachable = 7,
    Rejected = 8,
    Established = 9,
    Disconnected = 10,
    DeviceRemoval = 11,
    MulticastJoin = 12,
    MulticastError = 13,
    AddrChange = 14,
    TimewaitExit = 15,
}

impl EventKind {
    /// Every kind, its name in the header and what `rdma_event_str` says.
    pub const ALL: &[(Self, &str, &std::ffi::CStr)] = &[
        (
            Self::AddrResolved,
            "RDMA_CM_EVENT_ADDR_RESOLVED",
            c"RDMA_CM_EVENT_ADDR_RESOLVED",
        ),
        (
            Self::AddrError,
            "RDMA_CM_EVENT_ADDR_ERROR",
            c"RDMA_CM_EVENT_ADDR_ERROR",
        ),
        (
            Self::RouteResolved,
            "RDMA_CM_EVENT_ROUTE_RESOLVED",
            c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        ),
        (
            Self::RouteError,
            "RDMA_CM_EVENT_ROUTE_ERROR",
            c"RDMA_CM_EVENT_ROUTE_ERROR",
        ),
        (
            Self::ConnectRequest,
            "RDMA_CM_EVENT_CONNECT_REQUEST",
            c"RDMA_CM_EVENT_CONNECT_REQUEST",
        ),
        (
            Self::ConnectResponse,
            "RDMA_CM_EVENT_CONNECT_RESPONSE",
            c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        ),
        (
            Self::ConnectError,
            "RDMA_CM_EVENT_CONNECT_ERROR",
            c"RDMA_CM_EVENT_CONNECT_ERROR",
        ),
        (
            Self::Unreachable,
            "RDMA_CM_EVENT_UNREACHABLE",
            c"RDMA_CM_EVENT_UNREACHABLE",
        ),
        (
            Self::Rejected,
            "RDMA_CM_EVENT_REJECTED",
            c"RDMA_CM_EVENT_REJECTED",
        ),
        (
            Self::Established,
            "RDMA_CM_EVENT_ESTABLISHED",
            c"RDMA_CM_EVENT_ESTABLISHED",
        ),
        (
            Self::Disconnected,
            "RDMA_CM_EVENT_DISCONNECTED",
            c"RDMA_CM_EVENT_DISCONNECTED",
        ),
        (
            Self::DeviceRemoval,
            "RDMA_CM_EVENT_DEVICE_REMOVAL",
            c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        ),
        (
            Self::MulticastJoin,
            "RDMA_CM_EVENT_MULTICAST_JOIN",
            c"RDMA_CM_EVENT_MULTICAST_JOIN",
        ),
        (
            Self::MulticastError,
            "RDMA_CM_EVENT_MULTICAST_ERROR",
            c"RDMA_CM_EVENT_MULTICAST_ERROR",
        ),
        (
            Self::AddrChange,
            "RDMA_CM_EVENT_ADDR_CHANGE",
            c"RDMA_CM_EVENT_ADDR_CHANGE",
        ),
        (
            Self::TimewaitExit,
            "RDMA_CM_EVENT_TIMEWAIT_EXIT",
            c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        ),
    ];
}

/// What an event brings along.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    None,
    /// The peer's view of a connection, as it came in REQ or REP.
    Connection {
        params: ConnParams,
        private: PrivateData,
    },
    /// Private data of a REJ.
    Reject {
        private: PrivateData,
    },
    /// A SIDR request, which has private data only.
    Lookup {
        private: PrivateData,
    },
    /// The answer to a SIDR request: where to send datagrams.
    Datagram {
        qp_num: u32,
        qkey: u32,
        gid: [u8; 16],
        private: PrivateData,
    },
    /// A joined group, and the program's context for it.
    Group {
        mgid: [u8; 16],
        qkey: u32,
        context: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub key: Key,
    /// For a connection request: whose.
    pub listener: Option<Key>,
    pub kind: EventKind,
    /// 0, a negative errno, or what rdma_get_cm_event(3) says for the kind.
    pub status: i32,
    pub body: Body,
}

impl Event {
    #[cfg(test)]
    pub fn new(key: Key, kind: EventKind) -> Self {
        Self::with(key, kind, 0, Body::None)
    }

    pub fn with(key: Key, kind: EventKind, status: i32, body: Body) -> Self {
        Self {
            key,
            listener: None,
            kind,
            status,
            body,
        }
    }
}

pub struct Channel {
    queue: Mutex<VecDeque<Event>>,
    /// Raised while the queue has something; changed under its lock only.
    level: Level,
}

impl Channel {
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            queue: Mutex::new(VecDeque::new()),
            level: Level::new()?,
        })
    }

    pub fn fd(&self) -> RawFd {
        self.level.fd()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn push(&self, event: Event) {
        let mut queue = self.queue();
        queue.push_back(event);
        if queue.len() == 1 {
            self.level.raise();
        }
    }

    pub fn try_next(&self) -> Option<Event> {
        let mut queue = self.queue();
        let event = queue.pop_front()?;
        if queue.is_empty() {
            self.level.lower();
        }
        Some(event)
    }

    /// The next event. Blocks, unless the descriptor is non-blocking (`EAGAIN`); `EINTR`
    /// when a signal handler ran.
    pub fn next(&self) -> Result<Event, Errno> {
        loop {
            if let Some(event) = self.try_next() {
                return Ok(event);
            }
            if self.level.nonblocking() {
                return Err(Errno::AGAIN);
            }
            poller::wait_readable(self.fd())?;
        }
    }

    /// Takes out every event that `wanted` picks, in order.
    pub fn take(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let mut queue = self.queue();
        let had = !queue.is_empty();
        let (taken, kept): (VecDeque<_>, VecDeque<_>) = queue.drain(..).partition(|e| wanted(e));
        *queue = kept;
        if had && queue.is_empty() {
            self.level.lower();
        }
        taken.into()
    }

    pub fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.queue().iter().filter(|event| wanted(event)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(channel: &Channel) -> bool {
        let mut item = libc::pollfd {
            fd: channel.fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd that lives through the call.
        unsafe { libc::poll(&mut item, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_while_events_wait() {
        let channel = Channel::new().unwrap();
        assert!(!readable(&channel));
        channel.push(Event::new(1, EventKind::AddrResolved));
        channel.push(Event::new(2, EventKind::AddrResolved));
        assert!(readable(&channel));
        assert_eq!(channel.next().unwrap().key, 1);
        assert!(readable(&channel));
        assert_eq!(channel.take(|event| event.key == 2).len(), 1);
        assert!(!readable(&channel));
        assert_eq!(channel.try_next(), None);
    }

    #[test]
    fn a_nonblocking_descriptor_answers_eagain() {
        let channel = Channel::new().unwrap();
        // SAFETY: F_SETFL takes an integer.
        unsafe { libc::fcntl(channel.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(channel.next(), Err(Errno::AGAIN));
    }

    #[test]
    fn a_waiting_thread_gets_what_is_pushed() {
        let channel = Channel::new().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| channel.next());
            channel.push(Event::new(7, EventKind::Established));
            assert_eq!(waiter.join().unwrap().unwrap().key, 7);
        });
    }
}
