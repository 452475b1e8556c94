//! Protection domains.

use std::sync::Arc;

use crate::types::{AhAttr, QpInit, SrqInit};
use crate::{Ah, Context, Mr, Mw, MwType, Qp, Result, Srq};

pub struct Pd {
    context: Arc<Context>,
}

impl Pd {
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Never 0, and not used again in this process.
    pub fn id(&self) -> u32 {
        todo!()
    }

    /// Registers `len` bytes at `addr`, which peers and work requests will call `iova`
    /// (`ibv_reg_mr`: `iova` = `addr`). `access` is [`crate::types::access`].
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        len: u64,
        iova: u64,
        access: u32,
    ) -> Result<Arc<Mr>> {
        let _ = (addr, len, iova, access);
        todo!()
    }

    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<Arc<Mw>> {
        let _ = mw_type;
        todo!()
    }

    /// [`Qp::cap`] says what it got, at least what was asked for.
    pub fn create_qp(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>> {
        let _ = init;
        todo!()
    }

    pub fn create_srq(self: &Arc<Self>, init: &SrqInit) -> Result<Arc<Srq>> {
        let _ = init;
        todo!()
    }

    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Arc<Ah>> {
        let _ = attr;
        todo!()
    }

    /// EBUSY while anything was made in it and not destroyed.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
