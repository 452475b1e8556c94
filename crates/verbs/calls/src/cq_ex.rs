//! Completion queues with extended polling: one completion at a time, read field by field.

use std::ffi::c_int;

use sluice_verbs::WcStatus;

use super::cq::{create, publish};
use super::device::clock_ns;
use super::objects::{Cq, Current, Object, number};
use crate::errno::null;
use crate::ffi::*;

const FLAGS_KNOWN: u64 = IBV_WC_EX_WITH_BYTE_LEN
    | IBV_WC_EX_WITH_IMM
    | IBV_WC_EX_WITH_QP_NUM
    | IBV_WC_EX_WITH_SRC_QP
    | IBV_WC_EX_WITH_SLID
    | IBV_WC_EX_WITH_SL
    | IBV_WC_EX_WITH_DLID_PATH_BITS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the header's contract.
    let init = unsafe { &*init };
    let masks = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        init.flags
    } else {
        0
    };
    // A queue that one thread polls alone needs nothing else than any other. One whose overrun is
    // ignored would have to drop completions silently, which this engine does not.
    if init.comp_mask & !masks != 0
        || init.wc_flags & !FLAGS_KNOWN != 0
        || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the header's contract.
    let made = unsafe {
        create(
            context,
            init.cqe,
            init.cq_context,
            init.channel,
            init.comp_vector,
        )
    };
    match made {
        Ok(mut object) => {
            let current = object.current.get_mut();
            current.wants_monotonic = init.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0;
            current.wants_wall = init.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0;
            fill(object.c.get_mut());
            publish(object).cast()
        }
        Err(error) => null(number(error)),
    }
}

fn fill(c: &mut ibv_cq_ex) {
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_wc_flags = Some(read_wc_flags);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_dlid_path_bits);
    c.read_completion_ts = Some(read_completion_ts);
    c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
}

/// # Safety
/// The header's contract; only the polling thread is between start_poll and end_poll.
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a mut Current {
    // SAFETY: the caller's contract.
    unsafe { &mut *Cq::of(cq.cast()).current.get() }
}

/// Takes the next completion. Its times are those of this moment: the engine makes progress when
/// it is polled, and keeps no clock of its own.
unsafe fn take(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's contract.
    let (object, current) = unsafe { (Cq::of(cq.cast()), current(cq)) };
    let Some(wc) = object.engine.poll_one() else {
        return libc::ENOENT;
    };
    if current.wants_monotonic {
        current.monotonic_ns = clock_ns(libc::CLOCK_MONOTONIC);
    }
    if current.wants_wall {
        current.wall_ns = clock_ns(libc::CLOCK_REALTIME);
    }
    current.wc = wc;
    // SAFETY: the header's contract. Other threads do not read these fields meanwhile.
    unsafe {
        (*cq).wr_id = wc.wr_id;
        (*cq).status = wc.status;
    }
    debug_assert!(WcStatus::try_from(wc.status).is_ok());
    0
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the header's contract.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the header's contract.
    unsafe { take(cq) }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the header's contract.
    unsafe { take(cq) }
}

/// Completions were taken one by one; nothing is left to give back.
extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

macro_rules! reader {
    ($($name:ident -> $type:ty: |$current:ident| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the header's contract.
            let $current = unsafe { current(cq) };
            $value
        })*
    };
}

reader! {
    read_opcode -> u32: |current| current.wc.opcode;
    read_vendor_err -> u32: |current| current.wc.vendor_err;
    read_byte_len -> u32: |current| current.wc.byte_len;
    read_imm_data -> u32: |current| current.wc.imm;
    read_qp_num -> u32: |current| current.wc.qp_num;
    read_src_qp -> u32: |current| current.wc.src_qp;
    read_wc_flags -> u32: |current| current.wc.wc_flags;
    read_slid -> u32: |current| u32::from(current.wc.slid);
    read_sl -> u8: |current| current.wc.sl;
    read_dlid_path_bits -> u8: |current| current.wc.dlid_path_bits;
    read_completion_ts -> u64: |current| current.monotonic_ns;
    read_completion_wallclock_ns -> u64: |current| current.wall_ns;
}
