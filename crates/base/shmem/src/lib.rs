//! All memory that another process can write: rings, ready lines, parking tables and the chunks that
//! hold them.
//!
//! The rules of this crate (docs/decisions/0002): nothing in such memory is read twice to
//! decide one thing; own positions, capacity and geometry live in private memory; a number
//! that the peer wrote is checked before it is used, in release builds too; and the only
//! references into it are to atomics. What a peer can get by writing garbage is
//! [`Broken`]: the end of the one connection it shares.

pub mod chunk;
pub mod copy;
pub mod direction;
pub mod geometry;
pub mod handover;
pub mod parking;
pub use sluice_sys::mapping;
pub mod ready;
mod ring;
mod sync;
pub mod verbs;

#[cfg(loom)]
mod loom_area;
#[cfg(all(test, loom))]
mod loom_models;

pub use ring::{Consumer, NEWS_DELAY, Producer};

/// The peer wrote something impossible into shared memory. The connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl core::fmt::Display for Broken {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the peer wrote an impossible number into shared memory")
    }
}

impl core::error::Error for Broken {}
