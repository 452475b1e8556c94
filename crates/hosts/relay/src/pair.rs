//! Two sockets, and what is on its way between them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::options::Options;
use crate::poll::Readiness;
use crate::socket;

/// Names a pair as long as it is there, and nothing afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PairId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// How a pair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Both streams have ended, and everything was passed on.
    Finished,
    /// An end was reset or has failed, and so the other was reset.
    Reset,
}

/// One of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

impl Side {
    pub const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// What a look at a pair came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing to do until the next event.
    Waiting,
    /// It had its turn and is not done.
    Again,
    Ended(End),
}

/// A socket and what is known of it.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    readable: bool,
    writable: bool,
    /// A read may have stopped before all that there is: at urgent data, or at what the stream has
    /// ended with.
    stops: bool,
    /// Reset, timed out, …: it takes no more, and nothing more will come.
    failed: bool,
}

impl Socket {
    const fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            readable: false,
            // An attempt shows if it is not, and an event follows.
            writable: true,
            stops: false,
            failed: false,
        }
    }

    fn add(&mut self, readiness: Readiness) {
        self.readable |= readiness.readable;
        self.writable |= readiness.writable;
        self.stops |= readiness.urgent || readiness.hung_up || readiness.failed;
        self.failed |= readiness.failed;
    }
}

/// One direction.
#[derive(Debug, Default)]
struct Stream {
    /// What was read and not taken yet: no more than one read's worth.
    waiting: Vec<u8>,
    /// Of these, how many were taken.
    taken: usize,
    /// The end was read.
    ended: bool,
    /// And passed on.
    passed_on: bool,
    bytes: u64,
}

/// Two connected sockets.
#[derive(Debug)]
pub(crate) struct Pair {
    left: Socket,
    right: Socket,
    rightward: Stream,
    leftward: Stream,
}

/// What moved, and what waits in buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// From left to right, and back.
    pub bytes: [u64; 2],
    /// Allocated less freed.
    pub buffered: isize,
}

/// Why a stream stopped moving.
enum Stop {
    /// No room, or nothing there.
    Blocked,
    /// It had its share.
    Share,
    Failed(Side),
}

impl Pair {
    pub const fn new(left: OwnedFd, right: OwnedFd) -> Self {
        const EMPTY: Stream = Stream {
            waiting: Vec::new(),
            taken: 0,
            ended: false,
            passed_on: false,
            bytes: 0,
        };
        Self {
            left: Socket::new(left),
            right: Socket::new(right),
            rightward: EMPTY,
            leftward: EMPTY,
        }
    }

    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.left.fd.as_fd(), self.right.fd.as_fd()]
    }

    /// From left to right, and back.
    pub const fn bytes(&self) -> [u64; 2] {
        [self.rightward.bytes, self.leftward.bytes]
    }

    /// What waits to be taken, and holds memory.
    pub fn buffered(&self) -> usize {
        self.rightward.waiting.len() + self.leftward.waiting.len()
    }

    pub fn heard(&mut self, side: Side, readiness: Readiness) {
        match side {
            Side::Left => self.left.add(readiness),
            Side::Right => self.right.add(readiness),
        }
    }

    /// Moves what can be moved, up to a share each way and a buffer's length more.
    pub fn go(&mut self, scratch: &mut [u8], options: &Options, moved: &mut Moved) -> Outcome {
        let mut again = false;
        for from in [Side::Left, Side::Right] {
            match self.stream(from, scratch, options, moved) {
                Stop::Blocked => {}
                Stop::Share => again = true,
                Stop::Failed(side) => self.socket(side).failed = true,
            }
        }
        for side in [Side::Left, Side::Right] {
            if self.socket(side).failed {
                // What it had sent before is in the kernel, and the other end may have it as far
                // as it takes it without waiting. Nothing more comes in, so this ends.
                while let Stop::Share = self.stream(side, scratch, options, moved) {}
                return Outcome::Ended(End::Reset);
            }
        }
        if self.rightward.passed_on && self.leftward.passed_on {
            return Outcome::Ended(End::Finished);
        }
        if again {
            Outcome::Again
        } else {
            Outcome::Waiting
        }
    }

    fn socket(&mut self, side: Side) -> &mut Socket {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    fn stream(
        &mut self,
        from: Side,
        scratch: &mut [u8],
        options: &Options,
        moved: &mut Moved,
    ) -> Stop {
        let (source, sink, stream, way) = match from {
            Side::Left => (&mut self.left, &mut self.right, &mut self.rightward, 0),
            Side::Right => (&mut self.right, &mut self.left, &mut self.leftward, 1),
        };
        let (before, held) = (stream.bytes, stream.waiting.len());
        let stop = stream.go(from, source, sink, scratch, options);
        if let Some(bytes) = moved.bytes.get_mut(way) {
            *bytes += stream.bytes - before;
        }
        moved.buffered += stream.waiting.len() as isize - held as isize;
        stop
    }
}

impl Stream {
    fn go(
        &mut self,
        from: Side,
        source: &mut Socket,
        sink: &mut Socket,
        scratch: &mut [u8],
        options: &Options,
    ) -> Stop {
        let mut share = options.share_bytes;
        loop {
            if self.passed_on {
                return Stop::Blocked;
            }
            if !sink.writable {
                return Stop::Blocked;
            }
            if let Some(waiting) = self.waiting.get(self.taken..)
                && !waiting.is_empty()
            {
                match write_all(sink, waiting) {
                    Ok(taken) => {
                        self.taken += taken;
                        self.bytes += taken as u64;
                    }
                    Err(_) => return Stop::Failed(from.other()),
                }
                if self.taken < self.waiting.len() {
                    return Stop::Blocked;
                }
                self.waiting = Vec::new();
                self.taken = 0;
            }
            if self.ended {
                // Fails if the sink has failed, which it says by itself.
                let _ = socket::end_of_stream(sink.fd.as_fd());
                self.passed_on = true;
                return Stop::Blocked;
            }
            if !source.readable {
                return Stop::Blocked;
            }
            if share == 0 {
                return Stop::Share;
            }
            let bytes = match socket::read(source.fd.as_fd(), scratch) {
                // The end, which a failed socket shows too once its error was taken.
                Ok(0) if source.failed => return Stop::Failed(from),
                Ok(0) => {
                    self.ended = true;
                    // Its end is not known to be there any more. Fails if the socket has failed.
                    let _ = socket::keep_alive_after(source.fd.as_fd(), options.half_closed_s);
                    continue;
                }
                Ok(count) => {
                    // Less than there was room for was all, and what comes behind it is an event
                    // of its own (epoll(7), question 9).
                    source.readable = count == scratch.len() || source.stops;
                    scratch.get(..count).unwrap_or_default()
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        source.readable = false;
                        return Stop::Blocked;
                    }
                    io::ErrorKind::Interrupted => continue,
                    _ => return Stop::Failed(from),
                },
            };
            share = share.saturating_sub(bytes.len());
            match write_all(sink, bytes) {
                Ok(taken) => {
                    self.bytes += taken as u64;
                    if let Some(rest) = bytes.get(taken..)
                        && !rest.is_empty()
                    {
                        self.waiting = rest.to_vec();
                        self.taken = 0;
                    }
                }
                Err(_) => return Stop::Failed(from.other()),
            }
        }
    }
}

/// How many of the bytes the socket took; it is not writable if these are not all.
fn write_all(sink: &mut Socket, bytes: &[u8]) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..)
        && !rest.is_empty()
    {
        match socket::write(sink.fd.as_fd(), rest) {
            Ok(count) => done += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => {
                    sink.writable = false;
                    break;
                }
                io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(done)
}
