//! The C structures of `infiniband/verbs.h`, field for field, and the numbers of its enumerations:
//! for the library that answers programs (`sluice-verbs-calls`), and for the program that asks
//! whichever library there is (`sluice-rdma`).
//!
//! Names are those of the header, so that a reader finds them in the man pages. An enumeration is
//! a plain integer here: what a program passes is checked before it means anything. Every
//! structure says its layout to the test in `layout_tests.rs`, which compares all of them with the
//! distribution's header.
#![forbid(unsafe_code)]
#![allow(non_camel_case_types, non_snake_case)]

#[macro_use]
mod macros;

mod address;
mod constants;
mod context;
mod device;
#[cfg(test)]
mod layout_tests;
mod memory;
mod queues;
mod send_queue;
mod work;

pub use address::*;
pub use constants::*;
pub use context::*;
pub use device::*;
pub use memory::*;
pub use queues::*;
pub use send_queue::*;
pub use work::*;

/// Where a field is: structure, its size, and the name and offset of each field.
#[cfg(test)]
pub(crate) struct Layout {
    name: &'static str,
    size: usize,
    fields: &'static [(&'static str, usize)],
}
