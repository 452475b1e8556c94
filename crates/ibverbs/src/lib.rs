//! The drop-in libraries: one shared object that is `libibverbs.so.1` and, by a link,
//! `librdmacm.so.1`.
#![allow(unsafe_code)]

mod ffi;
