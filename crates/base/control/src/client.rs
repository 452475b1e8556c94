//! The program's end of the control socket.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use sluice_sys::errno::Errno;
use sluice_sys::memfd;
use sluice_sys::mount;
use sluice_sys::unix::{self, Credentials, Fd, Received};

use crate::message::{DecodeError, FromDaemon, MESSAGE_BYTES_MAX, Reason, ToDaemon};

/// A longer status document is not read. sluiced lists 65,536 ends at most, each in some 400
/// bytes.
pub const STATUS_BYTES_MAX: u64 = 64 << 20;

/// Whether the socket at `path`, which `server` serves, may be another container's: the kernel shows no
/// process of that number here, so that it is outside of this pid namespace, and `path` is mounted for writing
/// here, so probably in other containers, too. Whoever is root there and has no other privilege can put a
/// socket of his own in place of the host's.
pub fn may_be_a_containers(path: &[u8], server: Credentials) -> bool {
    server.pid == 0 && !mount::is_read_only(path).unwrap_or(false)
}

/// A connection to sluiced. No call blocks or allocates; all are raw system calls.
#[derive(Debug)]
pub struct Client {
    socket: Fd,
}

/// To wait for messages.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why nothing came from sluiced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// sluiced has closed the connection.
    Closed,
    /// The system call failed.
    System(Errno),
    /// sluiced sent something else than a message of this version.
    Message(DecodeError),
}

impl Client {
    /// Makes one attempt to connect to the socket at `path`.
    ///
    /// `ENOENT` or `ECONNREFUSED` when no sluiced serves it, `EAGAIN` when one does not accept
    /// any more, `EACCES` when it belongs to somebody else.
    pub fn connect(path: &[u8]) -> Result<Client, Errno> {
        let socket = unix::seqpacket()?;
        unix::connect(socket.raw(), path)?;
        Ok(Client { socket })
    }

    /// Continues with a connected socket, for example this process's end of a pair of which the
    /// other was sent with [`ToDaemon::Introduce`].
    pub fn from_socket(socket: Fd) -> Client {
        Client { socket }
    }

    /// The socket's number, owned by `self`.
    pub fn raw(&self) -> RawFd {
        self.socket.raw()
    }

    /// Gives the socket away.
    pub fn into_socket(self) -> Fd {
        self.socket
    }

    /// Sends `message`; the descriptors stay the caller's.
    ///
    /// `EAGAIN` when sluiced does not read, `EPIPE` or `ECONNRESET` when it is gone.
    pub fn send(&self, message: &ToDaemon, fds: &[RawFd]) -> Result<(), Errno> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let bytes = message.encode(&mut buffer);
        unix::send_with_fds(self.socket.raw(), bytes, fds).map(drop)
    }

    /// Takes the next message, if there is one, and the descriptors that came with it.
    ///
    /// A [`ReceiveError::Message`] concerns one message: the next call goes on behind it.
    pub fn receive(&self) -> Result<Option<(FromDaemon, Received)>, ReceiveError> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let mut received = unix::receive_with_fds(self.socket.raw(), &mut buffer);
        if matches!(received, Err(Errno(libc::ECONNRESET))) {
            // The kernel says once that messages of ours were not read. What sluiced sent
            // before it closed, above all a refusal, still waits behind that.
            received = unix::receive_with_fds(self.socket.raw(), &mut buffer);
        }
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(ReceiveError::System(errno)),
        };
        if received.len == 0 {
            return Err(ReceiveError::Closed);
        }
        if received.truncated {
            return Err(ReceiveError::Message(DecodeError::Length));
        }
        match FromDaemon::decode(&buffer[..received.len]) {
            Ok(message) => Ok(Some((message, received))),
            Err(error) => Err(ReceiveError::Message(error)),
        }
    }

    /// Waits for the next message, at most until `deadline`; for the command line.
    pub fn receive_until(&self, deadline: Instant) -> Result<(FromDaemon, Received), ClientError> {
        loop {
            // Before the look, so that an answer that comes while this thread stands still is not late.
            let left = deadline.saturating_duration_since(Instant::now());
            match self.receive() {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => {}
                Err(error) => return Err(error.into()),
            }
            if left.is_zero() {
                return Err(ClientError::Hung);
            }
            let left_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX - 1) + 1;
            match unix::wait_readable(self.raw(), left_ms) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(ClientError::System(errno)),
            }
        }
    }
}

/// Why a question to sluiced got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// Nobody listens at that path.
    NotRunning,
    /// It does not answer in time.
    Hung,
    /// It answered that it will not.
    Refused(Reason),
    /// Its release is another one.
    Version(u16),
    /// It answered something that makes no sense.
    Protocol,
    System(Errno),
}

impl From<ReceiveError> for ClientError {
    fn from(error: ReceiveError) -> ClientError {
        match error {
            ReceiveError::Closed => ClientError::NotRunning,
            ReceiveError::System(errno) => errno.into(),
            ReceiveError::Message(DecodeError::Version(theirs)) => ClientError::Version(theirs),
            ReceiveError::Message(_) => ClientError::Protocol,
        }
    }
}

impl From<Errno> for ClientError {
    fn from(errno: Errno) -> ClientError {
        match errno.0 {
            libc::ENOENT | libc::ECONNREFUSED | libc::ENOTDIR => ClientError::NotRunning,
            // Gone while we asked.
            libc::EPIPE | libc::ECONNRESET => ClientError::NotRunning,
            libc::EAGAIN => ClientError::Hung,
            _ => ClientError::System(errno),
        }
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning => f.write_str("no sluiced runs there; `sluice up` starts one"),
            Self::Hung => f.write_str("sluiced does not answer; end it and start it again"),
            Self::Refused(reason) => reason.fmt(f),
            Self::Version(theirs) => DecodeError::Version(*theirs).fmt(f),
            Self::Protocol => f.write_str("sluiced gave an answer that makes no sense"),
            Self::System(Errno(libc::EACCES)) => {
                f.write_str("the control socket belongs to another user (EACCES)")
            }
            Self::System(errno) => write!(f, "the control socket cannot be used: {errno}"),
        }
    }
}

impl std::error::Error for ClientError {}

/// What a living sluiced says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    pub pid: u32,
    pub clients: u32,
}

/// Asks whether a sluiced serves `path`, waiting at most `patience`.
pub fn ping(path: &Path, patience: Duration) -> Result<Alive, ClientError> {
    match ask(path, &ToDaemon::Ping, patience)?.0 {
        FromDaemon::Pong { pid, clients } => Ok(Alive { pid, clients }),
        _ => Err(ClientError::Protocol),
    }
}

/// Asks the sluiced at `path` to end, waiting at most `patience` for its consent.
pub fn shutdown(path: &Path, patience: Duration) -> Result<Alive, ClientError> {
    match ask(path, &ToDaemon::Shutdown, patience)?.0 {
        FromDaemon::Pong { pid, clients } => Ok(Alive { pid, clients }),
        _ => Err(ClientError::Protocol),
    }
}

/// Fetches the JSON document of `sluice status`, waiting at most `patience`.
pub fn status(path: &Path, patience: Duration) -> Result<Vec<u8>, ClientError> {
    let (answer, mut received) = ask(path, &ToDaemon::Status, patience)?;
    let FromDaemon::Report { bytes } = answer else {
        return Err(ClientError::Protocol);
    };
    let memory = received.take_fd(0).ok_or(ClientError::Protocol)?;
    // The size is sluiced's word, and the memory, which may be all holes, is sluiced's too.
    let bytes = bytes.min(memfd::stat(memory.raw())?.bytes);
    if bytes > STATUS_BYTES_MAX {
        return Err(ClientError::Protocol);
    }
    let bytes = usize::try_from(bytes).map_err(|_| ClientError::Protocol)?;
    let mut document = vec![0; bytes];
    let mut filled = 0;
    while filled < bytes {
        match memfd::read_at(memory.raw(), &mut document[filled..], filled as u64)? {
            0 => return Err(ClientError::Protocol),
            more => filled += more,
        }
    }
    Ok(document)
}

fn ask(
    path: &Path,
    question: &ToDaemon,
    patience: Duration,
) -> Result<(FromDaemon, Received), ClientError> {
    use std::os::unix::ffi::OsStrExt;
    let deadline = Instant::now() + patience;
    let client = Client::connect(path.as_os_str().as_bytes())?;
    match client.send(question, &[]) {
        // Closed already, and perhaps with a reason that can be read.
        Ok(()) | Err(Errno(libc::EPIPE | libc::ECONNRESET)) => {}
        Err(errno) => return Err(errno.into()),
    }
    match client.receive_until(deadline)? {
        (FromDaemon::Refused { reason }, _) => Err(ClientError::Refused(reason)),
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::VERSION;

    fn pair() -> (Client, Fd) {
        let (ours, daemon) = unix::seqpacket_pair().unwrap();
        (Client::from_socket(ours), daemon)
    }

    #[test]
    fn nothing_sent_is_nothing_received() {
        let (client, _daemon) = pair();
        assert!(client.receive().unwrap().is_none());
        let error = client.receive_until(Instant::now()).unwrap_err();
        assert_eq!(error, ClientError::Hung);
    }

    #[test]
    fn a_closed_daemon_is_seen() {
        let (client, daemon) = pair();
        drop(daemon);
        assert_eq!(client.receive().unwrap_err(), ReceiveError::Closed);
        assert_eq!(client.send(&ToDaemon::Ping, &[]), Err(Errno::PIPE));
    }

    #[test]
    fn a_bad_message_does_not_hide_the_next() {
        let (client, daemon) = pair();
        unix::send_with_fds(daemon.raw(), b"not a message", &[]).unwrap();
        let welcome = FromDaemon::Welcome {
            version: VERSION,
            client: 7,
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        unix::send_with_fds(daemon.raw(), welcome.encode(&mut buffer), &[]).unwrap();
        let error = client.receive().unwrap_err();
        assert_eq!(error, ReceiveError::Message(DecodeError::Magic));
        assert_eq!(client.receive().unwrap().unwrap().0, welcome);
    }

    #[test]
    fn a_refusal_is_read_though_the_daemon_has_closed_with_our_messages_unread() {
        let (client, daemon) = pair();
        client.send(&ToDaemon::Ping, &[]).unwrap();
        let refused = FromDaemon::Refused {
            reason: Reason::User,
        };
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        unix::send_with_fds(daemon.raw(), refused.encode(&mut buffer), &[]).unwrap();
        drop(daemon);
        assert_eq!(client.receive().unwrap().unwrap().0, refused);
        assert_eq!(client.receive().unwrap_err(), ReceiveError::Closed);
    }

    #[test]
    fn a_status_document_of_any_size_costs_little() {
        let path = std::env::temp_dir().join(format!("sluice-big-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = unix::seqpacket().unwrap();
        unix::bind(listener.raw(), path.to_str().unwrap().as_bytes()).unwrap();
        unix::listen(listener.raw(), 1).unwrap();
        let liar = std::thread::spawn(move || {
            unix::wait_readable(listener.raw(), 60_000).unwrap();
            let client = unix::accept(listener.raw()).unwrap();
            unix::wait_readable(client.raw(), 60_000).unwrap();
            let memory = memfd::create(c"sluice-lie").unwrap();
            memfd::set_len(memory.raw(), STATUS_BYTES_MAX + 1).unwrap();
            let mut buffer = [0; MESSAGE_BYTES_MAX];
            let report = FromDaemon::Report { bytes: u64::MAX };
            let bytes = report.encode(&mut buffer);
            unix::send_with_fds(client.raw(), bytes, &[memory.raw()]).unwrap();
        });
        let answer = status(&path, Duration::from_secs(60));
        liar.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(
            answer.map(|document| document.len()),
            Err(ClientError::Protocol)
        );
    }

    #[test]
    fn nobody_at_the_path_is_not_running() {
        let path = Path::new("/nonexistent/control.sock");
        let error = ping(path, Duration::from_secs(1)).unwrap_err();
        assert_eq!(error, ClientError::NotRunning);
    }
}
