//! The entry point, in place of the one that Rust's runtime brings.
//!
//! `sluice run` becomes another program, which must find the process as the caller set it up.
//! Rust's own start code would have changed it: it ignores SIGPIPE and opens `/dev/null` for
//! closed standard descriptors, without a record of what was there. Here neither happens, so
//! SIGPIPE also ends `sluice status | head` quietly, as it does every other tool.

#![allow(unsafe_code)]
#![cfg_attr(test, allow(dead_code))]

use std::ffi::{c_char, c_int};

/// The program's `main`, called by the C library.
///
/// The arguments are read through [`std::env::args_os`], which glibc fills in before `main`.
// SAFETY: this is the only symbol of this name in the program, and it has the type that the C
// library calls it with.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    // The panic hook has printed the message; a panic must not unwind into C.
    std::panic::catch_unwind(|| i32::from(crate::commands::main())).unwrap_or(101)
}
