//! Sockets of the kernel's TCP, and waiting for them.
//!
//! All of it goes by libc's functions and not by system calls of our own, `close` and `epoll_wait`
//! too: in a program under `sluice run` these are what gives the connection a lane.
#![allow(unsafe_code)]

use core::mem::{ManuallyDrop, MaybeUninit};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use sluice_sys::local_fd::ClosedInChildren;
use socket2::{Domain, Protocol, SockAddr, Type};

/// Pieces of memory that one call of the kernel takes.
pub const PIECES_MAX: usize = 64;

/// A piece of memory for a call of the kernel. Whoever makes one sees to it that the memory is
/// there, and may be read or written, for as long as the call takes.
pub type Piece = libc::iovec;

/// A piece of `len` bytes.
pub fn piece(start: *mut u8, len: usize) -> Piece {
    Piece {
        iov_base: start.cast(),
        iov_len: len,
    }
}

/// A TCP socket that does not block. Children of a fork do not have it: a peer would not see the
/// end of the process.
#[derive(Debug)]
pub struct Socket {
    closed: Option<ClosedInChildren>,
    inner: ManuallyDrop<socket2::Socket>,
}

impl Socket {
    fn own(inner: socket2::Socket) -> io::Result<Self> {
        inner.set_nonblocking(true)?;
        Ok(Self {
            closed: Some(ClosedInChildren::new(inner.as_raw_fd())),
            inner: ManuallyDrop::new(inner),
        })
    }

    fn open(family: &SocketAddr) -> io::Result<socket2::Socket> {
        socket2::Socket::new(
            Domain::for_address(*family),
            Type::STREAM,
            Some(Protocol::TCP),
        )
    }

    /// One that takes connections. `v6_only`: an IPv6 wildcard takes no IPv4 connections.
    pub fn listening(address: SocketAddr, v6_only: bool, backlog: i32) -> io::Result<Self> {
        let socket = Self::open(&address)?;
        // As the kernel's own connection manager: an address is free when its listener has gone.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(v6_only)?;
        }
        socket.bind(&SockAddr::from(address))?;
        socket.listen(backlog)?;
        Self::own(socket)
    }

    /// One that is connecting.
    pub fn connecting(source: SocketAddr, destination: SocketAddr, tos: u8) -> io::Result<Self> {
        let socket = Self::open(&destination)?;
        let socket = Self::own(socket)?;
        if tos != 0 {
            match destination {
                SocketAddr::V4(_) => socket.inner.set_tos_v4(u32::from(tos))?,
                SocketAddr::V6(_) => socket.inner.set_tclass_v6(u32::from(tos))?,
            }
        }
        if source.is_ipv4() == destination.is_ipv4() {
            // Many may come from one port, to different peers.
            socket.inner.set_reuse_address(true)?;
            if let Err(error) = socket.inner.bind(&SockAddr::from(source)) {
                // A number that is free for RDMA may be another connection's of TCP.
                let in_use = error.raw_os_error() == Some(libc::EADDRINUSE);
                let mut source = source;
                source.set_port(0);
                match in_use {
                    true => socket.inner.bind(&SockAddr::from(source))?,
                    false => return Err(error),
                }
            }
        }
        socket.without_delay()?;
        match socket.inner.connect(&SockAddr::from(destination)) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            connected => connected.map(|()| socket),
        }
    }

    /// The next connection of a listener.
    pub fn accept(&self) -> io::Result<Self> {
        let (socket, _) = self.inner.accept()?;
        let socket = Self::own(socket)?;
        socket.without_delay()?;
        Ok(socket)
    }

    fn without_delay(&self) -> io::Result<()> {
        self.inner.set_tcp_nodelay(true)
    }

    pub fn raw(&self) -> RawFd {
        self.inner.as_raw_fd()
    }

    /// Our address.
    pub fn local(&self) -> io::Result<SocketAddr> {
        address(&self.inner.local_addr()?)
    }

    /// The peer's.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        address(&self.inner.peer_addr()?)
    }

    /// Why a connection was not made, if it was not.
    pub fn error(&self) -> io::Result<Option<io::Error>> {
        self.inner.take_error()
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> usize {
        // What every host takes (RFC 9293 §3.7.1), where the kernel does not say.
        self.inner.tcp_mss().map_or(536, |bytes| bytes as usize)
    }

    /// Sends of these pieces what the kernel takes. Raises no SIGPIPE.
    ///
    /// # Safety
    /// The pieces are readable during the call.
    pub unsafe fn send(&self, pieces: &[Piece]) -> io::Result<usize> {
        let message = message(pieces);
        // SAFETY: the header and the list live through the call, and by the caller's contract so
        // do the pieces.
        let sent = unsafe { libc::sendmsg(self.raw(), &raw const message, libc::MSG_NOSIGNAL) };
        count(sent)
    }

    /// Receives what there is, up to these pieces. 0 is the end.
    ///
    /// # Safety
    /// The pieces are writable during the call, and no reference to them is alive.
    pub unsafe fn receive(&self, pieces: &[Piece]) -> io::Result<usize> {
        let mut message = message(pieces);
        // SAFETY: the header and the list live through the call, and by the caller's contract the pieces are
        // writable and nobody's.
        count(unsafe { libc::recvmsg(self.raw(), &raw mut message, 0) })
    }

    /// Sends bytes of our own.
    pub fn send_bytes(&self, bytes: &[u8]) -> io::Result<usize> {
        // SAFETY: the bytes are readable while they are borrowed; nothing is written to them.
        unsafe { self.send(&[piece(bytes.as_ptr().cast_mut(), bytes.len())]) }
    }

    /// Receives into memory of our own.
    pub fn receive_bytes(&self, into: &mut [u8]) -> io::Result<usize> {
        // SAFETY: the bytes are ours alone while they are borrowed.
        unsafe { self.receive(&[piece(into.as_mut_ptr(), into.len())]) }
    }

    /// Nothing more is sent.
    pub fn finish(&self) {
        // An error says that the connection has gone already.
        let _ = self.inner.shutdown(Shutdown::Write);
    }

    /// Closing it resets the connection.
    pub fn reset_at_close(&self) {
        let _ = self.inner.set_linger(Some(core::time::Duration::ZERO));
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let closed = self.closed.take();
        if closed
            .as_ref()
            .is_some_and(|closed| closed.is_another(self.raw()))
        {
            return;
        }
        drop(closed);
        // SAFETY: it is not used behind this.
        unsafe { ManuallyDrop::drop(&mut self.inner) };
    }
}

fn address(address: &SockAddr) -> io::Result<SocketAddr> {
    address
        .as_socket()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}

fn message(pieces: &[Piece]) -> libc::msghdr {
    // SAFETY: all zeros is a valid value: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len() as _;
    message
}

fn count(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Whether a call failed only because there is nothing now, or no room.
pub fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// How many descriptors the process may have open now.
pub fn descriptors_max() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one limit, for which there is room.
    let got = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    match got {
        0 => usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX),
        _ => usize::MAX,
    }
}

/// What is waited for at a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// Something to read.
    pub input: bool,
    /// Room to write.
    pub output: bool,
    /// The peer's end, once.
    pub end: bool,
}

/// What was waited for, and came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    pub token: u64,
    /// Both directions are over, or the connection broke.
    pub hung: bool,
}

/// Sockets that are waited for.
#[derive(Debug)]
pub struct Poll {
    fd: OwnedFd,
    /// Children of a fork have another one, or none: theirs would be the parent's.
    _closed: ClosedInChildren,
}

impl Poll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain call, and its answer is ours if it is not negative.
        let fd = unsafe {
            let raw = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if raw < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(raw)
        };
        Ok(Self {
            _closed: ClosedInChildren::new(fd.as_raw_fd()),
            fd,
        })
    }

    fn control(&self, how: i32, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        let bits = [
            (interest.input, libc::EPOLLIN),
            (interest.output, libc::EPOLLOUT),
            (interest.end, libc::EPOLLRDHUP | libc::EPOLLONESHOT),
        ];
        let wanted = bits.iter().filter(|(wanted, _)| *wanted);
        let mut event = libc::epoll_event {
            events: wanted.fold(0, |all, (_, bit)| all | *bit as u32),
            u64: token,
        };
        // SAFETY: the kernel reads one event.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), how, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    pub fn add(&self, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, interest, token)
    }

    /// Something else is waited for.
    pub fn change(&self, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, interest, token)
    }

    pub fn remove(&self, fd: RawFd) {
        // One that is not there has nothing to come.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, Interest::default(), 0);
    }

    /// What is ready, after so many milliseconds at the latest; -1: no limit.
    pub fn wait<'a>(&self, ready: &'a mut Vec<Ready>, timeout_ms: i32) -> &'a [Ready] {
        let mut events = [const { MaybeUninit::<libc::epoll_event>::uninit() }; 64];
        // SAFETY: the kernel writes at most 64 events.
        let came = unsafe {
            libc::epoll_wait(
                self.fd.as_raw_fd(),
                events.as_mut_ptr().cast(),
                events.len() as i32,
                timeout_ms,
            )
        };
        ready.clear();
        for event in events.iter().take(usize::try_from(came).unwrap_or(0)) {
            // SAFETY: the kernel wrote as many.
            let event = unsafe { event.assume_init() };
            ready.push(Ready {
                token: event.u64,
                hung: event.events & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0,
            });
        }
        ready
    }
}

/// What a thread waits for: always, and if nobody else looks.
#[derive(Debug)]
pub struct Polls {
    always: Poll,
    all: Poll,
}

impl Polls {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            always: Poll::new()?,
            all: Poll::new()?,
        })
    }

    /// Waited for always.
    pub fn add(&self, fd: RawFd, interest: Interest, token: u64) -> io::Result<()> {
        self.always.add(fd, interest, token)?;
        self.all.add(fd, interest, token)
    }

    /// Something else is waited for, always.
    pub fn change(&self, fd: RawFd, interest: Interest, token: u64) {
        for poll in [&self.always, &self.all] {
            // One that is not there has gone.
            let _ = poll.change(fd, interest, token);
        }
    }

    pub fn remove(&self, fd: RawFd) {
        self.always.remove(fd);
        self.all.remove(fd);
    }

    /// For what is waited for only if nobody else looks.
    pub fn listening(&self) -> &Poll {
        &self.all
    }

    /// What is ready, after so many milliseconds at the latest; -1: no limit. `listens`: nobody
    /// else looks.
    pub fn wait<'a>(
        &self,
        ready: &'a mut Vec<Ready>,
        listens: bool,
        timeout_ms: i32,
    ) -> &'a [Ready] {
        let poll = if listens { &self.all } else { &self.always };
        poll.wait(ready, timeout_ms)
    }
}
