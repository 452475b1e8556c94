//! Asynchronous events.

use std::ffi::c_int;
use std::ptr;

use sluice_verbs::events::Element;

use super::context::Context;
use super::objects::{Cq, Object, Srq, number};
use super::queue_pair::Qp;
use crate::errno::minus_one;
use crate::ffi::*;

pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the header's contract.
    let found = match unsafe { Context::of(context) }.engine.get_async_event() {
        Ok(found) => found,
        Err(error) => return minus_one(number(error)),
    };
    let element = match found.element {
        // A cookie is the address of the C object.
        Element::Cq(cookie) | Element::Qp(cookie) | Element::Srq(cookie) => {
            ptr::with_exposed_provenance_mut(cookie as usize)
        }
        // The union's port number is the first bytes of the pointer.
        Element::Port(port) => ptr::without_provenance_mut(usize::from(port).to_le()),
        Element::Device => ptr::null_mut(),
    };
    // SAFETY: the header's contract.
    unsafe {
        event.write(ibv_async_event {
            element,
            event_type: found.event as u32,
        });
    }
    0
}

pub unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the header's contract.
    let event = unsafe { &*event };
    let element = event.element;
    // SAFETY: the header's contract: the event came from ibv_get_async_event, so its element is
    // an object of the type that goes with the event, which waits for this call to be destroyed.
    unsafe {
        match event.event_type {
            IBV_EVENT_CQ_ERR => Cq::of(element.cast()).engine.ack_async_event(),
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => Qp::of(element.cast()).engine.ack_async_event(),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                Srq::of(element.cast()).engine.ack_async_event();
            }
            // Of the port or the device: nothing waits.
            _ => {}
        }
    }
}
