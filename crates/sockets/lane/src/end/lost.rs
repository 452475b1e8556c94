//! A peer that was killed, or ended without closing, before it had read what this end sent.
//!
//! The kernel resets a connection whose socket is closed with unread bytes (RFC 1122, 4.2.2.13). Those in a ring it
//! does not know: it ends the stream in order. So this end looks, where the stream ends or bytes go by TCP behind a ring
//! that nobody empties, whether a process still has the peer's socket, and says what TCP would have said.

use super::flags::Flags;
use super::{End, Tx};
use crate::kernel::kernel_events;
use sluice_sys::errno::Errno;
use sluice_sys::raw;
use sluice_sys::sock_diag::{Diag, Ends};

impl End {
    /// `ECONNRESET`, once, if the peer is gone and has left ring bytes unread. The connection is shut down then, as
    /// one that was reset: reads find its end, and writes `EPIPE`.
    ///
    /// Not between hosts, nor between network namespaces, where nothing is known of the peer's socket.
    pub(crate) fn take_loss(&self, tx: &mut Tx, fd: i32) -> Option<Errno> {
        if self.is_remote() || self.is_direct() || self.flag(Flags::LOST_TOLD) {
            return None;
        }
        // An orderly close has reset the connection, if bytes were unread then.
        let out = self.outgoing().filter(|out| !out.is_closed())?;
        let ended = libc::POLLRDHUP;
        let is_unread = tx.stream.producer().is_drained(&out) == Ok(false);
        let is_lost = is_unread
            && kernel_events(fd, ended) & (ended | libc::POLLERR) == ended
            && is_peer_gone(fd);
        if !is_lost {
            return None;
        }
        self.flags.set(Flags::LOST_TOLD);
        self.set_peer_done();
        // SAFETY: shutdown takes numbers.
        unsafe { raw::syscall2(libc::SYS_shutdown, fd as usize, libc::SHUT_RDWR as usize) };
        Some(Errno(libc::ECONNRESET))
    }
}

/// Whether the kernel says that no process has the peer's socket, which it keeps for a minute, as long as this
/// end is open. That it finds none says nothing: it looks in this network namespace alone.
fn is_peer_gone(fd: i32) -> bool {
    let inode = || Diag::open_unproven()?.inode(Ends::of(fd)?.mirrored());
    inode() == Ok(Some(0))
}
