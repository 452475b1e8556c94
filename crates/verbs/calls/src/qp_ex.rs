//! The `ibv_wr_*` calls: requests are put together field by field and posted as a batch.

use std::ffi::{c_int, c_void};
use std::slice;

use sluice_verbs::transport::TransportCaps;
use sluice_verbs::{QpType, Sge, WrOpcode};

use super::batch::{Batch, Request};
use super::objects::{Object, number};
use super::queue_pair::Qp;
use crate::ffi::*;

/// The flag of an opcode.
const fn flag(opcode: WrOpcode) -> u64 {
    match opcode {
        WrOpcode::RdmaWrite => IBV_QP_EX_WITH_RDMA_WRITE,
        WrOpcode::RdmaWriteWithImm => IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
        WrOpcode::Send => IBV_QP_EX_WITH_SEND,
        WrOpcode::SendWithImm => IBV_QP_EX_WITH_SEND_WITH_IMM,
        WrOpcode::SendWithInv => IBV_QP_EX_WITH_SEND_WITH_INV,
        WrOpcode::RdmaRead => IBV_QP_EX_WITH_RDMA_READ,
        WrOpcode::AtomicCmpAndSwp => IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
        WrOpcode::AtomicFetchAndAdd => IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
        WrOpcode::LocalInv => IBV_QP_EX_WITH_LOCAL_INV,
        WrOpcode::BindMw => IBV_QP_EX_WITH_BIND_MW,
    }
}

/// The operations that a QP of this type may be made for, of `enum ibv_qp_create_send_ops_flags`:
/// those of the opcodes that can be posted to it. Like other providers we let a program ask for
/// SEND_WITH_INV on an unreliable connection, where posting it is refused.
pub fn operations(caps: &TransportCaps, qp_type: QpType) -> u64 {
    let opcodes = caps.opcodes_of(qp_type);
    let asked_for_only = qp_type == QpType::Uc && caps.uc;
    let has = WrOpcode::ALL.iter().filter(|opcode| {
        opcodes.contains(**opcode) || (asked_for_only && **opcode == WrOpcode::SendWithInv)
    });
    has.fold(0, |flags, opcode| flags | flag(*opcode))
}

/// Puts the functions in place, those of operations only where the program asked for them.
pub fn fill(c: &mut ibv_qp_ex, asked: u64) {
    macro_rules! operation {
        ($flag:ident, $slot:ident) => {
            if asked & $flag != 0 {
                c.$slot = Some($slot);
            }
        };
    }
    operation!(IBV_QP_EX_WITH_RDMA_WRITE, wr_rdma_write);
    operation!(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, wr_rdma_write_imm);
    operation!(IBV_QP_EX_WITH_SEND, wr_send);
    operation!(IBV_QP_EX_WITH_SEND_WITH_IMM, wr_send_imm);
    operation!(IBV_QP_EX_WITH_SEND_WITH_INV, wr_send_inv);
    operation!(IBV_QP_EX_WITH_RDMA_READ, wr_rdma_read);
    operation!(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, wr_atomic_cmp_swp);
    operation!(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, wr_atomic_fetch_add);
    operation!(IBV_QP_EX_WITH_LOCAL_INV, wr_local_inv);
    operation!(IBV_QP_EX_WITH_BIND_MW, wr_bind_mw);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
}

/// # Safety
/// The header's contract; only the posting thread is between wr_start and wr_complete.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: the caller's contract.
    unsafe { &mut *Qp::of(qp.cast()).batch.get() }
}

/// Begins a request with the id and flags that the program has set.
///
/// # Safety
/// As [`batch`].
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: WrOpcode, set: impl FnOnce(&mut Request)) {
    // SAFETY: the caller's contract.
    let (batch, wr_id, flags) = unsafe { (batch(qp), (*qp).wr_id, (*qp).wr_flags) };
    let mut request = Request::new(opcode, wr_id, flags);
    set(&mut request);
    batch.begin(request);
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the header's contract.
    unsafe { batch(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the header's contract.
    let posted = unsafe { batch(qp).post(&Qp::of(qp.cast()).engine) };
    match posted {
        Ok(()) => 0,
        Err(error) => number(error),
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the header's contract.
    unsafe { batch(qp) }.clear();
}

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) = $opcode:ident |$request:ident| $set:block)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: the header's contract.
            unsafe { begin(qp, WrOpcode::$opcode, |$request| $set) }
        })*
    };
}

operations! {
    wr_send() = Send |_request| {}
    wr_send_imm(imm: u32) = SendWithImm |request| { request.imm = imm; }
    wr_send_inv(rkey: u32) = SendWithInv |request| { request.imm = rkey; }
    wr_rdma_write(rkey: u32, address: u64) = RdmaWrite |request| {
        (request.rkey, request.remote_addr) = (rkey, address);
    }
    wr_rdma_write_imm(rkey: u32, address: u64, imm: u32) = RdmaWriteWithImm |request| {
        (request.rkey, request.remote_addr, request.imm) = (rkey, address, imm);
    }
    wr_rdma_read(rkey: u32, address: u64) = RdmaRead |request| {
        (request.rkey, request.remote_addr) = (rkey, address);
    }
    wr_atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) = AtomicCmpAndSwp
        |request| {
        (request.rkey, request.remote_addr) = (rkey, address);
        (request.compare_add, request.swap) = (compare, swap);
    }
    wr_atomic_fetch_add(rkey: u32, address: u64, add: u64) = AtomicFetchAndAdd |request| {
        (request.rkey, request.remote_addr) = (rkey, address);
        request.compare_add = add;
    }
    wr_local_inv(rkey: u32) = LocalInv |request| { request.imm = rkey; }
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = BindMw |request| {
        request.rkey = rkey;
        request.bind = Some((mw, *info));
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the header's contract.
    if let Some(request) = unsafe { batch(qp) }.last() {
        request.ud = Some((ah, qpn, qkey));
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the header's contract.
    if let Some(request) = unsafe { batch(qp) }.last() {
        request.xrc_srqn = srqn;
    }
}

/// # Safety
/// `address` has `length` bytes, or there are none.
unsafe fn bytes<'a>(address: *const c_void, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { slice::from_raw_parts(address.cast(), length) }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    // SAFETY: the header's contract.
    unsafe { batch(qp).set_inline(std::iter::once(bytes(address, length))) }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    if count == 0 {
        // SAFETY: the header's contract.
        unsafe { batch(qp) }.set_inline(std::iter::empty());
        return;
    }
    // SAFETY: the header's contract.
    unsafe {
        let list = slice::from_raw_parts(list, count);
        batch(qp).set_inline(list.iter().map(|piece| bytes(piece.addr, piece.length)));
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey };
    // SAFETY: the header's contract.
    unsafe { batch(qp) }.set_sges(std::iter::once(sge));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    if count == 0 {
        // SAFETY: the header's contract.
        unsafe { batch(qp) }.set_sges(std::iter::empty());
        return;
    }
    // SAFETY: the header's contract; the engine's structure has the C layout.
    let list = unsafe { slice::from_raw_parts(list.cast::<Sge>(), count) };
    // SAFETY: the header's contract.
    unsafe { batch(qp) }.set_sges(list.iter().copied());
}
