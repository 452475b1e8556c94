//! One TCP connection as a program sees it, carried by kernel and ring segments in turn.
//!
//! [`end::End`] is the state of one end; [`receive`](receive::receive) and
//! [`send`](send::send) move its bytes; [`wait`] tells whether it is ready. The rules of the
//! handover are in DESIGN ("byte-offset handover") and docs/decisions/0001.

pub mod clock;
mod counts;
pub mod end;
pub mod lock;
mod pace;
pub mod reason;
pub mod recall;
pub mod receive;
pub mod send;
pub mod spin;
pub mod table;
pub mod thread;
pub mod totals;
pub mod wait;

/// The pieces of one read or write, as the program gave them.
pub type Parts<'a> = &'a [libc::iovec];

/// Bytes in all pieces.
pub fn parts_bytes(parts: Parts) -> usize {
    parts
        .iter()
        .fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// The piece of a call that the kernel is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the program's buffers that are done already.
    pub skip: usize,
    /// Bytes to move at most.
    pub limit: usize,
    /// Not to block, whatever the descriptor says (`MSG_DONTWAIT`).
    pub dontwait: bool,
}
