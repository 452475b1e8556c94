//! A peer that was killed, or ended without closing, before it had read what this end sent.
//!
//! The kernel resets a connection whose socket is closed with unread bytes (RFC 1122, 4.2.2.13). Those in a ring it
//! does not know: it ends the stream in order. So this end looks, where the stream ends or bytes go by TCP behind a ring
//! that nobody empties, whether a process still has the peer's socket, and says what TCP would have said.

use super::{End, FLAG_LOST_TOLD, Locked};
use crate::wait::kernel_events;
use core::sync::atomic::Ordering;
use sluice_sys::errno::Errno;
use sluice_sys::sock_diag::{Diag, Ends};
use sluice_sys::{raw, tcp};

impl End {
    /// `ECONNRESET`, once, if the peer is gone and has left ring bytes unread. The connection is shut down then, as
    /// one that was reset: reads find its end, and writes `EPIPE`.
    ///
    /// Not between hosts, nor between network namespaces, where nothing is known of the peer's socket.
    pub(crate) fn take_loss(&self, generation: u32, fd: i32) -> Option<Errno> {
        if self.is_remote() || self.flag(FLAG_LOST_TOLD) || !self.has_unread_at_peer(generation) {
            return None;
        }
        self.take_loss_of_unread(fd)
    }

    /// The same where it is known that ring bytes are unread.
    pub(crate) fn take_loss_of_unread(&self, fd: i32) -> Option<Errno> {
        let ended = libc::POLLRDHUP;
        let is_ended = || kernel_events(fd, ended) & (ended | libc::POLLERR) == ended;
        if self.is_remote() || self.flag(FLAG_LOST_TOLD) || !is_ended() || !is_peer_gone(fd) {
            return None;
        }
        self.flags.fetch_or(FLAG_LOST_TOLD, Ordering::Relaxed);
        self.set_peer_done();
        // SAFETY: shutdown takes numbers.
        unsafe { raw::syscall2(libc::SYS_shutdown, fd as usize, libc::SHUT_RDWR as usize) };
        Some(Errno(libc::ECONNRESET))
    }

    fn has_unread_at_peer(&self, generation: u32) -> bool {
        let Locked::Held(mut tx) = self.lock_tx(generation) else {
            return false;
        };
        // An orderly close has reset the connection, if bytes were unread then.
        self.outgoing()
            .is_some_and(|out| !out.is_closed() && tx.producer.is_drained(&out) == Ok(false))
    }
}

/// Whether no process has the peer's socket. `false` where the kernel cannot be asked.
fn is_peer_gone(fd: i32) -> bool {
    let ask = || -> Result<bool, Errno> {
        let ends = Ends {
            local: tcp::peer_address(fd)?,
            peer: tcp::local_address(fd)?,
        };
        let diag = Diag::open_unproven()?;
        // A kernel without tcp_diag finds nothing: not this end either.
        let mirrored = Ends {
            local: ends.peer,
            peer: ends.local,
        };
        let finds = diag.inode(mirrored)?.is_some();
        Ok(finds && diag.inode(ends)?.is_none_or(|inode| inode == 0))
    };
    ask().unwrap_or(false)
}
