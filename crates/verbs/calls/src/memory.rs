//! Protection domains, memory regions and windows, XRC domains.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sluice_verbs as engine;

use super::context::Context;
use super::named::window_binding;
use super::objects::{Mr, Mw, Object, Pd, Td, Xrcd, number, optional};
use super::queue_pair::Qp;
use crate::errno::{null, set_errno};
use crate::ffi::*;

pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the header's contract.
    match unsafe { Context::of(context) }.engine.alloc_pd() {
        Ok(engine) => Box::new(Pd {
            c: UnsafeCell::new(ibv_pd {
                context,
                handle: engine.id(),
            }),
            engine,
            children: AtomicU32::new(0),
            parent: ptr::null_mut(),
        })
        .give(),
        Err(error) => null(number(error)),
    }
}

pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the header's contract.
    let object = unsafe { Pd::of(pd) };
    // SAFETY: a parent domain keeps its domain from being freed, see below.
    if let Some(parent) = unsafe { optional::<Pd>(object.parent) } {
        parent.children.fetch_sub(1, Ordering::Relaxed);
    } else if object.children.load(Ordering::Relaxed) > 0 {
        return libc::EBUSY;
    } else if let Err(error) = object.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Pd::take(pd) };
    0
}

/// A thread domain says which objects one thread uses alone. Locks here are cheap when they are
/// not contended, so nothing comes of it.
pub unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    init: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the header's contract.
    if unsafe { (*init).comp_mask } != 0 {
        return null(libc::EINVAL);
    }
    Box::new(Td {
        c: UnsafeCell::new(ibv_td { context }),
    })
    .give()
}

pub unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the header's contract.
    unsafe { Td::take(td) };
    0
}

/// A parent domain is another name for a domain. Allocators of the program are refused: nothing
/// here would call them.
pub unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    init: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const PD_CONTEXT: u32 = 1 << 1;
    // SAFETY: the header's contract.
    let init = unsafe { &*init };
    if init.comp_mask & !PD_CONTEXT != 0 {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the header's contract.
    let Some(parent) = (unsafe { optional::<Pd>(init.pd) }) else {
        return null(libc::EINVAL);
    };
    if !parent.parent.is_null() {
        return null(libc::EINVAL);
    }
    parent.children.fetch_add(1, Ordering::Relaxed);
    Box::new(Pd {
        c: UnsafeCell::new(ibv_pd {
            context,
            handle: parent.engine.id(),
        }),
        engine: parent.engine.clone(),
        children: AtomicU32::new(0),
        parent: init.pd,
    })
    .give()
}

/// Registers memory of the program's and gives it the region, which it knows by address and length.
///
/// # Safety
/// The header's contract for `pd`.
unsafe fn register_shown(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    if length == 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: the caller's contract.
    unsafe { register(pd, addr as u64, length, iova, access, addr, None) }
}

/// Registers memory and gives the region to the program, which knows it by `shown` and its length.
/// `neighbours` counts regions.
///
/// # Safety
/// The header's contract for `pd`.
pub unsafe fn register(
    pd: *mut ibv_pd,
    addr: u64,
    length: usize,
    iova: u64,
    access: u32,
    shown: *mut c_void,
    neighbours: Option<&Arc<AtomicU32>>,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract.
    let object = unsafe { Pd::of(pd) };
    let made = (object.engine).reg_mr(addr, length as u64, iova, access);
    let engine = match made {
        Ok(engine) => engine,
        Err(error) => return null(number(error)),
    };
    if let Some(regions) = neighbours {
        regions.fetch_add(1, Ordering::AcqRel);
    }
    Box::new(Mr {
        c: UnsafeCell::new(ibv_mr {
            // SAFETY: the caller's contract.
            context: unsafe { (*pd).context },
            pd,
            addr: shown,
            length,
            handle: engine.lkey() >> 8,
            lkey: engine.lkey(),
            rkey: engine.rkey(),
        }),
        engine,
        neighbours: neighbours.cloned(),
    })
    .give()
}

pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the header's contract.
    unsafe { register_shown(pd, addr, length, addr as u64, access as u32) }
}

pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the header's contract.
    unsafe { register_shown(pd, addr, length, iova, access as u32) }
}

pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the header's contract.
    unsafe { register_shown(pd, addr, length, iova, access) }
}

/// The keys stay what they are; a program reads them again all the same, as on other devices.
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let changes = |flag: c_int| flags & flag != 0;
    // Values without the flag that they belong to are a mistake, as everywhere.
    let no_place = changes(IBV_REREG_MR_CHANGE_TRANSLATION) && (length == 0 || addr.is_null());
    if no_place || (access != 0 && !changes(IBV_REREG_MR_CHANGE_ACCESS)) {
        set_errno(libc::EINVAL);
        return IBV_REREG_MR_ERR_INPUT;
    }
    // SAFETY: the header's contract.
    let object = unsafe { Mr::of(mr) };
    // SAFETY: the header's contract.
    let new_pd = unsafe { optional::<Pd>(pd) };
    let result = object.engine.rereg(
        flags as u32,
        new_pd.map(|pd| &pd.engine),
        addr as u64,
        length as u64,
        access as u32,
    );
    if let Err(error) = result {
        set_errno(number(error));
        return if object.engine.is_open() {
            IBV_REREG_MR_ERR_INPUT
        } else {
            IBV_REREG_MR_ERR_CMD
        };
    }
    // SAFETY: the header's contract; nobody else uses the region meanwhile.
    let c = unsafe { &mut *mr };
    if changes(IBV_REREG_MR_CHANGE_TRANSLATION) {
        (c.addr, c.length) = (addr, length);
    }
    if changes(IBV_REREG_MR_CHANGE_PD) {
        c.pd = pd;
    }
    0
}

pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the header's contract.
    let object = unsafe { Mr::of(mr) };
    if let Err(error) = object.engine.destroy() {
        return number(error);
    }
    if let Some(regions) = &object.neighbours {
        regions.fetch_sub(1, Ordering::AcqRel);
    }
    // SAFETY: the header's contract.
    unsafe { Mr::take(mr) };
    0
}

pub unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, mw_type: u32) -> *mut ibv_mw {
    let engine_type = match mw_type {
        1 => engine::MwType::Type1,
        2 => engine::MwType::Type2,
        _ => return null(libc::EINVAL),
    };
    // SAFETY: the header's contract.
    match unsafe { Pd::of(pd) }.engine.alloc_mw(engine_type) {
        Ok(engine) => Box::new(Mw {
            c: UnsafeCell::new(ibv_mw {
                // SAFETY: the header's contract.
                context: unsafe { (*pd).context },
                pd,
                rkey: engine.rkey(),
                handle: engine.rkey() >> 8,
                r#type: mw_type,
            }),
            engine,
        })
        .give(),
        Err(error) => null(number(error)),
    }
}

pub unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the header's contract.
    if let Err(error) = unsafe { Mw::of(mw) }.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Mw::take(mw) };
    0
}

/// Binds a type 1 window, through the QP's send queue.
pub unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    // SAFETY: the header's contract.
    let (qp, window, bind) = unsafe { (Qp::of(qp), Mw::of(mw), &*bind) };
    let rkey = window.engine.next_rkey();
    // SAFETY: the header's contract.
    let binding = match unsafe { window_binding(mw, rkey, &bind.bind_info) } {
        Ok(binding) => binding,
        Err(error) => return number(error),
    };
    let wr = engine::SendWr {
        flags: bind.send_flags,
        bind: Some(binding),
        ..engine::SendWr::new(engine::WrOpcode::BindMw, bind.wr_id)
    };
    match qp.engine.post_send(&wr) {
        Ok(()) => {
            // SAFETY: the header's contract. The window has its new key when the call returns.
            unsafe { (*mw).rkey = rkey };
            0
        }
        Err(error) => number(error),
    }
}

pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    const FD: u32 = 1;
    const OFLAGS: u32 = 1 << 1;
    // SAFETY: the header's contract.
    let (object, init) = unsafe { (Context::of(context), &*init) };
    if init.comp_mask != FD | OFLAGS || init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return null(libc::EINVAL);
    }
    let inode = if init.fd == -1 {
        None
    } else {
        // SAFETY: plain numbers; fstat fills it.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: stat is valid for the call.
        if unsafe { libc::fstat(init.fd, &mut stat) } != 0 {
            return ptr::null_mut();
        }
        Some((stat.st_dev, stat.st_ino))
    };
    let (create, exclusive) = (
        init.oflags & libc::O_CREAT != 0,
        init.oflags & libc::O_EXCL != 0,
    );
    match object.engine.open_xrcd(inode, create, exclusive) {
        Ok(engine) => Box::new(Xrcd {
            c: UnsafeCell::new(ibv_xrcd { context }),
            engine,
        })
        .give(),
        Err(error) => null(number(error)),
    }
}

pub unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the header's contract.
    if let Err(error) = unsafe { Xrcd::of(xrcd) }.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Xrcd::take(xrcd) };
    0
}
