//! The drop-in libraries: one shared object that is `libibverbs.so.1` and, by a link,
//! `librdmacm.so.1`.
//!
//! The two are one file because the dynamic linker recognises a file by its inode: a program that
//! loads both gets one engine. What is exported under which version is in the tables of
//! `symbols/`, of which `build.rs` makes jumps to the functions of the crates that are taken in
//! here.
#![allow(unsafe_code)]
// Nothing calls the exported functions where nothing is exported.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod allocation;
mod device_files;
mod linked;
mod next;
mod stubs;

use sluice_rdmacm as rdmacm;
use sluice_rsocket as rsocket;
use sluice_verbs_calls as calls;

/// Tests are ordinary programs, which have no symbol versions.
#[cfg(not(test))]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}
