//! What the engine needs of the links between daemons.

use core::ptr::NonNull;

/// A link to another daemon: one queue pair, in order and reliable until it fails as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// No room for another request now; there will be after completions were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Bytes in the memory of this host, with the key of a region that holds them.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    pub address: NonNull<u8>,
    pub bytes: u32,
    pub region: u32,
}

/// A place in the memory of the far host, with the key that opens it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub address: u64,
    pub rkey: u32,
}

/// Posts to links.
pub trait Wire {
    /// Writes the bytes to the far host's memory and delivers `immediate` there behind them, with
    /// their number. The bytes stay as they are until the far daemon says that they were consumed.
    /// It may wait for [`Wire::flush`] or for what is posted behind it.
    fn write(
        &mut self,
        link: LinkId,
        local: Local,
        remote: Remote,
        immediate: u32,
    ) -> Result<(), Full>;

    /// Sends a message of at most [`MESSAGE_BYTES_MAX`](crate::message::MESSAGE_BYTES_MAX) bytes
    /// behind everything posted before.
    fn send(&mut self, link: LinkId, message: &[u8]) -> Result<(), Full>;

    /// Nothing follows for now: what waits is posted.
    fn flush(&mut self) {}
}
