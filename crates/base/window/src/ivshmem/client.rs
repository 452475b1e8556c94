//! The client: a program that wants the memory and the doorbells.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SocketAddrUnix, SocketFlags, SocketType, recv, recvmsg, socket_with,
};

use super::{MEMORY, PEERS_MAX, VECTORS_MAX, VERSION};

/// How long the server may take to say what it says at the beginning.
const HELLO_SECONDS: i64 = 5;

/// Why there is no connection, or none any more.
#[derive(Debug)]
pub enum ClientError {
    Connect(PathBuf, io::Error),
    /// The server went away.
    Gone,
    /// It said nothing for too long.
    Silent,
    /// It said what no server says.
    Protocol(&'static str),
    Io(io::Error),
}

impl core::fmt::Display for ClientError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ClientError::Connect(path, error) => write!(f, "{}: {error}", path.display()),
            ClientError::Gone => f.write_str("the ivshmem server has gone"),
            ClientError::Silent => f.write_str("the ivshmem server says nothing"),
            ClientError::Protocol(what) => write!(f, "the ivshmem server {what}"),
            ClientError::Io(error) => write!(f, "the ivshmem server cannot be heard: {error}"),
        }
    }
}

impl core::error::Error for ClientError {}

/// What changed among the peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A peer has one more doorbell than it had.
    Bell(u16),
    Gone(u16),
}

/// A connection to a server that has not given the memory yet.
#[derive(Debug)]
pub struct Greeting {
    stream: UnixStream,
    heard: Heard,
}

/// What the server has said so far.
#[derive(Clone, Copy, Debug)]
enum Heard {
    Nothing,
    Version,
    Number(u16),
}

/// What [`Greeting::advance`] came to.
#[derive(Debug)]
pub enum Greeted {
    /// The server has more to say.
    Waits(Greeting),
    Joined(Client),
}

impl Greeting {
    /// Connects, and does not wait: a server that accepts nobody is an error of connect(2).
    ///
    /// # Errors
    /// [`ClientError::Connect`].
    pub fn begin(path: &Path) -> Result<Greeting, ClientError> {
        let fail = |error| ClientError::Connect(path.to_owned(), error);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|error| fail(error.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|error| fail(error.into()))?;
        rustix::net::connect(&socket, &address).map_err(|error| fail(error.into()))?;
        Ok(Greeting {
            stream: UnixStream::from(socket),
            heard: Heard::Nothing,
        })
    }

    /// Hears what has come. Does not wait.
    ///
    /// # Errors
    /// The server has gone, or says what no server says.
    pub fn advance(mut self) -> Result<Greeted, ClientError> {
        loop {
            let Some(message) = receive(&self.stream)? else {
                return Ok(Greeted::Waits(self));
            };
            self.heard = match (self.heard, message) {
                (Heard::Nothing, (VERSION, None)) => Heard::Version,
                (Heard::Nothing, _) => {
                    return Err(ClientError::Protocol("speaks another version"));
                }
                (Heard::Version, (number, None)) => Heard::Number(peer(number)?),
                (Heard::Version, _) => {
                    return Err(ClientError::Protocol("sends a descriptor with a number"));
                }
                (Heard::Number(number), (MEMORY, Some(memory))) => {
                    return Ok(Greeted::Joined(Client {
                        stream: self.stream,
                        number,
                        memory,
                        bells: BTreeMap::new(),
                    }));
                }
                (Heard::Number(_), _) => return Err(ClientError::Protocol("sends no memory")),
            };
        }
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    number: u16,
    memory: OwnedFd,
    bells: BTreeMap<u16, Vec<OwnedFd>>,
}

impl Client {
    /// Connects, and waits for the own number and the memory.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let stream = UnixStream::connect(path)
            .map_err(|error| ClientError::Connect(path.to_owned(), error))?;
        let mut greeting = Greeting {
            stream,
            heard: Heard::Nothing,
        };
        loop {
            wait(&greeting.stream, HELLO_SECONDS)?;
            greeting = match greeting.advance()? {
                Greeted::Waits(greeting) => greeting,
                Greeted::Joined(client) => return Ok(client),
            };
        }
    }

    /// The memory, and what says for how long the server is there. Doorbells are given up.
    pub fn into_memory(self) -> (OwnedFd, Presence) {
        let stream = self.stream;
        (self.memory, Presence { stream })
    }

    /// This client's own number.
    pub fn number(&self) -> u16 {
        self.number
    }

    pub fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// A doorbell: written to wake its peer, or, the own ones, readable when somebody rang.
    pub fn bell(&self, peer: u16, vector: usize) -> Option<BorrowedFd<'_>> {
        Some(self.bells.get(&peer)?.get(vector)?.as_fd())
    }

    /// To wait for the next change.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// The next change, if one has come. Does not wait.
    pub fn change(&mut self) -> Result<Option<Change>, ClientError> {
        let Some((number, fd)) = receive(&self.stream)? else {
            return Ok(None);
        };
        let peer = peer(number)?;
        let Some(fd) = fd else {
            self.bells.remove(&peer);
            return Ok(Some(Change::Gone(peer)));
        };
        if self.bells.len() >= PEERS_MAX && !self.bells.contains_key(&peer) {
            return Err(ClientError::Protocol("names too many peers"));
        }
        let bells = self.bells.entry(peer).or_default();
        if bells.len() >= VECTORS_MAX as usize {
            return Err(ClientError::Protocol("names too many doorbells"));
        }
        bells.push(fd);
        Ok(Some(Change::Bell(peer)))
    }
}

/// A connection to a server that is kept to see when the server goes.
#[derive(Debug)]
pub struct Presence {
    stream: UnixStream,
}

impl Presence {
    /// Whether the server is there. Reads what it has said of peers, so many messages at most, and forgets it: a
    /// server hangs up on a client that reads nothing. The kernel closes the doorbells. Returns how many there were.
    /// Does not wait.
    ///
    /// # Errors
    /// The server has gone.
    pub fn check(&self, messages_max: usize) -> Result<usize, ClientError> {
        let mut bytes = [0; 64];
        for count in 0..messages_max {
            match recv(&self.stream, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return Err(ClientError::Gone),
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Ok(count),
                Err(error) => return Err(ClientError::Io(error.into())),
            }
        }
        Ok(messages_max)
    }
}

fn peer(number: i64) -> Result<u16, ClientError> {
    u16::try_from(number).map_err(|_| ClientError::Protocol("sends a number that is no peer's"))
}

fn wait(stream: &UnixStream, seconds: i64) -> Result<(), ClientError> {
    let limit = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    loop {
        let mut polled = [PollFd::new(stream, PollFlags::IN)];
        match poll(&mut polled, Some(&limit)) {
            Ok(0) => return Err(ClientError::Silent),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(ClientError::Io(error.into())),
        }
    }
}

/// One message, if one has come.
fn receive(stream: &UnixStream) -> Result<Option<(i64, Option<OwnedFd>)>, ClientError> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        flags,
    ) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(Errno::CONNRESET) => return Err(ClientError::Gone),
        Err(error) => return Err(ClientError::Io(error.into())),
    };
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match got.bytes {
        0 => Err(ClientError::Gone),
        8 if !got.flags.contains(ReturnFlags::CTRUNC) => Ok(Some((i64::from_le_bytes(bytes), fd))),
        8 => Err(ClientError::Protocol(
            "sent a descriptor that this process has no room for",
        )),
        _ => Err(ClientError::Protocol("sent a piece of a message")),
    }
}
