//! `libsluice_preload.so`: the C library's socket functions, each a thin shell over an operation
//! of `sluice-preload-core`.
//!
//! A hook looks its descriptor up, which is one load for anything that is not ours, and passes
//! the call on. Symbols are exported unversioned; the dynamic linker lets them stand in for any
//! version.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod go;
mod hooks;

use sluice_preload_core::process;

extern "C" fn start() {
    process::start();
    #[cfg(target_arch = "x86_64")]
    go::start();
}

extern "C" fn end() {
    process::before_exit();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
