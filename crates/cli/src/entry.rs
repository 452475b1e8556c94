//! The entry point, in place of the one that Rust's runtime brings.
//!
//! `sluice run` becomes another program, which must find the process as the caller set it up.
//! Rust's own start code would have changed it: it ignores SIGPIPE and opens `/dev/null` for
//! closed standard descriptors, without a record of what was there. Here neither happens, so
//! SIGPIPE also ends `sluice status | head` quietly, as it does every other tool.

#![allow(unsafe_code)]
#![cfg_attr(test, allow(dead_code))]

use std::ffi::{c_char, c_int};
use std::thread;

use rustix::process::{Resource, getrlimit};

/// The program's `main`, called by the C library.
///
/// The arguments are read through [`std::env::args_os`], which glibc fills in before `main`.
// SAFETY: this is the only symbol of this name in the program, and it has the type that the C
// library calls it with.
#[cfg_attr(not(test), unsafe(no_mangle))]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    // The panic hook has printed the message; a panic must not unwind into C.
    std::panic::catch_unwind(on_a_stack_that_suffices).unwrap_or(101)
}

/// What reading the command line takes, and more: it needs some 100 KiB.
const STACK_BYTES: usize = 1 << 20;

/// Where the caller has limited the stack (`ulimit -s 64`), a thread with one of its own does everything. A program that
/// replaces this process has the caller's limit.
fn on_a_stack_that_suffices() -> i32 {
    let limit = getrlimit(Resource::Stack).current;
    let is_small = limit.is_some_and(|bytes| bytes < STACK_BYTES as u64);
    if is_small
        && let Ok(thread) = thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(|| i32::from(crate::commands::main()))
    {
        return thread.join().unwrap_or(101);
    }
    i32::from(crate::commands::main())
}
