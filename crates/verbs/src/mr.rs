//! Memory regions.

use std::sync::Arc;

use crate::keys::KeyInfo;
use crate::{Pd, Result};

/// A registered range of the process's memory.
pub struct Mr {
    pd: Arc<Pd>,
}

impl Mr {
    /// The domain it was registered in; [`Mr::rereg`] may have moved it since.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub fn lkey(&self) -> u32 {
        todo!()
    }

    pub fn rkey(&self) -> u32 {
        todo!()
    }

    /// Address in this process.
    pub fn addr(&self) -> u64 {
        todo!()
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        todo!()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn info(&self) -> KeyInfo {
        todo!()
    }

    /// `ibv_rereg_mr`: `flags` of [`crate::types::rereg`] say what changes. The keys change too:
    /// read them again. EBUSY while windows are bound.
    pub fn rereg(
        &self,
        flags: u32,
        pd: Option<&Arc<Pd>>,
        addr: u64,
        len: u64,
        access: u32,
    ) -> Result<()> {
        let _ = (flags, pd, addr, len, access);
        todo!()
    }

    /// `ibv_dereg_mr`. EBUSY while windows are bound to it. Waits for transfers that are under
    /// way in this memory; afterwards nobody reaches it by its keys.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
