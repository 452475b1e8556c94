//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};

use sluice_verbs as engine;

use super::objects::{Cq, Object, Pd, Srq, Xrcd, number, optional};
use crate::errno::null;
use crate::ffi::*;

pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the header's contract.
    let init = unsafe { &mut *init };
    // SAFETY: the header's contract.
    unsafe { create(pd, init.srq_context, &mut init.attr, None, None) }
}

pub unsafe extern "C" fn create_srq_ex(
    _context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: the header's contract.
    let init = unsafe { &mut *init };
    let has = |mask: u32| init.comp_mask & mask != 0;
    let known = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    let srq_type = if has(IBV_SRQ_INIT_ATTR_TYPE) {
        init.srq_type
    } else {
        IBV_SRQT_BASIC
    };
    if has(!known) || srq_type > IBV_SRQT_XRC {
        return null(libc::EOPNOTSUPP);
    }
    if !has(IBV_SRQ_INIT_ATTR_PD) || init.pd.is_null() {
        return null(libc::EINVAL);
    }
    let (mut xrcd, mut cq) = (None, None);
    if srq_type == IBV_SRQT_XRC {
        if !has(IBV_SRQ_INIT_ATTR_XRCD) || !has(IBV_SRQ_INIT_ATTR_CQ) {
            return null(libc::EINVAL);
        }
        // SAFETY: the header's contract.
        (xrcd, cq) = unsafe { (optional::<Xrcd>(init.xrcd), optional::<Cq>(init.cq)) };
        if xrcd.is_none() || cq.is_none() {
            return null(libc::EINVAL);
        }
    }
    // SAFETY: the header's contract.
    unsafe { create(init.pd, init.srq_context, &mut init.attr, xrcd, cq) }
}

/// # Safety
/// The header's contract.
unsafe fn create(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrcd: Option<&Xrcd>,
    cq: Option<&Cq>,
) -> *mut ibv_srq {
    let init = engine::SrqInit {
        attr: engine::SrqAttr {
            max_wr: attr.max_wr,
            max_sge: attr.max_sge,
            // A new queue is not armed, whatever stands there.
            srq_limit: 0,
        },
        xrcd: xrcd.map(|xrcd| xrcd.engine.clone()),
        cq: cq.map(|cq| cq.engine.clone()),
        cookie: 0,
    };
    // SAFETY: the caller's contract.
    let engine = match unsafe { Pd::of(pd) }.engine.create_srq(&init) {
        Ok(engine) => engine,
        Err(error) => return null(number(error)),
    };
    let got = engine.query();
    (attr.max_wr, attr.max_sge) = (got.max_wr, got.max_sge);
    // SAFETY: pointers and numbers, for which zero is "none"; mutex and condition variable are
    // unused ones.
    let mut c: ibv_srq = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's contract.
    c.context = unsafe { (*pd).context };
    c.srq_context = srq_context;
    c.pd = pd;
    c.handle = engine.num();
    let object = Box::new(Srq {
        c: UnsafeCell::new(c),
        engine: engine.clone(),
    });
    let pointer = object.give();
    engine.set_cookie(pointer.expose_provenance() as u64);
    pointer
}

pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the header's contract.
    let (object, attr) = unsafe { (Srq::of(srq), &*attr) };
    let attr = engine::SrqAttr {
        max_wr: attr.max_wr,
        max_sge: attr.max_sge,
        srq_limit: attr.srq_limit,
    };
    match object.engine.modify(&attr, mask as u32) {
        Ok(()) => 0,
        Err(error) => number(error),
    }
}

pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the header's contract.
    let found = unsafe { Srq::of(srq) }.engine.query();
    // SAFETY: the header's contract.
    unsafe {
        attr.write(ibv_srq_attr {
            max_wr: found.max_wr,
            max_sge: found.max_sge,
            srq_limit: found.srq_limit,
        });
    }
    0
}

pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    // SAFETY: the header's contract.
    let object = unsafe { Srq::of(srq) };
    if object.engine.xrcd().is_none() {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the header's contract.
    unsafe { *srq_num = object.engine.num() };
    0
}

pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the header's contract.
    if let Err(error) = unsafe { Srq::of(srq) }.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Srq::take(srq) };
    0
}
