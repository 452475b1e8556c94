//! Protection domains.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::qp::QpInit;
use crate::srq::SrqInit;
use crate::{Ah, Context, Error, Mr, Mw, Qp, Result, Srq};
use sluice_verbs_model::types::{AhAttr, MwType, QpType};

/// A protection domain: its QPs reach the memory that was registered in it, and no other.
pub struct Pd {
    context: Arc<Context>,
    id: u32,
    users: AtomicU32,
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Pd>> {
        Ok(Arc::new(Pd {
            context: context.clone(),
            id: context.device().next_id(),
            users: AtomicU32::new(0),
        }))
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Never 0, and not used again in this process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Registers `len` bytes at `addr`, which peers and work requests will call `iova`
    /// (`ibv_reg_mr`: `iova` = `addr`). `access` is [`sluice_verbs_model::types::access`]. Brings the pages
    /// in, as a registration with hardware does: EFAULT if they are not the program's.
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>> {
        Mr::register(self, addr, len, iova, access)
    }

    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<Arc<Mw>> {
        Mw::new(self, mw_type)
    }

    /// [`Qp::cap`] says what it got, at least what was asked for.
    pub fn create_qp(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>> {
        if init.qp_type == QpType::XrcRecv {
            return Err(Error::WrongObject);
        }
        Qp::create(&self.context, Some(self), init)
    }

    pub fn create_srq(self: &Arc<Self>, init: &SrqInit) -> Result<Arc<Srq>> {
        Srq::create(self, init)
    }

    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Arc<Ah>> {
        Ah::new(self, attr)
    }

    /// EBUSY while anything was made in it and not destroyed.
    pub fn destroy(&self) -> Result<()> {
        match self.users.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => Err(Error::Busy),
        }
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Ordering::AcqRel);
    }
}
