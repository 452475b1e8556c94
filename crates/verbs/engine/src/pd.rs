//! Protection domains.

use std::sync::Arc;

use sluice_verbs_model::error::{Error, Result};
use sluice_verbs_model::types::{AhAttr, MwType, QpType};

use crate::ah::Ah;
use crate::context::Context;
use crate::domain::Domain;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::qp::{Qp, QpInit};
use crate::srq::{Srq, SrqInit};

/// A protection domain: its QPs reach the memory that was registered in it, and no other.
pub struct Pd {
    context: Arc<Context>,
    domain: Arc<Domain>,
}

impl Context {
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        Ok(Arc::new(Pd {
            context: self.clone(),
            domain: Domain::new(self.opened()),
        }))
    }
}

impl Pd {
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Never 0, and not used again in this process.
    pub fn id(&self) -> u32 {
        self.domain.id
    }

    /// Registers `len` bytes at `addr`, which peers and work requests will call `iova`
    /// (`ibv_reg_mr`: `iova` = `addr`). `access` is [`crate::types::access`]. Brings the pages
    /// in, as a registration with hardware does: EFAULT if they are not the program's.
    pub fn reg_mr(&self, addr: u64, len: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        Mr::register(&self.domain, addr, len, iova, access)
    }

    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Arc<Mw>> {
        Mw::new(&self.domain, mw_type)
    }

    /// [`Qp::cap`] says what it got, at least what was asked for.
    pub fn create_qp(&self, init: &QpInit) -> Result<Arc<Qp>> {
        if init.qp_type == QpType::XrcRecv {
            return Err(Error::WrongObject);
        }
        self.context.create_qp_in(Some(&self.domain), init)
    }

    pub fn create_srq(&self, init: &SrqInit) -> Result<Arc<Srq>> {
        let device = self.context.device();
        let make = |xrc| device.transport().create_srq(xrc);
        let srq = Srq::create(&self.domain, &device.directory.srqs, init, make)?;
        device.transport().bind_srq(&srq);
        Ok(srq)
    }

    pub fn create_ah(&self, attr: &AhAttr) -> Result<Arc<Ah>> {
        Ah::new(&self.domain, attr)
    }

    /// EBUSY while anything was made in it and not destroyed.
    pub fn destroy(&self) -> Result<()> {
        self.domain.check_unused()
    }
}

impl Mr {
    /// `ibv_rereg_mr`: `flags` of [`crate::types::rereg`] say what changes. EBUSY while windows
    /// are bound.
    ///
    /// The keys stay, so that peers that have them go on, as with Linux's rxe and mlx5 (the
    /// manual page promises neither that nor the contrary). They open what the region is now:
    /// the change waits for transfers that are under way, and whoever comes during it finds the
    /// region closed, as between a deregistration and a registration.
    ///
    /// A failure changes nothing, unless [`Mr::is_open`] says otherwise.
    pub fn rereg(
        &self,
        flags: u32,
        pd: Option<&Arc<Pd>>,
        addr: u64,
        len: u64,
        access: u32,
    ) -> Result<()> {
        self.rereg_in(flags, pd.map(|pd| &pd.domain), addr, len, access)
    }
}
