//! Memory that stays where it is for a call of the kernel.

use arrayvec::ArrayVec;
use sluice_verbs::LocalMemory;
use sluice_verbs::responder::RemoteMemory;

use crate::socket::{PIECES_MAX, Piece, piece};

/// Memory that stays where it is while this lives.
pub enum Pinned<'a> {
    /// Registered, a request's.
    Local(LocalMemory<'a>),
    /// Registered, a peer may touch it.
    Remote(RemoteMemory<'a>),
    /// Of the record of a request that has not ended, to be read.
    Kept(Piece),
    /// A receive's, which keeps it registered by itself.
    Receive(Piece),
}

impl Pinned<'_> {
    /// For a call of the kernel.
    pub fn piece(&self) -> Piece {
        match self {
            Pinned::Local(memory) => piece(memory.as_ptr(), memory.len()),
            Pinned::Remote(memory) => piece(memory.as_ptr(), memory.len()),
            Pinned::Kept(piece) | Pinned::Receive(piece) => *piece,
        }
    }
}

/// Pieces for one call of the kernel.
pub type Pins<'a> = ArrayVec<Pinned<'a>, PIECES_MAX>;
