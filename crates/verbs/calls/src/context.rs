//! The open device as the header's inline functions see it.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::sync::Arc;

use sluice_verbs as engine;

use crate::ffi::*;

#[repr(C)]
pub struct Context {
    c: UnsafeCell<verbs_context>,
    pub engine: Arc<engine::Context>,
}

/// The program's pointer is to the last field of the C structure.
const C_OFFSET: usize = offset_of!(verbs_context, context);

impl Context {
    /// `c` has the functions of the calls.
    pub fn give(
        mut c: verbs_context,
        device: *mut ibv_device,
        engine: Arc<engine::Context>,
    ) -> *mut ibv_context {
        c.context.device = device;
        c.context.async_fd = engine.async_fd();
        let object = Box::into_raw(Box::new(Self {
            c: UnsafeCell::new(c),
            engine,
        }));
        object.cast::<u8>().wrapping_add(C_OFFSET).cast()
    }

    /// # Safety
    /// The header's contract.
    pub unsafe fn of<'a>(pointer: *mut ibv_context) -> &'a Self {
        // SAFETY: the header's contract; give made the pointer from a Box of Self.
        unsafe { &*pointer.cast::<u8>().wrapping_sub(C_OFFSET).cast::<Self>() }
    }

    /// # Safety
    /// The header's contract; the program does not use the pointer again.
    pub unsafe fn take(pointer: *mut ibv_context) -> Box<Self> {
        // SAFETY: the header's contract: give made the pointer from a Box of Self, which is taken back once.
        unsafe { Box::from_raw(pointer.cast::<u8>().wrapping_sub(C_OFFSET).cast::<Self>()) }
    }
}
