//! The QP as the `ibv_wr_*` calls see it: a table of functions behind the plain QP.

use std::ffi::{c_int, c_uint, c_void};

use super::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp, ibv_sge};

type Qp = *mut ibv_qp_ex;

c_structs! {
    /// Begins with an [`ibv_qp`], and every QP is one.
    ibv_qp_ex {
        qp_base: ibv_qp,
        comp_mask: u64,
        wr_id: u64,
        wr_flags: c_uint,
        wr_atomic_cmp_swp: Option<unsafe extern "C" fn(Qp, u32, u64, u64, u64)>,
        wr_atomic_fetch_add: Option<unsafe extern "C" fn(Qp, u32, u64, u64)>,
        wr_bind_mw: Option<unsafe extern "C" fn(Qp, *mut ibv_mw, u32, *const ibv_mw_bind_info)>,
        wr_local_inv: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_rdma_read: Option<unsafe extern "C" fn(Qp, u32, u64)>,
        wr_rdma_write: Option<unsafe extern "C" fn(Qp, u32, u64)>,
        wr_rdma_write_imm: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
        wr_send: Option<unsafe extern "C" fn(Qp)>,
        wr_send_imm: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_send_inv: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_send_tso: Option<unsafe extern "C" fn(Qp, *mut c_void, u16, u16)>,
        wr_set_ud_addr: Option<unsafe extern "C" fn(Qp, *mut ibv_ah, u32, u32)>,
        wr_set_xrc_srqn: Option<unsafe extern "C" fn(Qp, u32)>,
        wr_set_inline_data: Option<unsafe extern "C" fn(Qp, *mut c_void, usize)>,
        wr_set_inline_data_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_data_buf)>,
        wr_set_sge: Option<unsafe extern "C" fn(Qp, u32, u64, u32)>,
        wr_set_sge_list: Option<unsafe extern "C" fn(Qp, usize, *const ibv_sge)>,
        wr_start: Option<unsafe extern "C" fn(Qp)>,
        wr_complete: Option<unsafe extern "C" fn(Qp) -> c_int>,
        wr_abort: Option<unsafe extern "C" fn(Qp)>,
        wr_atomic_write: Option<unsafe extern "C" fn(Qp, u32, u64, *const c_void)>,
    }
}
