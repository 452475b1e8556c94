//! The calls of libibverbs that this library makes, as a table: that is all it knows of
//! the other half, and what its tests replace.

use std::ffi::{c_int, c_void};

use sluice_verbs::Transport;

use super::Errno;
use crate::ffi::*;
use sluice_verbs_calls::{channel, context, cq, device, gid, memory, open, post, qp, srq};

type Context = *mut ibv_context;

/// Functions of libibverbs, with the contracts of their manual pages.
pub struct Calls {
    pub get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device,
    pub free_device_list: unsafe extern "C" fn(*mut *mut ibv_device),
    pub open_device: unsafe extern "C" fn(*mut ibv_device) -> Context,
    pub query_device: unsafe extern "C" fn(Context, *mut ibv_device_attr) -> c_int,
    pub query_port: unsafe extern "C" fn(Context, u8, *mut ibv_port_attr) -> c_int,
    /// What the device is over. It lives as long as the context.
    pub transport: unsafe fn(Context) -> &'static dyn Transport,
    pub query_gid: unsafe extern "C" fn(Context, u8, c_int, *mut ibv_gid) -> c_int,
    pub alloc_pd: unsafe extern "C" fn(Context) -> *mut ibv_pd,
    pub dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int,
    pub reg_mr: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr,
    pub dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int,
    pub create_comp_channel: unsafe extern "C" fn(Context) -> *mut ibv_comp_channel,
    pub destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int,
    pub create_cq: unsafe extern "C" fn(
        Context,
        c_int,
        *mut c_void,
        *mut ibv_comp_channel,
        c_int,
    ) -> *mut ibv_cq,
    pub destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int,
    pub get_cq_event:
        unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int,
    pub ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, u32),
    pub create_qp: unsafe extern "C" fn(Context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
    pub modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int,
    pub destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int,
    pub create_srq: unsafe extern "C" fn(Context, *mut ibv_srq_init_attr_ex) -> *mut ibv_srq,
    pub destroy_srq: unsafe extern "C" fn(*mut ibv_srq) -> c_int,
    pub open_xrcd: unsafe extern "C" fn(Context, *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd,
    pub attach_mcast: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
    pub detach_mcast: unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int,
    pub poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    pub post_send:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    pub post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

/// The other half of this shared object.
pub static LIBIBVERBS: Calls = Calls {
    get_device_list: device::ibv_get_device_list,
    free_device_list: device::ibv_free_device_list,
    open_device: open::ibv_open_device,
    query_device: device::ibv_query_device,
    query_port: device::ibv_query_port,
    transport,
    query_gid: gid::ibv_query_gid,
    alloc_pd: memory::ibv_alloc_pd,
    dealloc_pd: memory::ibv_dealloc_pd,
    reg_mr: memory::ibv_reg_mr,
    dereg_mr: memory::ibv_dereg_mr,
    create_comp_channel: channel::ibv_create_comp_channel,
    destroy_comp_channel: channel::ibv_destroy_comp_channel,
    create_cq: cq::ibv_create_cq,
    destroy_cq: cq::ibv_destroy_cq,
    get_cq_event: channel::ibv_get_cq_event,
    ack_cq_events: cq::ibv_ack_cq_events,
    create_qp: qp::create_qp_ex,
    modify_qp: qp::ibv_modify_qp,
    destroy_qp: qp::ibv_destroy_qp,
    create_srq: srq::create_srq_ex,
    destroy_srq: srq::ibv_destroy_srq,
    open_xrcd: memory::open_xrcd,
    attach_mcast: qp::ibv_attach_mcast,
    detach_mcast: qp::ibv_detach_mcast,
    poll_cq: cq::poll_cq,
    req_notify_cq: cq::req_notify_cq,
    post_send: post::post_send,
    post_recv: post::post_recv,
};

/// # Safety
/// The context is open and stays so as long as the answer is used.
unsafe fn transport(context: Context) -> &'static dyn Transport {
    // SAFETY: the caller's contract.
    let opened: &'static context::Context = unsafe { context::Context::of(context) };
    opened.engine.device().transport()
}

/// A call that returns 0 or a positive error number.
pub fn check(number: c_int) -> Result<(), Errno> {
    match number {
        0 => Ok(()),
        // The few calls that return -1 say why in errno.
        -1 => Err(Errno(sluice_verbs_calls::errno::errno())),
        other => Err(Errno(other.abs())),
    }
}

/// A call that returns an object, or NULL and `errno`.
pub fn check_pointer<T>(pointer: *mut T) -> Result<*mut T, Errno> {
    if pointer.is_null() {
        let number = sluice_verbs_calls::errno::errno();
        return Err(Errno(if number == 0 { libc::EINVAL } else { number }));
    }
    Ok(pointer)
}
