//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;

use super::context::Context;
use super::objects::{Channel, Object, number};
use crate::errno::{minus_one, null};
use crate::ffi::*;

pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv_context,
) -> *mut ibv_comp_channel {
    // SAFETY: the header's contract.
    match unsafe { Context::of(context) }.engine.create_channel() {
        Ok(engine) => Box::new(Channel {
            c: UnsafeCell::new(ibv_comp_channel {
                context,
                fd: engine.fd(),
                refcnt: 0,
            }),
            engine,
        })
        .give(),
        Err(error) => null(number(error)),
    }
}

pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the header's contract.
    if let Err(error) = unsafe { Channel::of(channel) }.engine.destroy() {
        return number(error);
    }
    // SAFETY: the header's contract.
    unsafe { Channel::take(channel) };
    0
}

pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the header's contract.
    match unsafe { Channel::of(channel) }.engine.get_event() {
        Ok(cookie) => {
            let found: *mut ibv_cq = ptr::with_exposed_provenance_mut(cookie as usize);
            // SAFETY: the cookie is the address of the C object, which cannot be destroyed while
            // this event is not acknowledged.
            unsafe {
                *cq = found;
                *cq_context = (*found).cq_context;
            }
            0
        }
        Err(error) => minus_one(number(error)),
    }
}
