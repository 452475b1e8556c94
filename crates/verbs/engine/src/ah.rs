//! Address handles: the way to a peer of a UD queue pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Pd, Result};
use sluice_verbs_model::types::AhAttr;

/// An address handle (`ibv_ah`). Requests copy what they need of it, so it may be destroyed
/// while they are under way.
pub struct Ah {
    pd: Arc<Pd>,
    attr: AhAttr,
    destroyed: AtomicBool,
}

impl Ah {
    pub(crate) fn new(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Arc<Ah>> {
        crate::modify::check_address(pd.context().device(), attr)?;
        pd.add_user();
        Ok(Arc::new(Ah {
            pd: pd.clone(),
            attr: *attr,
            destroyed: AtomicBool::new(false),
        }))
    }

    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub fn destroy(&self) -> Result<()> {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.pd.drop_user();
        }
        Ok(())
    }
}
