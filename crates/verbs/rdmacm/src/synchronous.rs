//! Identifiers without a channel of the program: a call on one waits for the event that ends it,
//! and the event stays in the identifier until the next call.

use std::ptr::null_mut;

use super::abi::rdma_cm_id;
use super::channel::EventKind;
use super::object::{EventObject, Id};
use super::{Errno, events};

/// Gives the event back that a synchronous call left in the identifier.
///
/// # Safety
/// `id` is an identifier.
pub unsafe fn release_event(id: *mut rdma_cm_id) {
    // SAFETY: the caller's contract; the field holds an event of ours or NULL.
    unsafe {
        let event = std::mem::replace(&mut (*id).event, null_mut());
        if !event.is_null() {
            EventObject::take(event).owner.done();
        }
    }
}

/// Waits for the event that ends a call, if the identifier is synchronous, and keeps it
/// in the identifier.
///
/// # Safety
/// `id` is an identifier.
pub unsafe fn complete(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the caller's contract.
    let this = unsafe { Id::of(id) };
    if !this.synchronous() {
        return Ok(());
    }
    // SAFETY: the caller's contract.
    unsafe { release_event(id) };
    let channel = this.inner().channel.clone().ok_or(Errno::INVAL)?;
    let event = events::next(&channel)?;
    let (kind, status) = (event.c.event, event.c.status);
    // SAFETY: the caller's contract.
    unsafe { (*id).event = event.give() };
    match status {
        0 => Ok(()),
        _ if kind == EventKind::Rejected as u32 => Err(Errno(libc::ECONNREFUSED)),
        negative if negative < 0 => Err(Errno(-negative)),
        positive => Err(Errno(positive)),
    }
}
