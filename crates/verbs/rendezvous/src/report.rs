//! What a process says of itself to whoever asks: a socket beside those of its blocks, and a thread
//! that answers. Who connects gets one message and the end of the connection; nothing is read, so
//! that nobody can keep the thread waiting. It sleeps as long as nobody asks.
//!
//! The name of the socket is claimed as blocks are, by a lock on a byte of the file `numbers`
//! behind theirs, and swept up with them. [`crate::survey`] is the other side.

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fs, io};

use sluice_sys::at_exit::{self, AtExit};
use sluice_sys::errno::Errno;
use sluice_sys::local_fd::LocalFd;
use sluice_sys::{process, unix};

use crate::{Rendezvous, check_peer, entries};

/// Bytes of an answer, at most: a message of a local socket holds more than that everywhere.
pub const ANSWER_BYTES_MAX: usize = 16 << 10;
/// The byte of number 0 in the file of locks; blocks are all below.
const FIRST_BYTE: u64 = 1 << 32;
/// Numbers that are tried. Two processes choose the same one of 2³² hardly ever.
const ATTEMPTS: u32 = 16;
/// Connections that wait while the process is stopped. The system's limit may be lower.
const BACKLOG: i32 = 4096;
/// How long nobody is accepted when that fails.
const PAUSE: Duration = Duration::from_secs(1);
/// Of the thread that answers.
const STACK_BYTES: usize = 128 << 10;

/// The name of a report's socket.
fn name_of(number: u32) -> String {
    format!("r{number}.sock")
}

/// The number of a report's socket.
pub(crate) fn report_of_socket(name: &str) -> Option<u32> {
    name.strip_prefix('r')?.strip_suffix(".sock")?.parse().ok()
}

/// The byte whose lock says that the owner of that number lives.
pub(crate) fn byte_of(number: u32) -> u64 {
    FIRST_BYTE + u64::from(number)
}

/// A process that can be asked, until it ends.
#[derive(Debug)]
pub struct Reporter {
    path: PathBuf,
    /// Has the lock of the number.
    rendezvous: Rendezvous,
    listener: LocalFd,
    /// The socket's own number, by which it is known again.
    inode: u64,
}

impl Reporter {
    /// From now on whoever is of this user, or root, and asks in the directory `path` gets what
    /// `answer` says then, cut to [`ANSWER_BYTES_MAX`]. `answer` is called by a thread of its own.
    /// A child of fork has no part in it.
    pub fn start(path: &Path, answer: impl Fn() -> Vec<u8> + Send + 'static) -> io::Result<()> {
        let rendezvous = Rendezvous::open(path)?;
        let (number, listener) =
            claim(&rendezvous).map_err(|error| io::Error::from_raw_os_error(error.0))?;
        sweep(&rendezvous, Some(number));
        let reporter = Arc::new(Self {
            path: path.join(name_of(number)),
            rendezvous,
            inode: inode(listener.raw())?,
            listener,
        });
        let duty: Weak<Self> = Arc::downgrade(&reporter);
        std::thread::Builder::new()
            .name("sluice-report".into())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                process::block_signals();
                while reporter.wait() {
                    reporter.answer_all(&answer);
                }
            })?;
        at_exit::remember(duty);
        Ok(())
    }

    /// Waits until somebody asks. False: there is no socket any more, because the program has
    /// closed what it did not open; the number may be a socket of its own by now.
    fn wait(&self) -> bool {
        // An interrupted wait looks in vain.
        let _ = unix::wait_readable(self.listener.raw(), -1);
        inode(self.listener.raw()).is_ok_and(|inode| inode == self.inode)
    }

    /// Answers those who wait.
    fn answer_all(&self, answer: &dyn Fn() -> Vec<u8>) {
        loop {
            let socket = match unix::accept(self.listener.raw()) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno(libc::ECONNABORTED | libc::EINTR)) => continue,
                Err(_) => {
                    // No descriptors or no memory, and who waits keeps the socket readable: the
                    // program gets no busy thread for that.
                    std::thread::sleep(PAUSE);
                    return;
                }
            };
            if check_peer(socket.raw()).is_err() {
                continue;
            }
            let mut bytes = answer();
            bytes.truncate(ANSWER_BYTES_MAX);
            // Who has gone does not miss it.
            let _ = unix::send_with_fds(socket.raw(), &bytes, &[]);
        }
    }
}

impl AtExit for Reporter {
    fn leave(&self) {
        debug_assert!(self.path.starts_with(self.rendezvous.path()));
        let _ = fs::remove_file(&self.path);
    }
}

/// The number of the file behind a descriptor.
fn inode(descriptor: i32) -> io::Result<u64> {
    fs::metadata(format!("/proc/self/fd/{descriptor}")).map(|metadata| metadata.ino())
}

/// A number of this process's own, and its socket.
fn claim(rendezvous: &Rendezvous) -> Result<(u32, LocalFd), Errno> {
    for _ in 0..ATTEMPTS {
        let number = process::random()?[0] as u32;
        match process::lock_byte(rendezvous.numbers.raw(), byte_of(number), true) {
            Ok(()) => {}
            Err(Errno::AGAIN) => continue,
            Err(error) => return Err(error),
        }
        let path = rendezvous.path.join(name_of(number));
        // Of one with that number that was killed.
        let _ = fs::remove_file(&path);
        let socket = unix::seqpacket()?;
        unix::bind(socket.as_raw_fd(), path.as_os_str().as_bytes())?;
        unix::listen(socket.as_raw_fd(), BACKLOG)?;
        return Ok((number, LocalFd::own(socket)));
    }
    Err(Errno(libc::ENOSPC))
}

/// Takes away what killed processes have left. `own`: a number that is locked by this very open
/// file, which would be granted the lock once more.
pub(crate) fn sweep(rendezvous: &Rendezvous, own: Option<u32>) {
    let numbers = rendezvous.numbers.raw();
    for name in entries(&rendezvous.path) {
        let Some(number) = report_of_socket(&name).filter(|number| Some(*number) != own) else {
            continue;
        };
        if process::lock_byte(numbers, byte_of(number), true).is_ok() {
            let _ = fs::remove_file(rendezvous.path.join(&name));
            let _ = process::lock_byte(numbers, byte_of(number), false);
        }
    }
}
