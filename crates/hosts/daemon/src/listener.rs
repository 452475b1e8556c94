//! The control socket's place in the file system: at most one sluiced serves it, and none
//! leaves anything behind.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use sluice_control::paths::{self, PathError};
use sluice_sys::errno::Errno;
use sluice_sys::unix::{self, Fd};

/// Programs that may wait to be accepted. sluiced accepts within microseconds; the number
/// matters when hundreds of processes start at once.
const BACKLOG: i32 = 1024;

/// How often to try again when another sluiced removes its lock file while we open it.
const LOCK_ATTEMPTS_MAX: usize = 16;

/// How long one that ends is waited for: it has the lock until it has put everything away, and answers
/// nobody any more.
const ENDING_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A listening control socket, with the lock that makes it the only one at its path.
#[derive(Debug)]
pub struct Listener {
    socket: Fd,
    path: PathBuf,
    /// Device and inode of the socket's file.
    file: (u64, u64),
    lock_path: PathBuf,
    mode: u32,
    /// Held for its lock.
    _lock: File,
}

/// Why the control socket cannot be served.
#[derive(Debug)]
pub enum ListenError {
    /// Another sluiced serves it.
    Taken(PathBuf),
    Directory(PathError),
    /// Something else is there, which is not ours to replace.
    Occupied(PathBuf, &'static str),
    Lock(PathBuf, io::Error),
    Socket(PathBuf, io::Error),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken(path) => write!(
                f,
                "another sluiced serves {}; use that one, or `sluice down` first",
                path.display()
            ),
            Self::Directory(error) => error.fmt(f),
            Self::Occupied(path, what) => write!(
                f,
                "{} is {what}; choose another --socket, or remove it",
                path.display()
            ),
            Self::Lock(path, error) => write!(
                f,
                "the lock file {} cannot be used: {error}; choose another --socket",
                path.display()
            ),
            Self::Socket(path, error) => write!(
                f,
                "cannot listen at {}: {error}; choose another --socket",
                path.display()
            ),
        }
    }
}

impl std::error::Error for ListenError {}

impl Listener {
    /// Locks `path` and listens there; whatever a dead sluiced left there is replaced.
    ///
    /// With `everybody` all users may connect; otherwise a directory that is made for it is private.
    /// One that was there keeps its mode.
    pub fn bind(path: &Path, everybody: bool) -> Result<Listener, ListenError> {
        let is_ours = paths::prepare_directory(path).map_err(ListenError::Directory)?;
        // Before there is a lock file: there is to be none beside the files of others.
        check_is_replaceable(path)?;
        let lock_path = paths::lock_of(path);
        let deadline = Instant::now() + ENDING_MAX;
        let lock = loop {
            match lock(&lock_path) {
                Ok(Some(lock)) => break lock,
                Ok(None) if !is_served(path) && Instant::now() < deadline => {
                    std::thread::sleep(LOOK_AGAIN);
                }
                Ok(None) => return Err(ListenError::Taken(path.into())),
                Err(error) => return Err(ListenError::Lock(lock_path, error)),
            }
        };
        let mode = if everybody { 0o666 } else { 0o600 };
        let (socket, file) = match listen(path, mode) {
            Ok(made) => made,
            Err(error) => {
                let _ = fs::remove_file(&lock_path);
                return Err(ListenError::Socket(path.into(), error));
            }
        };
        if everybody && let Some(directory) = path.parent() {
            open_to_everybody(directory, is_ours);
        }
        Ok(Listener {
            socket,
            path: path.into(),
            file,
            lock_path,
            mode,
            _lock: lock,
        })
    }

    /// The listening socket.
    pub fn socket(&self) -> &Fd {
        &self.socket
    }

    /// The next waiting connection; `EAGAIN` if there is none.
    pub fn accept(&self) -> Result<Fd, Errno> {
        unix::accept(self.socket.raw())
    }

    /// Refuses connections from now on. What had been connected before can still be accepted:
    /// the kernel decides each connect under the socket's lock, either way.
    pub fn refuse_new(&self) {
        if let Err(error) = shutdown(&self.socket, Shutdown::Both) {
            tracing::warn!(reason = %error, "cannot shut the control socket down: {error}");
        }
    }

    /// Listens anew, after [`Listener::refuse_new`] turned out to be premature.
    pub fn listen_again(&mut self) -> io::Result<()> {
        (self.socket, self.file) = listen(&self.path, self.mode)?;
        Ok(())
    }
}

/// Programs of other users must be able to reach the socket. A directory that was there is not ours
/// to change: it may be `/tmp`.
fn open_to_everybody(directory: &Path, is_ours: bool) {
    if is_ours {
        let _ = fs::set_permissions(directory, Permissions::from_mode(0o755));
    }
    let mode = fs::metadata(directory).map(|data| data.permissions().mode());
    if mode.is_ok_and(|mode| mode & 0o001 == 0) {
        let directory = directory.display();
        tracing::warn!("other users cannot enter {directory}: 'chmod 755 {directory}' lets them");
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // In this order, and with the lock held: no other sluiced makes either file meanwhile.
        // What somebody else has put there stays.
        if file_of(&self.path).is_ok_and(|there| there == self.file) {
            let _ = fs::remove_file(&self.path);
        }
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Device and inode of what is at `path`.
fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|there| (there.dev(), there.ino()))
}

/// Whether nothing is at `path`, or the socket of a sluiced. Only the lock tells whether that one
/// still runs; but a socket at which another kind of program listens is not ours.
fn check_is_replaceable(path: &Path) -> Result<(), ListenError> {
    let occupied = |what| Err(ListenError::Occupied(path.into(), what));
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ListenError::Socket(path.into(), error)),
        Ok(there) if !there.file_type().is_socket() => return occupied("not a socket"),
        Ok(_) => {}
    }
    let socket =
        unix::seqpacket().map_err(|error| ListenError::Socket(path.into(), error.into()))?;
    match unix::connect(socket.raw(), path.as_os_str().as_bytes()) {
        Err(Errno(libc::EPROTOTYPE)) => occupied("the socket of another program"),
        _ => Ok(()),
    }
}

/// Whether somebody listens there.
fn is_served(path: &Path) -> bool {
    let connect = |socket: Fd| unix::connect(socket.raw(), path.as_os_str().as_bytes());
    // A full backlog is somebody's, too.
    !matches!(
        unix::seqpacket().and_then(connect),
        Err(Errno(libc::ENOENT | libc::ECONNREFUSED))
    )
}

/// Takes the lock, unless another process has it. In a directory like `/tmp` everybody can make a file of
/// that name, hold its lock, or have it be a pipe that nobody reads.
fn lock(path: &Path) -> io::Result<Option<File>> {
    for _ in 0..LOCK_ATTEMPTS_MAX {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        let ours = file.metadata()?;
        if !ours.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        if ours.uid() != unix::effective_uid() {
            return Err(io::Error::other(format!(
                "it belongs to uid {}",
                ours.uid()
            )));
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // The former holder may have removed the file between our open and our lock, and then
        // the lock is on a file that nobody else will find.
        match fs::symlink_metadata(path) {
            Ok(there) if there.ino() == ours.ino() && there.dev() == ours.dev() => {
                return Ok(Some(file));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Listens at `path` under the lock. The socket gets its mode and its listening state under
/// another name, so that whoever finds it at `path` can use it.
fn listen(path: &Path, mode: u32) -> io::Result<(Fd, (u64, u64))> {
    let mut temporary = OsString::from(path);
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = unix::seqpacket()?;
    // Who has connected may be somebody else by the time that it asks for something.
    unix::pass_credentials(socket.raw())?;
    unix::bind(socket.raw(), temporary.as_os_str().as_bytes())?;
    let placed = fs::set_permissions(&temporary, Permissions::from_mode(mode))
        .and_then(|()| Ok(unix::listen(socket.raw(), BACKLOG)?))
        .and_then(|()| file_of(&temporary))
        .and_then(|file| fs::rename(&temporary, path).map(|()| file));
    match placed {
        Ok(file) => Ok((socket, file)),
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(error)
        }
    }
}
