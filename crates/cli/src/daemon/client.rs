//! Questions to a daemon, each with a bounded wait, and who it is that answers.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use sluice_control::client::{Client, ClientError, may_be_a_containers};
use sluice_control::files::DAEMON;
use sluice_control::message::gateway::{Ask, Name, Tell};
use sluice_control::message::{FromDaemon, ToDaemon};
use sluice_control::paths;
use sluice_sys::errno::Errno;
use sluice_sys::memfd;
use sluice_sys::unix::{self, Credentials, Received};

use super::{ANSWER_TIMEOUT, State};
use crate::error::{Failure, reason};
use crate::terminal::complain;

/// A status document is written for this many connections' ends and more; it may take a while.
const STATUS_TIMEOUT: Duration = ANSWER_TIMEOUT;
/// How often a daemon that has not answered yet is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// A longer document is not read. sluiced lists 65,536 ends at most, each in some 400 bytes.
const STATUS_BYTES_MAX: u64 = 64 << 20;

/// This user's control socket, where neither flag nor variable says otherwise.
pub fn usual_path() -> Result<PathBuf, Failure> {
    let place = paths::control_socket().map_err(|error| {
        // The error's own text says what to do after its semicolon.
        let text = error.to_string();
        let (what, hint) = text.split_once("; ").unwrap_or((
            &text,
            "set SLUICE_SOCKET to a path in a directory of your own",
        ));
        Failure::new(what, hint)
    })?;
    if let Some(warning) = place.warning() {
        complain(&format!("warning: {warning}"));
    }
    Ok(place.socket)
}

/// Looks who answers on `socket`, within [`ANSWER_TIMEOUT`].
pub fn probe(socket: &Path) -> State {
    match ask(socket, &ToDaemon::Ping, ANSWER_TIMEOUT) {
        Ok((FromDaemon::Pong { pid, .. }, _, peer)) => State::Running { pid, uid: peer.uid },
        Ok(_) => strange(),
        Err(state) => state,
    }
}

/// Fetches the status document. Returns the uid of the process that serves the socket as well.
pub fn fetch_status(socket: &Path) -> Result<(u32, Vec<u8>), State> {
    let (answer, mut received, peer) = ask(socket, &ToDaemon::Status, STATUS_TIMEOUT)?;
    let FromDaemon::Report { bytes } = answer else {
        return Err(strange());
    };
    let memory = received.take_fd(0).ok_or_else(strange)?;
    let unreadable = |errno: Errno| State::Unreachable(words(errno));
    // The daemon may be another user's: neither its word nor its file may cost us more memory
    // than this.
    let actual = memfd::stat(memory.raw()).map_err(unreadable)?.bytes;
    let bytes = bytes.min(actual);
    if bytes > STATUS_BYTES_MAX {
        return Err(State::Strange(format!(
            "its status document has {bytes} bytes, more than {STATUS_BYTES_MAX}"
        )));
    }
    let mut document = vec![0; usize::try_from(bytes).map_err(|_| strange())?];
    let mut filled = 0;
    while filled < document.len() {
        let read = memfd::read_at(memory.raw(), &mut document[filled..], filled as u64);
        match read.map_err(unreadable)? {
            0 => break,
            more => filled += more,
        }
    }
    document.truncate(filled);
    Ok((peer.uid, document))
}

/// Asks the daemon to end. It may take a moment after this returns.
pub fn shut_down(socket: &Path) -> Result<(), Failure> {
    match ask(socket, &ToDaemon::Shutdown, ANSWER_TIMEOUT) {
        Ok(_) => Ok(()),
        // It has ended before we asked, or while it was about to answer.
        Err(State::Absent | State::Stale) => Ok(()),
        Err(state) => Err(state.failure(socket)),
    }
}

/// Whether a daemon holds the lock of `socket`, which it does from before it listens until it has put its
/// socket away.
pub fn is_locked(socket: &Path) -> bool {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(paths::lock_of(socket));
    file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

/// Whether programs may use the gateway of that name by this daemon: whether `[node]` of its
/// configuration has it, and not whether its host is there now.
pub fn check_gateway(socket: &Path, gateway: &str) -> Result<(), Failure> {
    let unknown = || {
        Failure::new(
            format!(
                "the daemon on {} has no gateway '{gateway}'",
                socket.display()
            ),
            "write it into 'gateways' of [node] in the daemon's configuration ('sluice up --config')",
        )
    };
    let name = Name::new(gateway.as_bytes()).ok_or_else(unknown)?;
    let question = ToDaemon::Gateway(Ask::Way { gateway: name });
    match ask(socket, &question, ANSWER_TIMEOUT) {
        Ok((FromDaemon::Gateway(Tell::Way { errno, .. }), ..)) => {
            if i32::from(errno) == libc::EACCES {
                return Err(unknown());
            }
            Ok(())
        }
        Ok(_) => Err(strange().failure(socket)),
        Err(state) => Err(state.failure(socket)),
    }
}

fn strange() -> State {
    State::Strange("what answers there is no sluiced of this version".to_owned())
}

/// The kernel's words for an error number.
fn words(errno: Errno) -> String {
    reason(&std::io::Error::from_raw_os_error(errno.0))
}

fn ask(
    socket: &Path,
    question: &ToDaemon,
    patience: Duration,
) -> Result<(FromDaemon, Received, Credentials), State> {
    let deadline = Instant::now() + patience;
    check_directory(socket)?;
    let client = Client::connect(socket.as_os_str().as_bytes()).map_err(|errno| match errno.0 {
        libc::ENOENT | libc::ENOTDIR => State::Absent,
        libc::ECONNREFUSED => State::Stale,
        // Its backlog is full: it does not accept.
        libc::EAGAIN => State::Hung(None),
        _ => State::Unreachable(words(errno)),
    })?;
    let peer =
        unix::peer_credentials(client.raw()).map_err(|errno| State::Unreachable(words(errno)))?;
    let user = geteuid().as_raw();
    if user != 0 && peer.uid != 0 && peer.uid != user {
        return Err(State::WrongOwner(format!(
            "the daemon there belongs to uid {}, not to you or root",
            peer.uid
        )));
    }
    if may_be_a_containers(socket.as_os_str().as_bytes(), peer) {
        return Err(State::WrongOwner(format!(
            "the daemon there is outside of this container, and {} is mounted for writing, so that \
             another container may have put it there; mount its directory read-only in every container",
            socket.display()
        )));
    }
    // In another PID namespace it has no number.
    let pid = u32::try_from(peer.pid).ok().filter(|pid| *pid != 0);
    client
        .send(question, &[])
        .map_err(|errno| from_client(errno.into(), pid))?;
    loop {
        let next = deadline.min(Instant::now() + LOOK_AGAIN);
        match client.receive_until(next) {
            Ok((FromDaemon::Refused { reason }, _)) => return Err(State::Refused { reason, pid }),
            Ok((answer, received)) => return Ok((answer, received, peer)),
            Err(ClientError::Hung) if next < deadline => {
                if let Some(pid) = pid.filter(|pid| is_stopped(*pid)) {
                    return Err(State::Stopped(pid));
                }
            }
            Err(error) => return Err(from_client(error, pid)),
        }
    }
}

/// Whether the process is stopped by a signal (proc_pid_stat(5)).
fn is_stopped(pid: u32) -> bool {
    let about = fs::read_to_string(format!("/proc/{pid}/stat"));
    let state = about.ok().and_then(|text| {
        let (_, rest) = text.rsplit_once(')')?;
        rest.trim_start().chars().next()
    });
    state == Some('T')
}

/// The process, if it is a daemon: its number may be another's by now.
pub fn daemon_process(pid: u32) -> Option<OwnedFd> {
    let process = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.trim_end() == DAEMON).then_some(process)
}

/// `pid`: who listens.
fn from_client(error: ClientError, pid: Option<u32>) -> State {
    match error {
        ClientError::NotRunning => State::Stale,
        ClientError::Hung => State::Hung(pid),
        ClientError::Version(theirs) => State::OtherVersion { theirs, pid },
        ClientError::Refused(reason) => State::Refused { reason, pid },
        ClientError::Protocol => strange(),
        ClientError::System(errno) => State::Unreachable(words(errno)),
    }
}

/// Nobody but this user and root may be able to put another socket in this one's place.
fn check_directory(socket: &Path) -> Result<(), State> {
    let directory = match socket.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let Ok(metadata) = fs::metadata(directory) else {
        // Connecting says what is wrong.
        return Ok(());
    };
    let user = geteuid().as_raw();
    // Root looks at other users' daemons on purpose, with its eyes open.
    if user == 0 || metadata.uid() == 0 || metadata.uid() == user {
        return Ok(());
    }
    Err(State::WrongOwner(format!(
        "the directory {} belongs to uid {}, not to you or root",
        directory.display(),
        metadata.uid()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_control::message::VERSION;
    use std::os::unix::net::UnixListener;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("sluice-client-{}-{name}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
        fn socket(&self) -> PathBuf {
            self.0.join("control.sock")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn listen(path: &Path) -> unix::Fd {
        let socket = unix::seqpacket().unwrap();
        unix::bind(socket.raw(), path.as_os_str().as_bytes()).unwrap();
        unix::listen(socket.raw(), 8).unwrap();
        socket
    }

    #[test]
    fn no_socket_is_absent() {
        let scratch = Scratch::new("absent");
        assert_eq!(probe(&scratch.socket()), State::Absent);
    }

    #[test]
    fn a_socket_without_a_listener_is_stale() {
        let scratch = Scratch::new("stale");
        drop(listen(&scratch.socket()));
        // A child between fork and exec, of another test's, may have it for a while.
        let states = (0..60).map(|_| probe(&scratch.socket()));
        let state = states
            .into_iter()
            .find(|state| !matches!(state, State::Hung(_)));
        assert_eq!(state, Some(State::Stale));
    }

    #[test]
    fn a_listener_that_never_accepts_is_hung() {
        let scratch = Scratch::new("hung");
        let _listener = listen(&scratch.socket());
        let hung = State::Hung(Some(std::process::id()));
        assert_eq!(probe(&scratch.socket()), hung);
        assert_eq!(fetch_status(&scratch.socket()).unwrap_err(), hung);
    }

    #[test]
    fn another_kind_of_socket_is_unreachable() {
        let scratch = Scratch::new("stream");
        let _listener = UnixListener::bind(scratch.socket()).unwrap();
        assert!(matches!(probe(&scratch.socket()), State::Unreachable(_)));
    }

    /// Answers the first question on `listener` with `bytes`.
    fn answer_with(listener: unix::Fd, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
        std::thread::spawn(move || {
            unix::wait_readable(listener.raw(), 10_000).unwrap();
            let peer = unix::accept(listener.raw()).unwrap();
            unix::wait_readable(peer.raw(), 10_000).unwrap();
            let mut buffer = [0; 512];
            unix::receive_with_fds(peer.raw(), &mut buffer).unwrap();
            unix::send_with_fds(peer.raw(), &bytes, &[]).unwrap();
        })
    }

    #[test]
    fn another_version_is_named() {
        let scratch = Scratch::new("version");
        let mut buffer = [0; 512];
        let pong = FromDaemon::Pong { pid: 1, clients: 0 };
        let mut bytes = pong.encode(&mut buffer).to_vec();
        bytes[2..4].copy_from_slice(&(VERSION + 1).to_le_bytes());
        let thread = answer_with(listen(&scratch.socket()), bytes);
        let state = probe(&scratch.socket());
        thread.join().unwrap();
        let text = state.to_string();
        assert!(text.contains(&format!("version {}", VERSION + 1)), "{text}");
    }

    #[test]
    fn garbage_is_no_daemon() {
        let scratch = Scratch::new("garbage");
        let thread = answer_with(listen(&scratch.socket()), b"hello".to_vec());
        assert_eq!(probe(&scratch.socket()), strange());
        thread.join().unwrap();
    }

    #[test]
    fn a_report_without_its_memory_is_refused() {
        let scratch = Scratch::new("report");
        let mut buffer = [0; 512];
        let report = FromDaemon::Report { bytes: 1 << 60 };
        let bytes = report.encode(&mut buffer).to_vec();
        let thread = answer_with(listen(&scratch.socket()), bytes);
        assert_eq!(fetch_status(&scratch.socket()).unwrap_err(), strange());
        thread.join().unwrap();
    }
}
