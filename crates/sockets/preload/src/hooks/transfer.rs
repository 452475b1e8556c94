//! Transfers between descriptors.

use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use sluice_preload_core::io::written;
use sluice_preload_core::real::real;
use sluice_preload_core::{conn, transfer};

hooks! {
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        // SAFETY: the program's own arguments.
        unsafe {
            match conn::get(out) {
                Some(conn) => transfer::sendfile(&conn, input, offset, count),
                None => written((real().sendfile)(out, input, offset, count)),
            }
        }
    }

    fn splice(
        input: c_int,
        input_offset: *mut i64,
        out: c_int,
        out_offset: *mut i64,
        len: size_t,
        flags: c_uint
    ) -> ssize_t {
        // SAFETY: the program's own arguments.
        let part = |len| unsafe { (real().splice)(input, input_offset, out, out_offset, len, flags) };
        let has_offsets = !input_offset.is_null() || !out_offset.is_null();
        match (conn::get(input), conn::get(out)) {
            (Some(from), _) => transfer::splice_from(&from, out, len, flags, has_offsets, part),
            (None, Some(to)) => transfer::splice_to(&to, || part(len)),
            (None, None) => written(part(len)),
        }
    }
}

aliases! {
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t = sendfile;
}
