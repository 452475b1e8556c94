//! What the engine has of a device: the transport, queue pairs, completion queues, queue pair 1.

mod cq;
mod port1;
mod qp;
mod transport;

pub use transport::{Dropped, OpenError, RoceTransport};
