//! Memory of our own that a device reads and writes.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

use crate::limits::MESSAGE_BYTES_MAX;

/// Whole buffers of [`MESSAGE_BYTES_MAX`] bytes, zeroed, aligned to their size. Nobody has a
/// reference to any of it, except [`Pages::buffer`].
pub(crate) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is the owner's alone, and bound to no thread.
unsafe impl Send for Pages {}

impl Pages {
    /// `buffers` of them, at least one.
    pub fn new(buffers: usize) -> Self {
        let bytes = buffers.max(1) * MESSAGE_BYTES_MAX;
        let layout = Layout::from_size_align(bytes, MESSAGE_BYTES_MAX)
            .expect("limits keep it below what memory can hold");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else {
            handle_alloc_error(layout)
        };
        Self { start, layout }
    }

    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Where a buffer is. Panics beyond the last: indices are our own.
    pub fn address(&self, buffer: usize) -> NonNull<u8> {
        let at = buffer * MESSAGE_BYTES_MAX;
        assert!(at < self.bytes(), "there is no buffer {buffer}");
        // SAFETY: inside the allocation.
        unsafe { self.start.add(at) }
    }

    /// The first bytes of a buffer, at most all.
    ///
    /// # Safety
    /// Nobody writes to the buffer as long as the slice is used: it is not given to a device.
    pub unsafe fn buffer(&self, buffer: usize, length: usize) -> &[u8] {
        let length = length.min(MESSAGE_BYTES_MAX);
        // SAFETY: inside the allocation, which is initialised; the caller's contract.
        unsafe { std::slice::from_raw_parts(self.address(buffer).as_ptr(), length) }
    }

    /// Copies to the beginning of a buffer as much as it has room for.
    ///
    /// # Safety
    /// No device reads or writes the buffer.
    pub unsafe fn fill(&mut self, buffer: usize, bytes: &[u8]) {
        let length = bytes.len().min(MESSAGE_BYTES_MAX);
        // SAFETY: inside the allocation, which nobody else refers to; the caller's contract.
        unsafe {
            self.address(buffer)
                .copy_from_nonoverlapping(NonNull::from(bytes).cast(), length);
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
