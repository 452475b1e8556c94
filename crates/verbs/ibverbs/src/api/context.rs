//! The open device as the header's inline functions see it.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;

use sluice_verbs as engine;

use super::{cq, cq_ex, device, device_memory, memory, post, qp, srq};
use crate::ffi::*;

#[repr(C)]
pub struct Context {
    c: UnsafeCell<verbs_context>,
    pub engine: Arc<engine::Context>,
}

/// The program's pointer is to the last field of the C structure.
const C_OFFSET: usize = offset_of!(verbs_context, context);

impl Context {
    pub fn give(device: *mut ibv_device, engine: Arc<engine::Context>) -> *mut ibv_context {
        let mut c = table();
        c.context.device = device;
        c.context.async_fd = engine.async_fd();
        let object = Box::into_raw(Box::new(Self {
            c: UnsafeCell::new(c),
            engine,
        }));
        object.cast::<u8>().wrapping_add(C_OFFSET).cast()
    }

    /// # Safety
    /// The header's contract.
    pub unsafe fn of<'a>(pointer: *mut ibv_context) -> &'a Self {
        // SAFETY: the header's contract; give made the pointer from a Box of Self.
        unsafe { &*pointer.cast::<u8>().wrapping_sub(C_OFFSET).cast::<Self>() }
    }

    /// # Safety
    /// The header's contract; the program does not use the pointer again.
    pub unsafe fn take(pointer: *mut ibv_context) -> Box<Self> {
        // SAFETY: as above.
        unsafe { Box::from_raw(pointer.cast::<u8>().wrapping_sub(C_OFFSET).cast::<Self>()) }
    }
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
