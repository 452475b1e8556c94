//! Shared receive queues.

use std::sync::Arc;

use crate::types::{Sge, SrqAttr};
use crate::{Cq, Pd, Result, Xrcd};

pub struct Srq {
    pd: Arc<Pd>,
}

impl Srq {
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The number by which XRC peers name it (`ibv_get_srq_num`).
    pub fn num(&self) -> u32 {
        todo!()
    }

    pub fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        todo!()
    }

    /// The CQ of an XRC SRQ.
    pub fn cq(&self) -> Option<&Arc<Cq>> {
        todo!()
    }

    pub fn cookie(&self) -> u64 {
        todo!()
    }

    pub fn set_cookie(&self, cookie: u64) {
        let _ = cookie;
        todo!()
    }

    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let _ = (wr_id, sges);
        todo!()
    }

    /// `mask` of [`crate::types::srq_mask`].
    pub fn modify(&self, attr: &SrqAttr, mask: u32) -> Result<()> {
        let _ = (attr, mask);
        todo!()
    }

    pub fn query(&self) -> SrqAttr {
        todo!()
    }

    pub fn ack_async_event(&self) {
        todo!()
    }

    /// EBUSY while QPs use it.
    pub fn destroy(&self) -> Result<()> {
        todo!()
    }
}
