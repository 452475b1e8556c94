//! A requester's own memory, for transports that touch it after [`crate::QpTransport::post`] has
//! returned.

use sluice_verbs_model::types::{Sge, access};

use super::Qp;
use crate::keys::KeyTable;

/// A piece of registered memory that cannot be deregistered while this lives: drop it before any
/// other call into the engine.
pub struct LocalMemory<'a> {
    addr: u64,
    len: u32,
    keys: &'a KeyTable,
    place: u32,
}

impl LocalMemory<'_> {
    /// Valid for reads, and if it was asked for writes, of [`LocalMemory::len`] bytes. The
    /// program's threads may touch them at the same time: copy, never make a reference.
    pub fn as_ptr(&self) -> *mut u8 {
        self.addr as *mut u8
    }

    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for LocalMemory<'_> {
    #[inline]
    fn drop(&mut self) {
        self.keys.unpin(self.place);
    }
}

impl Qp {
    /// Part of a piece of a request of this QP, as [`crate::Wqe`] names it (`addr` is an address
    /// of the process; inline data has no key and is not looked up here), if its region is
    /// still registered there. `write`: it will be written.
    pub fn pin_local(&self, piece: &Sge, write: bool) -> Option<LocalMemory<'_>> {
        let keys = &self.adapter().keys;
        let info = keys.pin(piece.lkey)?;
        let memory = LocalMemory {
            addr: piece.addr,
            len: piece.length,
            keys,
            place: info.slot,
        };
        let end = piece.addr.checked_add(u64::from(piece.length))?;
        let inside = piece.addr >= info.host && end <= info.host.checked_add(info.len)?;
        let willing = !write || info.access & access::LOCAL_WRITE != 0;
        (inside && willing && info.pd == self.pd_id).then_some(memory)
    }
}
