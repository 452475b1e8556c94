//! Messages to standard error, if `SLUICE_LOG` asks for them. Formatting happens on the stack.
//!
//! A program may close its standard error, and then a connection or a data file can get that number. So messages go only to
//! the file that was standard error at the start, or to one that is open for appending, as logs are.
#![allow(unsafe_code)]

use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sluice_sys::raw;

/// How much is printed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Level {
    /// Nothing; the default.
    Off = 0,
    /// What keeps connections on TCP unexpectedly.
    Warn = 1,
    /// Each connection's life.
    Info = 2,
    /// Decisions.
    Debug = 3,
}

static LEVEL: AtomicU32 = AtomicU32::new(0);

/// Device and inode of what was standard error when the library was loaded; zeroes if nothing was.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Reads `SLUICE_LOG`, and looks at standard error.
pub fn load() {
    let [device, inode] = identity(libc::STDERR_FILENO).unwrap_or_default();
    STDERR[0].store(device, Ordering::Relaxed);
    STDERR[1].store(inode, Ordering::Relaxed);
    let level = match crate::config::variable(c"SLUICE_LOG").map(|v| v.to_bytes()) {
        Some(b"warn") => Level::Warn,
        Some(b"info") => Level::Info,
        Some(b"debug" | b"trace") => Level::Debug,
        _ => Level::Off,
    };
    LEVEL.store(level as u32, Ordering::Relaxed);
}

/// Whether messages of this level are printed.
pub fn enabled(level: Level) -> bool {
    LEVEL.load(Ordering::Relaxed) >= level as u32 && !crate::this_process::is_sandboxed()
}

/// Device and inode of an open file.
fn identity(fd: i32) -> Option<[u64; 2]> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes no more than a `stat`.
    raw::check(unsafe { raw::syscall2(libc::SYS_fstat, raw::int(fd), stat.as_mut_ptr() as usize) })
        .ok()?;
    // SAFETY: the call has succeeded, and so written all of it.
    let stat = unsafe { stat.assume_init() };
    Some([stat.st_dev, stat.st_ino])
}

/// Whether what has the number of standard error is that, or a log that the program has put there.
fn is_stderr() -> bool {
    let known = [0, 1].map(|at| STDERR[at].load(Ordering::Relaxed));
    let is_same = identity(libc::STDERR_FILENO).is_some_and(|now| now == known);
    let flags = || {
        // SAFETY: F_GETFL takes and returns numbers.
        let flags = unsafe {
            raw::syscall2(
                libc::SYS_fcntl,
                raw::int(libc::STDERR_FILENO),
                libc::F_GETFL as usize,
            )
        };
        raw::check(flags)
    };
    is_same || flags().is_ok_and(|flags| flags as i32 & libc::O_APPEND != 0)
}

/// A line that grows on the stack, cut to 255 bytes.
pub struct Line {
    bytes: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.len < self.bytes.len() - 1 {
                self.bytes[self.len] = byte;
                self.len += 1;
            }
        }
        Ok(())
    }
}

impl Line {
    /// An empty line.
    #[allow(clippy::new_without_default)] // Nothing has a use for a default.
    pub const fn new() -> Line {
        Line {
            bytes: [0; 256],
            len: 0,
        }
    }

    /// Writes the line with its end to standard error. A failed write has nowhere to be reported.
    pub fn write_to_stderr(self) {
        if is_stderr() {
            self.write_to(libc::STDERR_FILENO);
        }
    }

    /// The same to a descriptor.
    pub fn write_to(mut self, fd: i32) {
        self.bytes[self.len] = b'\n';
        // SAFETY: the bytes live on this stack.
        unsafe {
            raw::syscall3(
                libc::SYS_write,
                raw::int(fd),
                self.bytes.as_ptr() as usize,
                self.len + 1,
            );
        }
    }
}

/// Prints one line, cut to 255 bytes.
pub fn print(message: fmt::Arguments) {
    let mut line = Line::new();
    let pid = crate::this_process::pid();
    let _ = write!(line, "sluice[{pid}]: {message}");
    line.write_to_stderr();
}

/// Prints a message of a level, if that level is on.
#[macro_export]
macro_rules! log {
    ($level:ident, $($message:tt)*) => {
        if $crate::log::enabled($crate::log::Level::$level) {
            $crate::log::print(format_args!($($message)*));
        }
    };
}
