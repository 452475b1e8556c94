//! librdmacm: connections by address.
//!
//! From the inside out: `message` is what two ends say to each other; `connector` is a way to peers,
//! of which there are three: `host` for this host, where processes find each other by `rendezvous`,
//! `fabric` for others, and `stream` for devices that connect by TCP; `agent` is the connection manager that the kernel would be, with its event
//! `channel`s. None of them knows what a QP is. On top of them are the C objects (`object`) and calls: `cm_calls`, `events`, `qp`, `endpoint`,
//! `multicast`, which `crates/verbs/ibverbs` exports. They use libibverbs through the table in
//! `verbs` only.
#![allow(unsafe_code)]

pub mod abi;
pub mod address;
mod agent;
pub mod c_address;
#[cfg(test)]
mod c_tests;
pub mod channel;
pub mod cm_calls;
mod connector;
pub mod device;
pub mod endpoint;
pub mod events;
mod fabric;
mod host;
pub mod message;
pub mod multicast;
pub mod object;
mod path;
mod poller;
pub mod qp;
mod qp_mask;
mod rendezvous;
mod state;
mod stream;
mod synchronous;
pub mod verbs;

use std::ffi::c_int;

#[cfg(feature = "testing")]
pub use fabric::loopback;
pub use sluice_sys::errno::Errno;
use sluice_verbs_abi as ffi;

/// The error number of a failed operation of the standard library.
pub fn errno_of(error: &std::io::Error) -> Errno {
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
pub fn answer(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => sluice_verbs_calls::errno::minus_one(errno.0),
    }
}

/// libibverbs as this library sees it.
pub fn calls() -> &'static verbs::Calls {
    &verbs::LIBIBVERBS
}
