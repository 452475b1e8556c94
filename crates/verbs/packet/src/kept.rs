//! A packet that a port keeps for a moment.

use sluice_wire::{Ecn, rider};

use crate::{Path, SendError};

/// A packet no longer than an acknowledgement: it may be one, which leaves with what follows.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// The way that it takes.
    pub path: Path,
    /// What its IP header is to say of congestion.
    pub ecn: Ecn,
    bytes: [u8; rider::PACKET_MAX],
    length: usize,
}

impl Kept {
    /// Whether a packet of so many bytes is kept.
    pub const fn takes(length: usize) -> bool {
        length <= rider::PACKET_MAX
    }

    /// The packet that [`crate::Port::send`] was given, of a length that is kept.
    /// [`SendError::Nothing`]: `fill` wrote none.
    pub fn new(
        path: &Path,
        ecn: Ecn,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<Self, SendError> {
        let mut bytes = [0; rider::PACKET_MAX];
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
    pub fn may_ride(&self) -> bool {
        rider::may_ride(self.packet())
    }

    /// Writes it to a place of its length.
    pub fn put(&self, into: &mut [u8]) -> bool {
        into.copy_from_slice(self.packet());
        true
    }
}
