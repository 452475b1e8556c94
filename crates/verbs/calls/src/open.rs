//! Opening a device and closing it: the context has a table of the calls that the header's inline
//! functions make.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::context::Context;
use super::device::Device;
use super::objects::number;
use super::{cq, cq_ex, device, device_memory, memory, post, qp, report, srq};
use crate::errno::null;
use crate::ffi::*;

pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the header's contract.
    let device = unsafe { Device::of(device) };
    match device.engine.open() {
        Ok(opened) => {
            report::begin();
            Context::give(table(), device.as_c(), opened)
        }
        Err(error) => null(number(error)),
    }
}

pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the header's contract.
    unsafe { Context::take(context) };
    0
}

/// The slots. Those that are empty make the header's functions answer EOPNOTSUPP.
fn table() -> verbs_context {
    // SAFETY: pointers, optional functions and numbers, for which zero is "none"; the mutex is
    // one that is not locked.
    let mut table: verbs_context = unsafe { std::mem::zeroed() };
    table.sz = size_of::<verbs_context>();
    table.query_port = Some(device::query_port);
    table.query_device_ex = Some(device::query_device_ex);
    table.query_rt_values = Some(device::query_rt_values);
    table.alloc_parent_domain = Some(memory::alloc_parent_domain);
    table.alloc_td = Some(memory::alloc_td);
    table.dealloc_td = Some(memory::dealloc_td);
    table.open_xrcd = Some(memory::open_xrcd);
    table.close_xrcd = Some(memory::close_xrcd);
    table.alloc_dm = device_memory::alloc_dm as *mut c_void;
    table.free_dm = device_memory::free_dm as *mut c_void;
    table.reg_dm_mr = device_memory::reg_dm_mr as *mut c_void;
    table.create_cq_ex = Some(cq_ex::create_cq_ex);
    table.modify_cq = Some(cq::modify_cq);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.open_qp = Some(qp::open_qp);
    let context = &mut table.context;
    context.cmd_fd = -1;
    context.num_comp_vectors = 1;
    context.abi_compat = ptr::without_provenance_mut(VERBS_ABI_IS_EXTENDED);
    context.ops.alloc_mw = Some(memory::alloc_mw);
    context.ops.dealloc_mw = Some(memory::dealloc_mw);
    context.ops.bind_mw = Some(memory::bind_mw);
    context.ops.poll_cq = Some(cq::poll_cq);
    context.ops.req_notify_cq = Some(cq::req_notify_cq);
    context.ops.post_srq_recv = Some(post::post_srq_recv);
    context.ops.post_send = Some(post::post_send);
    context.ops.post_recv = Some(post::post_recv);
    table
}
