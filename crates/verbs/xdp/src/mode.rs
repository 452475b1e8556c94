//! What became of an interface when it was opened.

use core::fmt;

/// How an interface is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The program runs in the driver; otherwise in the kernel's generic code.
    pub native: bool,
    /// The interface reads and writes packet memory itself, on every queue.
    pub zero_copy: bool,
    /// Longest IP packet that goes and comes this way, in bytes. Longer ones that come for us are
    /// lost.
    pub packet_bytes_max: usize,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = if self.native { "native" } else { "generic" };
        let copy = if self.zero_copy { "zero-copy" } else { "copy" };
        write!(
            f,
            "{driver}, {copy}, IP packets up to {} bytes",
            self.packet_bytes_max
        )
    }
}
