//! Unreliable datagrams: sent once, dropped without a word where there is nobody to take them.

mod receive;
mod send;

pub use receive::take;
pub use send::{post, release_held};

use crate::link::CHUNK_BYTES;

/// Largest datagram, bytes: the largest MTU.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// The number by which a multicast message is addressed.
const MULTICAST_QPN: u32 = 0xFF_FFFF;

const _: () = assert!(DATAGRAM_BYTES_MAX <= CHUNK_BYTES);
