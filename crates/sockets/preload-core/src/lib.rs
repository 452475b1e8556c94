//! What the preload library does, apart from being one: descriptor table, policy and the
//! operations behind the hooks. `sluice-preload` adds the exported symbols.
//!
//! Rules of this crate, because its code runs inside any program's socket calls, in signal
//! handlers and in children of threaded processes: no standard I/O, no environment after
//! start, no lock that is waited for while it can be held by an interrupted frame of the same
//! thread, no thread-local with a destructor, and nothing is printed unless `SLUICE_LOG` asks.

pub mod carry;
pub mod children;
pub mod config;
pub mod conn;
pub mod descriptors;
pub mod epoll;
pub mod fds;
pub mod gateway;
pub mod io;
pub mod leave;
pub mod link;
pub mod lock;
pub mod log;
pub mod mapped;
pub mod memory;
pub mod options;
pub mod outward;
pub mod passing;
pub mod policy;
pub mod poll;
pub mod process;
mod raw_address;
pub mod reach;
pub mod real;
pub mod seccomp;
pub mod stats;
pub mod transfer;
pub mod uring;

pub use sluice_lane::reason::Reason;
use sluice_sys::errno::Errno;

/// Maps a result to the C convention: the value, or -1 with `errno` set.
pub fn to_c(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => {
            real::set_errno(errno.0);
            -1
        }
    }
}
