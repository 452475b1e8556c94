//! How long the kernel's answer for a socket holds without another call.

use crate::end::End;
use core::sync::atomic::Ordering;

/// Room that the kernel has reported is there still behind one write of no more bytes: it reports
/// room where a third of the buffer is free (`sk_stream_is_writeable`).
const SMALL_WRITE_BYTES: u64 = 1024;

/// How far the program's reads and writes were when the kernel was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    reads: u32,
    writes: u32,
    written: u64,
}

impl Asked {
    /// To be taken before the kernel is asked, or behind an answer that epoll has harvested
    /// edge-triggered.
    pub fn now(end: &End) -> Self {
        Self {
            reads: end.kernel_calls.reads(),
            writes: end.kernel_calls.writes(),
            written: end.bytes.tcp_tx.load(Ordering::Relaxed),
        }
    }

    /// Whether a read that began since has taken all that the kernel had: it got less than it asked
    /// for, or nothing (epoll(7), question 9). What comes later is an event of its own for whoever is
    /// registered edge-triggered. Urgent data and the end of the stream stop a read as well;
    /// whoever has been told of one must not ask this.
    pub fn is_drained(self, end: &End) -> bool {
        end.kernel_calls.is_drained_since(self.reads)
    }

    /// Whether a socket that had room still has some: next to nothing was written since.
    pub fn has_room_still(self, end: &End) -> bool {
        let writes = end.kernel_calls.writes();
        let written = end.bytes.tcp_tx.load(Ordering::Relaxed);
        writes.wrapping_sub(self.writes) <= 1
            && written.wrapping_sub(self.written) <= SMALL_WRITE_BYTES
    }
}
