//! One TCP connection as a program sees it, carried by kernel and ring segments in turn.
//!
//! [`end::End`] is the state of one end; [`receive`](receive::receive) and
//! [`send`](send::send) move its bytes; [`wait`] tells whether it is ready. The rules of the
//! handover are in DESIGN ("byte-offset handover") and docs/decisions/0001.

pub mod carrier;
pub mod clock;
pub mod confined;
mod counts;
pub mod end;
mod full;
pub mod held;
pub mod kernel;
pub mod lock;
mod pace;
pub mod parking;
pub mod reason;
pub mod receive;
pub mod reclaim;
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

/// Calls `each` with the pieces of `parts` that make up `count` bytes behind the first `skip`.
pub(crate) fn for_pieces(
    parts: Parts,
    skip: usize,
    count: usize,
    mut each: impl FnMut(*mut u8, usize),
) {
    let mut skip = skip;
    let mut left = count;
    for part in parts {
        if left == 0 {
            return;
        }
        if skip >= part.iov_len {
            skip -= part.iov_len;
            continue;
        }
        let len = (part.iov_len - skip).min(left);
        each(part.iov_base.cast::<u8>().wrapping_add(skip), len);
        left -= len;
        skip = 0;
    }
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
