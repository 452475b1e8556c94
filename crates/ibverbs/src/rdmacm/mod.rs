//! librdmacm: connections by address, and `rsocket`.
//!
//! From the inside out: `message` is what processes say to each other, `rendezvous` where
//! they find each other, `agent` the connection manager that the kernel would be, with its
//! event `channel`s. None of them knows what a QP is.

// Until the calls of the next layer use all of it.
#![allow(dead_code)]

mod address;
mod agent;
mod channel;
mod message;
mod poller;
mod rendezvous;

use sluice_sys::errno::Errno;

/// The error number of a failed operation of the standard library.
fn errno_of(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}
