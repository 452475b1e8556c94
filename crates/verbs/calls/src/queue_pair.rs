//! What stands behind `struct ibv_qp`: as the other [objects](crate::objects), and with the requests
//! that the program is putting together.

use std::cell::UnsafeCell;
use std::sync::Arc;

use sluice_verbs as engine;

use super::batch::Batch;
use super::objects::Object;
use crate::ffi::*;

/// A queue pair. Always with room for the extended structure, whose functions are there when the
/// program asked for them.
#[repr(C)]
pub struct Qp {
    pub c: UnsafeCell<ibv_qp_ex>,
    pub engine: Arc<engine::Qp>,
    /// What the `ibv_wr_*` calls have put together since `ibv_wr_start`. Only the thread that
    /// posts uses it: the program keeps others away meanwhile.
    pub batch: UnsafeCell<Batch>,
    /// Made by `ibv_open_qp`: others have the same QP.
    pub shared: bool,
}

impl Object for Qp {
    type C = ibv_qp;
}
