//! Posting work requests: the lists of the header become the engine's requests, one at a time and
//! without a copy.

use std::ffi::c_int;
use std::slice;

use sluice_verbs as engine;
use sluice_verbs::{QpType, SendWr, Sge, WrOpcode};

use super::named::{destination, window_binding};
use super::objects::{Object, Srq, number};
use super::queue_pair::Qp;
use crate::ffi::*;

const _: () = assert!(size_of::<ibv_sge>() == size_of::<Sge>());

/// # Safety
/// `list` has `count` entries, or the count is not positive.
unsafe fn sges<'a>(list: *mut ibv_sge, count: c_int) -> engine::Result<&'a [Sge]> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's contract; the engine's structure has the C layout.
        Ok(count) => Ok(unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) }),
        Err(_) => Err(engine::Error::TooManySges),
    }
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the header's contract.
    let object = unsafe { Qp::of(qp) };
    let qp_type = object.engine.qp_type();
    let mut sender = object.engine.sender();
    while !wr.is_null() {
        // SAFETY: the header's contract: a list that ends with NULL.
        let request = unsafe { &*wr };
        // SAFETY: the header's contract.
        let posted = unsafe { convert(request, qp_type) }.and_then(|wr| sender.post(&wr));
        if let Err(error) = posted {
            // SAFETY: the header's contract.
            unsafe { *bad_wr = wr };
            return number(error);
        }
        wr = request.next;
    }
    0
}

/// # Safety
/// The header's contract for the request.
unsafe fn convert(request: &ibv_send_wr, qp_type: QpType) -> engine::Result<SendWr<'_>> {
    let opcode = WrOpcode::try_from(request.opcode)?;
    let mut wr = SendWr::new(opcode, request.wr_id);
    wr.flags = request.send_flags;
    wr.imm = request.imm_data;
    // SAFETY: the caller's contract; which member of a union counts follows from opcode and type.
    unsafe {
        wr.sges = sges(request.sg_list, request.num_sge)?;
        match opcode {
            WrOpcode::AtomicCmpAndSwp | WrOpcode::AtomicFetchAndAdd => {
                let atomic = request.wr.atomic;
                (wr.remote_addr, wr.rkey) = (atomic.remote_addr, atomic.rkey);
                (wr.compare_add, wr.swap) = (atomic.compare_add, atomic.swap);
            }
            WrOpcode::BindMw => wr.bind = Some(binding(&request.bind_mw)?),
            _ if qp_type == QpType::Ud => {
                let to = request.wr.ud;
                wr.ud = Some(destination(to.ah, to.remote_qpn, to.remote_qkey)?);
            }
            _ => {
                let rdma = request.wr.rdma;
                (wr.remote_addr, wr.rkey) = (rdma.remote_addr, rdma.rkey);
            }
        }
    }
    if qp_type == QpType::XrcSend {
        wr.xrc_srqn = request.qp_type;
    }
    Ok(wr)
}

/// # Safety
/// The header's contract for window and region.
unsafe fn binding<'a>(bind: &send_wr_bind_mw) -> engine::Result<engine::MwBind<'a>> {
    // SAFETY: the caller's contract.
    unsafe { window_binding(bind.mw, bind.rkey, &bind.bind_info) }
}

/// Posts each request of a list; says which one was refused.
///
/// # Safety
/// The header's contract for the list.
unsafe fn post_receives(
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(u64, &[Sge]) -> engine::Result<()>,
) -> c_int {
    while !wr.is_null() {
        // SAFETY: the caller's contract: a list that ends with NULL.
        let request = unsafe { &*wr };
        // SAFETY: the caller's contract.
        let posted = unsafe { sges(request.sg_list, request.num_sge) }
            .and_then(|sges| post(request.wr_id, sges));
        if let Err(error) = posted {
            // SAFETY: the caller's contract.
            unsafe { *bad_wr = wr };
            return number(error);
        }
        wr = request.next;
    }
    0
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the header's contract.
    let engine = &unsafe { Qp::of(qp) }.engine;
    // SAFETY: the header's contract.
    unsafe { post_receives(wr, bad_wr, |wr_id, sges| engine.post_recv(wr_id, sges)) }
}

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the header's contract.
    let engine = &unsafe { Srq::of(srq) }.engine;
    // SAFETY: the header's contract.
    unsafe { post_receives(wr, bad_wr, |wr_id, sges| engine.post_recv(wr_id, sges)) }
}
