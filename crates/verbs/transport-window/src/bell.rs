//! How a host that sleeps is woken: by a named pipe (fifo(7)) beside the window, `PATH.bell.SLOT`.
//!
//! It works wherever hosts of a window share a kernel and the folder, whatever network namespaces
//! they are in, which sockets without a name in the file system do not. Where no pipe can be made
//! (a device's file, a folder that is not ours) sleepers look by themselves, now and then.
//!
//! A pipe is a hint and nothing else: whoever can write to it can wake its owner in vain.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Bytes taken from a pipe at a time.
const TAKEN: usize = 64;

/// One end of a pipe: the owner's to be woken by, or a peer's to ring.
#[derive(Debug)]
pub struct Bell(File);

fn name(window: &Path, slot: u32) -> PathBuf {
    let mut name = window.as_os_str().to_owned();
    name.push(format!(".bell.{slot}"));
    name.into()
}

impl Bell {
    /// This host's own, made if it is not there. None where there can be none.
    pub fn own(window: &Path, slot: u32) -> Option<Bell> {
        if window.starts_with("/sys") || window.starts_with("/dev/dax") {
            return None;
        }
        let path = name(window, slot);
        if let Some(bell) = Bell::open(&path) {
            // What rang for an earlier holder of the slot.
            bell.drain();
            return Some(bell);
        }
        let c_path = CString::new(path.as_os_str().as_bytes()).ok()?;
        make(&c_path).then(|| Bell::open(&path)).flatten()
    }

    /// A peer's. None: it has none.
    pub fn of(window: &Path, slot: u32) -> Option<Bell> {
        Bell::open(&name(window, slot))
    }

    /// For reading and writing, at either end: a pipe that nobody reads would end the program that
    /// writes to it by a signal.
    fn open(path: &Path) -> Option<Bell> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .ok()?;
        let is_pipe = file.metadata().ok()?.file_type().is_fifo();
        is_pipe.then_some(Bell(file))
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// A pipe that is full wakes as well.
    pub fn ring(&self) {
        let _ = (&self.0).write(&[1]);
    }

    /// Takes what rang. What is left wakes once more.
    pub fn drain(&self) {
        let mut bytes = [0; TAKEN];
        let _ = (&self.0).read(&mut bytes);
    }
}

#[allow(unsafe_code)]
fn make(path: &CString) -> bool {
    // SAFETY: a string that ends with 0.
    unsafe { libc::mkfifo(path.as_ptr(), 0o600) == 0 }
}
