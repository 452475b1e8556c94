//! Where the bytes of a message come from.
#![allow(unsafe_code)]

use sluice_shmem::verbs::copy;
use sluice_verbs::Sge;

use crate::pieces;

/// Copies from pieces of the program's memory.
pub fn from_pieces(pieces: &[Sge]) -> impl FnMut(usize, &mut [u8]) + '_ {
    |offset, bytes| {
        let mut used = 0;
        for (source, len) in pieces::gather(pieces, offset as u64, bytes.len()) {
            let Some(place) = bytes.get_mut(used..used + len) else {
                return;
            };
            // SAFETY: the engine checked the pieces and keeps them registered while a request
            // or receive that has them is not complete; `place` has `len` bytes.
            unsafe { copy::ascending(place.as_mut_ptr(), source, len) };
            used += len;
        }
    }
}

/// Copies from memory in one piece.
///
/// # Safety
/// `source` is readable for as many bytes as will be asked for, until the result is dropped.
pub unsafe fn from_memory(source: *const u8) -> impl FnMut(usize, &mut [u8]) {
    move |offset, bytes| {
        // SAFETY: the caller's promise.
        unsafe { copy::ascending(bytes.as_mut_ptr(), source.wrapping_add(offset), bytes.len()) };
    }
}

/// For messages without data.
pub fn nothing(_: usize, _: &mut [u8]) {}
