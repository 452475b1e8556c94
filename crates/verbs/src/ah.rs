//! Address handles: the way to a peer of a UD queue pair.

use std::sync::Arc;

use crate::types::AhAttr;
use crate::{Pd, Result};

pub struct Ah {
    pd: Arc<Pd>,
    attr: AhAttr,
}

impl Ah {
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
