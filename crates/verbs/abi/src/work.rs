//! Work requests and work completions.

use std::ffi::{c_int, c_uint};

use super::{ibv_ah, ibv_mw, ibv_mw_bind_info};

c_structs! {
    ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    ibv_data_buf {
        addr: *mut std::ffi::c_void,
        length: usize,
    }

    ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: u32,
        send_flags: c_uint,
        /// Immediate data in network byte order, or the key to invalidate.
        imm_data: u32,
        wr: send_wr_remote,
        /// The number of the remote shared receive queue, for XRC.
        qp_type: u32,
        bind_mw: send_wr_bind_mw,
    }

    ibv_wc {
        wr_id: u64,
        status: u32,
        opcode: u32,
        vendor_err: u32,
        byte_len: u32,
        /// Immediate data in network byte order, or the key that was invalidated.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }
}

/// The remote side of a work request; which member counts depends on opcode and QP type. Without
/// a name in the header.
#[repr(C)]
#[derive(Clone, Copy)]
pub union send_wr_remote {
    pub rdma: send_wr_rdma,
    pub atomic: send_wr_atomic,
    pub ud: send_wr_ud,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_atomic {
    pub remote_addr: u64,
    pub compare_add: u64,
    pub swap: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_ud {
    pub ah: *mut ibv_ah,
    pub remote_qpn: u32,
    pub remote_qkey: u32,
}

/// What a bind request names. Shares its place with the members of a TSO request, which is not
/// supported.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct send_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}
