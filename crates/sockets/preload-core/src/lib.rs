//! What the preload library does, apart from being one: descriptor table, policy and the
//! operations behind the hooks. `sluice-preload` adds the exported symbols.
//!
//! Rules of this crate, because its code runs inside any program's socket calls, in signal
//! handlers and in children of threaded processes: no standard I/O, no environment after
//! start, no lock that is waited for while it can be held by an interrupted frame of the same
//! thread, no thread-local with a destructor, and nothing is printed unless `SLUICE_LOG` asks.
//!
//! # Who knows whom
//!
//! Each line names only what is in it and above it (`scripts/test rules`).
//!
//! | modules | what |
//! |---|---|
//! | [`config`], [`lock`], [`real`], `raw_address`, `machine`, `own_status`, `waiting`, [`reach`], [`loader`] | means, without state of connections |
//! | [`this_process`], [`memory`], `event_times`, `own_stack`, [`seccomp`], [`log`], [`policy`] | what this process is, and what its user wants |
//! | [`fds`], `closing`, `hiding` | descriptors |
//! | [`ends`], [`conn`], [`children`], [`export`], [`unseen`], `nagle`, [`stats`] | connections: their records, who holds them, and how they are left to the kernel |
//! | [`epoll`], [`rings`] | what the kernel watches and moves connections with |
//! | [`mapped`], `postponed`, [`link`], [`gateway`] | the link with sluiced, and the one with a gateway: what is said comes as values |
//! | [`messages`], [`tracking`] | what becomes of connections: tracked, announced, given lanes, let go |
//! | [`io`], [`transfer`], [`epoll_wait`], [`poll`], [`options`], [`outward`], [`descriptors`], [`leave`], [`carry`], [`passing`], [`uring`], [`jumps`], [`plugins`] | operations, behind one hook or a few each |
//! | [`process`] | start, fork, exec, confinement and end, which concern them all |
//!
//! Twice a lower module calls what stands above it, by a function that it is given at start: the lane's waits
//! look whether sluiced is there ([`messages::check_daemon`]), and a dead child's records are told to sluiced
//! ([`children::set_release`]).

pub mod carry;
pub mod children;
mod closing;
pub mod config;
pub mod conn;
pub mod descriptors;
pub mod ends;
pub mod epoll;
pub mod epoll_wait;
mod event_times;
pub mod export;
pub mod fds;
pub mod gateway;
mod hiding;
pub mod io;
pub mod jumps;
pub mod leave;
pub mod link;
pub mod loader;
pub mod lock;
pub mod log;
mod machine;
pub mod mapped;
pub mod memory;
pub mod messages;
mod nagle;
pub mod options;
pub mod outward;
mod own_stack;
mod own_status;
pub mod passing;
pub mod plugins;
pub mod policy;
pub mod poll;
mod postponed;
pub mod process;
mod raw_address;
pub mod reach;
pub mod real;
pub mod rings;
pub mod seccomp;
pub mod stats;
#[cfg(test)]
mod tests;
pub mod this_process;
pub mod tracking;
pub mod transfer;
pub mod unseen;
pub mod uring;
mod waiting;

pub use sluice_lane::reason::Reason;
pub use sluice_sys::errno::Errno;

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
