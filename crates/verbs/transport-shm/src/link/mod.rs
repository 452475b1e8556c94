//! A link: the memory between a requester's process and a responder's.
//!
//! Each process opens one to each peer it sends requests to; the answers come back on the same
//! link. So what two processes do in both directions is two links, and neither waits for the
//! other. A link ends with its socket, which the kernel closes when either process ends.
//!
//! ```text
//! request area (requester writes)          response area (responder writes)
//! 0     hazard words                       0     position in the request ring
//! 4096  position in the response ring      4096  response ring
//! 8192  request ring
//! ```
//!
//! The position in the request ring acknowledges: whatever lies before it was carried out,
//! unless the response ring has said otherwise before the position moved.

mod exported;
mod incoming;
mod layout;
mod outgoing;
mod peer;
mod position;

pub use incoming::{Incoming, IncomingState};
pub use layout::{CHUNK_BYTES, request_area, requests_max, response_area};
pub use outgoing::{Outgoing, RequestWriter, Sent};
pub use peer::Peer;

/// How often one call looks at a link that does not become empty.
pub const LOOKS: usize = 4;
