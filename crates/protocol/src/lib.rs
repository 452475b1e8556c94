//! The RoCEv2 transport protocol.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod assembly;
pub mod congestion;
mod counters;
mod memory;
pub mod rc;
mod request;
mod scheduler;
mod segment;
mod sequence;
mod time;
mod transmit;
pub mod uc;
pub mod ud;

pub use counters::Counters;
pub use memory::{Access, Atomic, Memory, Received, Refusal, ScatterError, TakeError};
pub use request::{Completion, Datagram, Operation, PostError, Remote, Request, Status};
pub use scheduler::Scheduler;
pub use sequence::{IN_FLIGHT_MAX, Sequence};
pub use time::Instant;
pub use transmit::{Payload, Transmit};
