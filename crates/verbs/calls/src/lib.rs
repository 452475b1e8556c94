//! The calls of libibverbs. Each is a thin shell over the engine: it finds the engine's object
//! behind the program's pointer, converts, and answers the way the manual page says: a positive
//! error number, or -1 or NULL and `errno`.
//!
//! # Safety
//!
//! The functions are called from C. What every one of them relies on is the contract of the
//! header: a pointer to an object is one that this library gave and that was not destroyed, a
//! pointer to a structure points at one that is valid for the call, and an out parameter has room.
//! "The header's contract" in the comments below means this. A function does not unwind: Rust
//! aborts at an `extern "C"` boundary.
//!
//! `crates/verbs/ibverbs` exports them under the names and versions that programs look for.
#![allow(unsafe_code)]
// All of them have the section above.
#![allow(clippy::missing_safety_doc)]

pub mod ah;
mod batch;
pub mod channel;
pub mod context;
pub mod cq;
pub mod cq_ex;
pub mod device;
pub mod device_memory;
mod devices;
pub mod errno;
pub mod events;
pub mod fork;
pub mod gid;
pub mod kernel_types;
pub mod memory;
mod named;
pub mod names;
mod objects;
pub mod open;
pub mod post;
pub mod qp;
pub mod qp_ex;
mod queue_pair;
pub mod rates;
mod report;
pub mod srq;
mod stats;
pub mod sysfs;

use sluice_verbs_abi as ffi;
