//! Address handles: the way to a peer of a UD queue pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluice_verbs_model::error::Result;
use sluice_verbs_model::types::AhAttr;

use crate::domain::Domain;

/// An address handle (`ibv_ah`). Requests copy what they need of it, so it may be destroyed
/// while they are under way.
pub struct Ah {
    domain: Arc<Domain>,
    attr: AhAttr,
    destroyed: AtomicBool,
}

impl Ah {
    pub(crate) fn new(domain: &Arc<Domain>, attr: &AhAttr) -> Result<Arc<Ah>> {
        domain.adapter().check_address(attr)?;
        domain.add_user();
        Ok(Arc::new(Ah {
            domain: domain.clone(),
            attr: *attr,
            destroyed: AtomicBool::new(false),
        }))
    }

    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    pub fn destroy(&self) -> Result<()> {
        if !self.destroyed.swap(true, Ordering::AcqRel) {
            self.domain.drop_user();
        }
        Ok(())
    }
}
