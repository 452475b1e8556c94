//! The server.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, bind, listen, sendmsg, socket_with,
};

use super::{MEMORY, PEERS_MAX, VECTORS_MAX, VERSION};

/// Messages that a peer may leave unread: what a full house says to a newcomer, twice.
const QUEUE_MAX: usize = 2 * PEERS_MAX * VECTORS_MAX as usize;
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 128;
/// Rights of users other than the owner.
const OTHERS: u32 = 0o077;

/// Why the server cannot begin or go on.
#[derive(Debug)]
pub enum ServerError {
    /// Somebody listens at the socket.
    Taken(PathBuf),
    Socket(PathBuf, io::Error),
    Vectors(u32),
    Wait(io::Error),
}

impl core::fmt::Display for ServerError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ServerError::Taken(path) => {
                write!(f, "{}: another server listens there", path.display())
            }
            ServerError::Socket(path, error) => write!(f, "{}: {error}", path.display()),
            ServerError::Vectors(vectors) => {
                write!(f, "a peer has 1 to {VECTORS_MAX} vectors, not {vectors}")
            }
            ServerError::Wait(error) => write!(f, "cannot wait for peers: {error}"),
        }
    }
}

impl core::error::Error for ServerError {}

#[derive(Debug)]
struct Message {
    number: i64,
    fd: Option<Arc<OwnedFd>>,
}

#[derive(Debug)]
struct Peer {
    stream: UnixStream,
    bells: Vec<Arc<OwnedFd>>,
    /// What its socket had no room for.
    queue: VecDeque<Message>,
}

/// Gives one memory to everybody who connects. The socket's mode says who may.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: UnixListener,
    memory: Arc<OwnedFd>,
    vectors: u32,
    peers: BTreeMap<u16, Peer>,
    /// No descriptors are left: nobody is accepted until a peer has gone.
    full: bool,
}

impl Server {
    /// Listens at `path`, which only this user can reach. A socket that a dead server left there
    /// is replaced.
    pub fn new(path: &Path, memory: OwnedFd, vectors: u32) -> Result<Server, ServerError> {
        if !(1..=VECTORS_MAX).contains(&vectors) {
            return Err(ServerError::Vectors(vectors));
        }
        let fail = |error| ServerError::Socket(path.to_owned(), error);
        let socket = match bind_private(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                match UnixStream::connect(path) {
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Ok(_) => return Err(ServerError::Taken(path.to_owned())),
                    Err(error) => return Err(fail(error)),
                }
                std::fs::remove_file(path).map_err(fail)?;
                bind_private(path).map_err(fail)?
            }
            other => other.map_err(fail)?,
        };
        listen(&socket, BACKLOG).map_err(|error| fail(error.into()))?;
        let listener = UnixListener::from(socket);
        Ok(Server {
            path: path.to_owned(),
            listener,
            memory: Arc::new(memory),
            vectors,
            peers: BTreeMap::new(),
            full: false,
        })
    }

    /// Serves until `stop` is readable. `report` hears how many peers there are whenever that
    /// changes.
    pub fn run(
        &mut self,
        stop: BorrowedFd<'_>,
        mut report: impl FnMut(usize),
    ) -> Result<(), ServerError> {
        loop {
            let numbers: Vec<u16> = self.peers.keys().copied().collect();
            let mut polled = vec![
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::new(
                    &self.listener,
                    if self.full {
                        PollFlags::empty()
                    } else {
                        PollFlags::IN
                    },
                ),
            ];
            for peer in self.peers.values() {
                let mut events = PollFlags::IN;
                events.set(PollFlags::OUT, !peer.queue.is_empty());
                polled.push(PollFd::new(&peer.stream, events));
            }
            match poll(&mut polled, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(ServerError::Wait(error.into())),
            }
            let ready: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
            drop(polled);
            if !ready[0].is_empty() {
                return Ok(());
            }
            let before = self.peers.len();
            let mut gone = Vec::new();
            for (number, events) in numbers.iter().zip(&ready[2..]) {
                let Some(peer) = self.peers.get_mut(number) else {
                    continue;
                };
                let ended = events.intersects(PollFlags::HUP | PollFlags::ERR)
                    || events.contains(PollFlags::IN) && !peer.is_silent()
                    || !peer.flush();
                if ended {
                    gone.push(*number);
                }
            }
            self.remove(gone);
            let left = self.peers.len();
            if !ready[1].is_empty() {
                self.accept();
            }
            if self.peers.len() != before || left != before {
                report(self.peers.len());
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.admit(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, or of memory: the caller waits until a peer has gone.
                    self.full = matches!(
                        error.raw_os_error(),
                        Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)
                    );
                    return;
                }
            }
        }
    }

    /// Makes a peer of who connected, or hangs up where there is no room.
    fn admit(&mut self, stream: UnixStream) {
        let number = (0..PEERS_MAX as u16).find(|number| !self.peers.contains_key(number));
        let bells: Option<Vec<_>> = (0..self.vectors)
            .map(|_| {
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                    .ok()
                    .map(Arc::new)
            })
            .collect();
        let (Some(number), Some(bells), Ok(())) = (number, bells, stream.set_nonblocking(true))
        else {
            return;
        };
        let mut peer = Peer {
            stream,
            bells,
            queue: VecDeque::new(),
        };
        peer.say(VERSION, None);
        peer.say(i64::from(number), None);
        peer.say(MEMORY, Some(&self.memory));
        for (other, there) in &self.peers {
            peer.say_all(*other, &there.bells);
        }
        let bells = peer.bells.clone();
        peer.say_all(number, &bells);
        let mut gone = Vec::new();
        for (other, there) in &mut self.peers {
            there.say_all(number, &bells);
            if !there.flush() {
                gone.push(*other);
            }
        }
        if peer.flush() {
            self.peers.insert(number, peer);
        } else {
            // The others were told that it came.
            for there in self.peers.values_mut() {
                there.say(i64::from(number), None);
            }
        }
        self.remove(gone);
    }

    /// Forgets peers, and tells all others. Some of those may be found to be gone then.
    fn remove(&mut self, mut gone: Vec<u16>) {
        while let Some(number) = gone.pop() {
            if self.peers.remove(&number).is_none() {
                continue;
            }
            self.full = false;
            for (other, there) in &mut self.peers {
                there.say(i64::from(number), None);
                if !there.flush() {
                    gone.push(*other);
                }
            }
        }
    }
}

/// A socket with the name `path`, which does not listen yet. The file has its mode from the first moment: the kernel
/// takes the mode of the socket, less the umask (`unix_bind_bsd` in net/unix/af_unix.c). A mode that is set behind
/// bind(2) would be too late, because another user keeps a connection that he has made before.
fn bind_private(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    // A file system may give all its files one mode.
    if std::fs::symlink_metadata(path)?.mode() & OTHERS != 0 {
        let _ = std::fs::remove_file(path);
        return Err(io::Error::other(
            "this file system lets other users connect to a socket",
        ));
    }
    Ok(socket)
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone, or be somebody else's: then there is nothing to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Peer {
    fn say(&mut self, number: i64, fd: Option<&Arc<OwnedFd>>) {
        self.queue.push_back(Message {
            number,
            fd: fd.cloned(),
        });
    }

    fn say_all(&mut self, number: u16, bells: &[Arc<OwnedFd>]) {
        for bell in bells {
            self.say(i64::from(number), Some(bell));
        }
    }

    /// Whether there is nothing to read: peers have nothing to say, and their end reads as end.
    fn is_silent(&mut self) -> bool {
        let read = self.stream.read(&mut [0; 64]);
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends what there is room for. False: the peer is gone, or reads nothing.
    fn flush(&mut self) -> bool {
        while let Some(message) = self.queue.front() {
            match send(&self.stream, message) {
                Ok(8) => drop(self.queue.pop_front()),
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => break,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return false,
            }
        }
        self.queue.len() <= QUEUE_MAX
    }
}

fn send(stream: &UnixStream, message: &Message) -> Result<usize, Errno> {
    let bytes = message.number.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = message.fd.as_ref().map(|fd| [fd.as_fd()]);
    if let Some(fds) = &fds {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut control,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a umask of zero, where the mode is set behind bind(2), every user can connect in between.
    #[test]
    fn a_socket_is_private_from_its_first_moment_whatever_the_umask() {
        let path = std::env::temp_dir().join(format!("sluice-private-{}", std::process::id()));
        // Of the whole process; its other tests make no file whose mode matters.
        let umask = rustix::process::umask(Mode::empty());
        let socket = bind_private(&path).unwrap();
        rustix::process::umask(umask);
        let mode = std::fs::symlink_metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Nor does it take the owner's connections before it listens.
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        listen(&socket, BACKLOG).unwrap();
        UnixStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
