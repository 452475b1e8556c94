//! Memory keys as numbers: 24 bits that name a place, 8 bits that count how often the place was
//! used, and what such a key opens.

/// What a key opens, for a transport that lets peers reach memory by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyInfo {
    /// A small number of its own for every key that exists, below [`SLOTS`].
    pub slot: u32,
    /// The remote key (and, for a region, the local one).
    pub key: u32,
    /// Number of the protection domain.
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

/// Places for keys in a device. Half of them can be in use, so that a free one is soon found.
pub const SLOTS: u32 = 1 << 17;
pub const KEYS_MAX: u32 = SLOTS / 2;

/// Marks a window, whose key is no local key. Not among the numbers of the C interface.
pub const WINDOW: u32 = 1 << 31;

/// The place that a key names.
#[inline]
pub const fn place(key: u32) -> u32 {
    (key >> 8) & (SLOTS - 1)
}

impl KeyInfo {
    /// The host address of a range that a peer or a work request names, if the whole of it is
    /// inside.
    #[inline]
    pub fn translate(&self, addr: u64, len: u64) -> Option<u64> {
        let offset = addr.checked_sub(self.iova)?;
        let room = self.len.checked_sub(offset)?;
        (len <= room).then(|| self.host + offset)
    }
}
