//! What one host can do to a window.
#![allow(unsafe_code)]

use crate::claim::SILENCE_NS;

/// Bytes of a cache line: the unit in which kinds without coherence write back and invalidate,
/// so also the least that two writers may be apart.
pub const LINE_BYTES: u64 = 64;

/// An address that this host reads: bytes from the start of its own slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct In(pub u64);

/// An address that this host writes: a slot, and bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Out {
    pub slot: u32,
    pub at: u64,
}

impl In {
    pub const fn add(self, bytes: u64) -> In {
        In(self.0 + bytes)
    }
}

impl Out {
    pub const fn add(self, bytes: u64) -> Out {
        Out {
            slot: self.slot,
            at: self.at + bytes,
        }
    }
}

/// A window as one host sees it.
///
/// Writes become visible to the reader at any time after they are made, in any order, in pieces
/// of eight bytes; [`View::publish`] is what orders them. What a reader has read once may be what
/// it reads again, however old, until [`View::refresh`].
///
/// Addresses beyond the slot are a fault of the caller: it checked them.
pub trait View {
    /// The word at an address that is a multiple of eight. An acquire: what is read later is
    /// read later.
    fn load(&self, at: In) -> u64;

    /// Copies `len` bytes from the window.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    unsafe fn copy_out(&self, at: In, to: *mut u8, len: usize);

    /// Writes the word at an address that is a multiple of eight, at once as seen by any reader.
    fn store(&self, at: Out, value: u64);

    /// Copies `len` bytes into the window.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    unsafe fn copy_in(&self, at: Out, from: *const u8, len: usize);

    /// What this host has written to these bytes is on its way, and visible to whoever sees
    /// anything that this host writes afterwards.
    fn publish(&self, from: Out, bytes: u64);

    /// What is read from these bytes afterwards is no older than anything that this host has
    /// seen before.
    fn refresh(&self, from: In, bytes: u64);

    /// How long a beat has not changed when its host is dead to this one.
    fn silence_ns(&self) -> u64 {
        SILENCE_NS
    }

    /// [`View::copy_out`] to a slice.
    fn read(&self, at: In, to: &mut [u8]) {
        // SAFETY: a slice is writable for its length.
        unsafe { self.copy_out(at, to.as_mut_ptr(), to.len()) }
    }

    /// [`View::copy_in`] from a slice.
    fn write(&self, at: Out, from: &[u8]) {
        // SAFETY: a slice is readable for its length.
        unsafe { self.copy_in(at, from.as_ptr(), from.len()) }
    }

    /// A word that another host may have changed.
    fn look(&self, at: In) -> u64 {
        self.refresh(at, 8);
        self.load(at)
    }

    /// Writes a word and publishes it.
    fn say(&self, at: Out, value: u64) {
        self.store(at, value);
        self.publish(at, 8);
    }
}
