//! Packets that leave.

use sluice_wire::{Ecn, piggyback};

use crate::path::Path;

/// A packet that leaves.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    /// Where to.
    pub path: &'a Path,
    /// What its IP header says of congestion.
    pub ecn: Ecn,
    /// Bytes from base transport header to pad.
    pub length: usize,
    /// An acknowledgement that the peer is to have with it: never later, and where the port can, not sooner
    /// either. It takes one more place, and leaves whatever becomes of the packet, but for
    /// [`SendError::NoRoom`].
    pub beside: Option<&'a Kept>,
}

impl<'a> Leaving<'a> {
    /// A packet with nothing beside it.
    pub const fn alone(path: &'a Path, ecn: Ecn, length: usize) -> Self {
        Self {
            path,
            ecn,
            length,
            beside: None,
        }
    }
}

/// Why a packet was not put into the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// Nothing more fits now. Call [`crate::Port::flush`], and try again when the port is writable
    /// or after [`crate::Port::receive`].
    NoRoom,
    /// This port cannot reach the destination (no neighbour, no route, interface down). The
    /// packet is gone, as one that a network lost.
    Unreachable,
    /// Longer than the interface takes. The packet is gone.
    TooLong,
    /// `fill` gave nothing: nothing leaves.
    Nothing,
}

/// A packet no longer than an acknowledgement: it may be one, which leaves with what follows.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The way that it takes.
    pub path: Path,
    /// What its IP header is to say of congestion.
    pub ecn: Ecn,
    bytes: [u8; piggyback::PACKET_MAX],
    length: usize,
}

impl Kept {
    /// Whether a packet of so many bytes is kept.
    pub const fn takes(length: usize) -> bool {
        length <= piggyback::PACKET_MAX
    }

    /// A packet of a length that is kept.
    /// [`SendError::Nothing`]: `fill` wrote none.
    pub fn new(
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<Self, SendError> {
        let mut bytes = [0; piggyback::PACKET_MAX];
        let into = bytes.get_mut(..length).ok_or(SendError::TooLong)?;
        if !fill(into) {
            return Err(SendError::Nothing);
        }
        Ok(Self {
            path: *path,
            ecn,
            bytes,
            length,
        })
    }

    /// From base transport header to pad.
    pub fn packet(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Whether it is an acknowledgement that may wait for what follows.
    pub fn may_piggyback(&self) -> bool {
        piggyback::may_piggyback(self.packet())
    }

    /// It, by itself.
    pub fn leaving(&self) -> Leaving<'_> {
        Leaving::alone(&self.path, self.ecn, self.length)
    }

    /// Writes it to a place of its length.
    pub fn put(&self, into: &mut [u8]) -> bool {
        into.copy_from_slice(self.packet());
        true
    }
}
