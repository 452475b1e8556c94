//! Memory windows.

use std::sync::Arc;

use crate::{Pd, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Bound by `ibv_bind_mw`, for every QP of the domain.
    Type1,
    /// Bound by a work request, for its QP; taken away by an invalidation.
    Type2,
}

/// A window on a region, with a key of its own.
pub struct Mw {
    pd: Arc<Pd>,
}

impl Mw {
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub fn mw_type(&self) -> MwType {
        todo!()
    }

    /// The current key.
    pub fn rkey(&self) -> u32 {
        todo!()
    }

    /// The key that the next binding of a type 1 window is to have (`MwBind::rkey`).
    pub fn next_rkey(&self) -> u32 {
        todo!()
    }

    /// Unbinds and frees it.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
