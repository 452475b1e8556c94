//! Queue pairs.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;

use sluice_verbs as engine;
use sluice_verbs::{Gid, QpInit, QpType};

use super::batch::Batch;
use super::context::Context;
use super::objects::{Cq, Object, Pd, Srq, Xrcd, number, optional};
use super::queue_pair::Qp;
use super::{qp_ex, stats};
use crate::errno::null;
use crate::ffi::*;

pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the header's contract: the extended structure begins with this one, and only that
    // beginning is read and written without a mask.
    let extended = unsafe {
        let plain = &*init;
        ibv_qp_init_attr_ex {
            qp_context: plain.qp_context,
            send_cq: plain.send_cq,
            recv_cq: plain.recv_cq,
            srq: plain.srq,
            cap: plain.cap,
            qp_type: plain.qp_type,
            sq_sig_all: plain.sq_sig_all,
            comp_mask: IBV_QP_INIT_ATTR_PD,
            pd,
            ..std::mem::zeroed()
        }
    };
    // SAFETY: the header's contract.
    unsafe {
        match create((*pd).context, &extended) {
            Ok((qp, cap)) => {
                (*init).cap = cap;
                qp
            }
            Err(error) => null(number(error)),
        }
    }
}

pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the header's contract.
    unsafe {
        match create(context, &*init) {
            Ok((qp, cap)) => {
                (*init).cap = cap;
                qp
            }
            Err(error) => null(number(error)),
        }
    }
}

const BLOCK_SELF_MULTICAST_LOOPBACK: u32 = 1 << 1;

/// # Safety
/// The header's contract.
unsafe fn create(
    context: *mut ibv_context,
    init: &ibv_qp_init_attr_ex,
) -> engine::Result<(*mut ibv_qp, ibv_qp_cap)> {
    use engine::Error::{NotSupported, WrongObject};
    let has = |mask: u32| init.comp_mask & mask != 0;
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let create_flags = if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) {
        init.create_flags
    } else {
        0
    };
    // A type that the engine does not have is one that this device does not support.
    let qp_type = QpType::try_from(init.qp_type).map_err(|_| NotSupported)?;
    // SAFETY: the caller's contract.
    let caps = unsafe { Context::of(context) }.engine.device().caps();
    let operations = qp_ex::operations(&caps, qp_type);
    let asked = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(init.send_ops_flags);
    if has(!known)
        || create_flags & !BLOCK_SELF_MULTICAST_LOOPBACK != 0
        || asked.is_some_and(|asked| asked & !operations != 0)
    {
        return Err(NotSupported);
    }
    let mut wanted = QpInit::new(qp_type);
    // SAFETY: the caller's contract.
    unsafe {
        wanted.send_cq = optional::<Cq>(init.send_cq).map(|cq| cq.engine.clone());
        wanted.recv_cq = optional::<Cq>(init.recv_cq).map(|cq| cq.engine.clone());
        wanted.srq = optional::<Srq>(init.srq).map(|srq| srq.engine.clone());
    }
    wanted.cap = engine_cap(&init.cap);
    if qp_type != QpType::XrcRecv {
        wanted.cap.max_send_wr = roomy(wanted.cap.max_send_wr);
    }
    wanted.sq_sig_all = init.sq_sig_all != 0;
    wanted.block_multicast_loopback = create_flags != 0;
    let made = if qp_type == QpType::XrcRecv {
        if !has(IBV_QP_INIT_ATTR_XRCD) {
            return Err(WrongObject);
        }
        // SAFETY: the caller's contract.
        unsafe {
            wanted.xrcd = optional::<Xrcd>(init.xrcd).map(|xrcd| xrcd.engine.clone());
            Context::of(context).engine.create_xrc_recv(&wanted)?
        }
    } else {
        // SAFETY: the caller's contract.
        let pd = unsafe { optional::<Pd>(init.pd) };
        let pd = pd.filter(|_| has(IBV_QP_INIT_ATTR_PD)).ok_or(WrongObject)?;
        pd.engine.create_qp(&wanted)?
    };
    let got = c_cap(&made.cap());
    // SAFETY: pointers, optional functions and numbers, for which zero is "none"; mutex and
    // condition variable are unused ones.
    let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
    c.qp_base.qp_context = init.qp_context;
    c.qp_base.pd = if qp_type == QpType::XrcRecv {
        ptr::null_mut()
    } else {
        init.pd
    };
    c.qp_base.send_cq = init.send_cq;
    c.qp_base.recv_cq = init.recv_cq;
    c.qp_base.srq = init.srq;
    if let Some(asked) = asked {
        qp_ex::fill(&mut c, asked);
    }
    let batch = Batch::new(asked.is_some(), got.max_inline_data);
    Ok((publish(context, c, made, batch, false), got))
}

/// The room of a send queue, as devices have it: a power of two, and not
/// very small. Programs are used to that: perftest posts to a queue of one before it has seen
/// the completion. What is more than a device has stays what it is, and is refused.
fn roomy(max_send_wr: u32) -> u32 {
    const LEAST: u32 = 16;
    max_send_wr
        .max(LEAST)
        .checked_next_power_of_two()
        .unwrap_or(max_send_wr)
}

/// Gives the object to the program, and its address to events.
fn publish(
    context: *mut ibv_context,
    mut c: ibv_qp_ex,
    engine: std::sync::Arc<engine::Qp>,
    batch: Batch,
    shared: bool,
) -> *mut ibv_qp {
    c.qp_base.context = context;
    c.qp_base.qp_num = engine.num();
    c.qp_base.handle = engine.num();
    c.qp_base.qp_type = engine.qp_type() as u32;
    c.qp_base.state = engine.state() as u32;
    let object = Box::new(Qp {
        c: UnsafeCell::new(c),
        engine: engine.clone(),
        batch: UnsafeCell::new(batch),
        shared,
    });
    let pointer = object.give();
    if !shared {
        engine.set_cookie(pointer.expose_provenance() as u64);
        stats::began(&engine);
    }
    pointer
}

fn engine_cap(cap: &ibv_qp_cap) -> engine::QpCap {
    engine::QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

fn c_cap(cap: &engine::QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: the header's contract.
    let (object, attr) = unsafe { (Context::of(context), &*attr) };
    let wanted = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    if attr.comp_mask & wanted != wanted
        || attr.comp_mask & !(wanted | IBV_QP_OPEN_ATTR_CONTEXT) != 0
        || attr.qp_type != IBV_QPT_XRC_RECV
    {
        return null(libc::EINVAL);
    }
    // SAFETY: the header's contract.
    let Some(xrcd) = (unsafe { optional::<Xrcd>(attr.xrcd) }) else {
        return null(libc::EINVAL);
    };
    match object.engine.open_qp(&xrcd.engine, attr.qp_num) {
        Ok(found) => {
            // SAFETY: pointers, optional functions and numbers, for which zero is "none"; mutex and
            // condition variable are unused ones.
            let mut c: ibv_qp_ex = unsafe { std::mem::zeroed() };
            if attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0 {
                c.qp_base.qp_context = attr.qp_context;
            }
            publish(context, c, found, Batch::new(false, 0), true)
        }
        Err(error) => null(number(error)),
    }
}

pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the header's contract.
    let object = unsafe { Qp::of(qp) };
    // Who opened a QP that others share closes his handle; the QP lives on.
    if !object.shared {
        if let Err(error) = object.engine.destroy() {
            return number(error);
        }
        stats::ended(&object.engine);
    }
    // SAFETY: the header's contract.
    unsafe { Qp::take(qp) };
    0
}

const _: () = assert!(size_of::<ibv_qp_attr>() == size_of::<engine::QpAttr>());

pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the header's contract; the engine's structure has the C layout.
    let (object, mut attr) = unsafe { (Qp::of(qp), attr.cast::<engine::QpAttr>().read()) };
    // Programs have one set of flags for regions and queue pairs; adapters pass over those that say
    // nothing of a queue pair.
    attr.qp_access_flags &= !REGION_FLAGS;
    let known = mask as u32 & !of_the_other_half(object.engine.qp_type());
    match object.engine.modify(&attr, known) {
        Ok(()) => {
            if mask & IBV_QP_STATE != 0 {
                // SAFETY: the header's contract.
                unsafe { (*qp).state = attr.qp_state };
            }
            0
        }
        Err(error) => number(error),
    }
}

/// Attributes that one half of an extended connection has and the other has not. Programs set them
/// for both, and the kernel passes over them (`modify_qp_mask` in uverbs_cmd.c).
fn of_the_other_half(qp_type: QpType) -> u32 {
    use engine::qp_mask as m;
    match qp_type {
        QpType::XrcSend => m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER,
        QpType::XrcRecv => m::MAX_QP_RD_ATOMIC | m::RETRY_CNT | m::RNR_RETRY,
        QpType::Rc | QpType::Uc | QpType::Ud => 0,
    }
}

/// Access flags that are about memory alone.
const REGION_FLAGS: u32 = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB;

/// All attributes are filled in, whatever the mask asks for.
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: the header's contract.
    let (object, c) = unsafe { (Qp::of(qp), &mut *qp) };
    let found = object.engine.query();
    c.state = found.qp_state;
    // SAFETY: the header's contract; the engine's structure has the C layout.
    unsafe {
        attr.cast::<engine::QpAttr>().write(found);
        init.write(ibv_qp_init_attr {
            qp_context: c.qp_context,
            send_cq: c.send_cq,
            recv_cq: c.recv_cq,
            srq: c.srq,
            cap: c_cap(&object.engine.cap()),
            qp_type: c.qp_type,
            sq_sig_all: c_int::from(object.engine.sq_sig_all()),
        });
    }
    0
}

pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the header's contract.
    let (object, gid) = unsafe { (Qp::of(qp), Gid((*gid).raw)) };
    match object.engine.attach_multicast(&gid, lid) {
        Ok(()) => 0,
        Err(error) => number(error),
    }
}

pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    // SAFETY: the header's contract.
    let (object, gid) = unsafe { (Qp::of(qp), Gid((*gid).raw)) };
    match object.engine.detach_multicast(&gid, lid) {
        Ok(()) => 0,
        Err(error) => number(error),
    }
}

/// NULL for a QP that was made without the `ibv_wr_*` calls.
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    let extended = qp.cast::<ibv_qp_ex>();
    // SAFETY: the header's contract: every QP of this library has the extended structure.
    if unsafe { (*extended).wr_start }.is_some() {
        extended
    } else {
        ptr::null_mut()
    }
}

/// Whether data arrive in order of addresses is up to the transport; nothing is promised.
pub extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}

/// Both are for connections between devices that can do more than the specification.
pub extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}

pub extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}
