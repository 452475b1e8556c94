//! Memory keys.

/// What a key opens, for a transport that lets peers reach memory by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// A small number of its own for every key that exists, below [`SLOTS`].
    pub slot: u32,
    /// The remote key (and, for a region, the local one).
    pub key: u32,
    /// [`crate::Pd::id`].
    pub pd: u32,
    /// A type 2 window is for this QP only; 0: any QP of the domain.
    pub qpn: u32,
    /// The address by which peers name the first byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// The first byte's address in this process.
    pub host: u64,
    /// [`crate::types::access`].
    pub access: u32,
}

/// Places for keys in a device. Half of them can be in use.
pub const SLOTS: u32 = 1 << 17;
