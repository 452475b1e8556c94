//! librdmacm: connections by address, and `rsocket`.
//!
//! From the inside out: `message` is what processes say to each other, `rendezvous` where
//! they find each other, `fabric` the messages to and from other hosts, `agent` the connection
//! manager that the kernel would be, with its event `channel`s. None of them knows what a QP is. On top of them are the C objects
//! (`object`) and calls: `cm_calls`, `events`, `qp`, `endpoint`, `multicast`. They use
//! libibverbs through the table in `verbs` only.

mod abi;
mod address;
mod agent;
mod c_address;
#[cfg(test)]
mod c_tests;
mod channel;
pub mod cm_calls;
mod device;
pub mod endpoint;
pub mod events;
mod fabric;
mod message;
pub mod multicast;
mod object;
mod poller;
pub mod qp;
mod qp_mask;
mod rendezvous;
pub mod rsocket;
mod verbs;

use std::ffi::c_int;

use sluice_sys::errno::Errno;

/// The error number of a failed operation of the standard library.
fn errno_of(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Bits that nobody can guess: those that the standard library takes against attacks on its hash
/// tables.
fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    state.build_hasher().finish()
}

/// The answer of librdmacm's calls: 0, or -1 and `errno`.
fn answer(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => sluice_verbs_calls::errno::minus_one(errno.0),
    }
}

/// libibverbs as this library sees it.
fn calls() -> &'static verbs::Calls {
    &verbs::LIBIBVERBS
}
