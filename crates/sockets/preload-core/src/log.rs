//! Messages to standard error, if `SLUICE_LOG` asks for them. Formatting happens on the stack.
#![allow(unsafe_code)]

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, Ordering};
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

/// Reads `SLUICE_LOG`.
pub fn load() {
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

    /// Writes the line with its end to a descriptor. A failed write has nowhere to be reported.
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
    line.write_to(libc::STDERR_FILENO);
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
