//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::slice;

use sluice_verbs as engine;

use super::context::Context;
use super::objects::{Channel, Cq, Current, Object, number, optional};
use crate::errno::null;
use crate::ffi::*;

pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let (Ok(entries), Ok(comp_vector)) = (u32::try_from(cqe), u32::try_from(comp_vector)) else {
        return null(libc::EINVAL);
    };
    // SAFETY: the header's contract.
    match unsafe { create(context, entries, cq_context, channel, comp_vector) } {
        Ok(object) => publish(object),
        Err(error) => null(number(error)),
    }
}

/// Makes the object, which no event can name yet.
///
/// # Safety
/// The header's contract.
pub unsafe fn create(
    context: *mut ibv_context,
    entries: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: u32,
) -> engine::Result<Box<Cq>> {
    // SAFETY: the caller's contract.
    let (object, events) = unsafe { (Context::of(context), optional::<Channel>(channel)) };
    let events = events.map(|channel| &channel.engine);
    let engine = object.engine.create_cq(entries, 0, events, comp_vector)?;
    // SAFETY: pointers, optional functions and numbers, for which zero is "none"; mutex and
    // condition variable are unused ones.
    let mut c: ibv_cq_ex = unsafe { std::mem::zeroed() };
    c.context = context;
    c.channel = channel;
    c.cq_context = cq_context;
    c.handle = engine.id();
    c.cqe = c_int::try_from(engine.entries()).unwrap_or(c_int::MAX);
    Ok(Box::new(Cq {
        c: UnsafeCell::new(c),
        engine,
        current: UnsafeCell::new(Current::default()),
    }))
}

/// Gives the object to the program, and its address to events.
pub fn publish(object: Box<Cq>) -> *mut ibv_cq {
    let engine = object.engine.clone();
    let pointer = object.give();
    engine.set_cookie(pointer.expose_provenance() as u64);
    pointer
}

pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the header's contract.
    if let Err(error) = unsafe { Cq::of(cq) }.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Cq::take(cq) };
    0
}

pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let Ok(entries) = u32::try_from(cqe) else {
        return libc::EINVAL;
    };
    // SAFETY: the header's contract.
    let object = unsafe { Cq::of(cq) };
    match object.engine.resize(entries) {
        Ok(()) => {
            let entries = c_int::try_from(object.engine.entries()).unwrap_or(c_int::MAX);
            // SAFETY: the header's contract.
            unsafe { (*cq).cqe = entries };
            0
        }
        Err(error) => number(error),
    }
}

pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    // SAFETY: the header's contract.
    let (object, attr) = unsafe { (Cq::of(cq), &*attr) };
    if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
        return libc::EINVAL;
    }
    let ibv_moderate_cq {
        cq_count,
        cq_period,
    } = attr.moderate;
    match object.engine.moderate(cq_count, cq_period) {
        Ok(()) => 0,
        Err(error) => number(error),
    }
}

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    const { assert!(size_of::<ibv_wc>() == size_of::<engine::Wc>()) };
    let Ok(room) = usize::try_from(count) else {
        return -libc::EINVAL;
    };
    if room == 0 {
        return 0;
    }
    // SAFETY: the header's contract: wc has room for so many; the engine's structure has the C
    // layout and is only written.
    let (object, out) = unsafe {
        let out = wc.cast::<MaybeUninit<engine::Wc>>();
        (Cq::of(cq), slice::from_raw_parts_mut(out, room))
    };
    // Not more than there was room for, which was an int.
    object.engine.poll(out) as c_int
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the header's contract.
    match unsafe { Cq::of(cq) }.engine.arm(solicited_only != 0) {
        Ok(()) => 0,
        Err(error) => number(error),
    }
}

pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: c_uint) {
    // SAFETY: the header's contract.
    unsafe { Cq::of(cq) }.engine.ack_events(count);
}
