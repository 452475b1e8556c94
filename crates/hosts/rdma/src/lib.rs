//! Links between two daemons: reliable connections of RDMA, by the C interface of whichever
//! libibverbs is there.
//!
//! A [`Library`] is our own or the system's, loaded at run time. A [`Node`] is one device of it,
//! opened once, with one completion queue and one shared receive queue for all links; where the device
//! has no such queue, each link has receive buffers of its own. A link is a queue pair: it takes [`Node::write`] from registered memory into the peer's, with a number that
//! the peer is told ([`Event::Arrived`]), and [`Node::send`], a message of at most
//! [`MESSAGE_BYTES_MAX`] bytes ([`Event::Message`]). Both arrive in the order in which they were
//! given, and every one of them ends as [`Event::Done`] or [`Event::Failed`], once, in order.
//!
//! ```no_run
//! # use sluice_rdma::*;
//! # fn exchange(_: [u8; ENDPOINT_BYTES]) -> [u8; ENDPOINT_BYTES] { unimplemented!() }
//! # fn main() -> Result<(), Error> {
//! let choice: DeviceChoice = "roce".parse()?;
//! // SAFETY: this is the beginning of main, and no other thread runs.
//! unsafe { choice.set_environment() };
//! let library = Library::load(&choice, "/usr/lib/sluice/verbs/libibverbs.so.1".as_ref())?;
//! let local = "10.0.0.1".parse().unwrap();
//! let mut node = Node::open(&library, &choice, local, Limits::default())?;
//! let (link, endpoint) = node.create_link()?;
//! // The two endpoints cross by a connection of another kind.
//! let peer = Endpoint::decode(&exchange(endpoint.encode()))?;
//! node.connect(link, &peer)?;
//! node.send(link, b"hello", 1).unwrap();
//! loop {
//!     while node.poll(64, &mut |event| println!("{event:?}")) > 0 {}
//!     node.arm()?;
//!     if node.poll(64, &mut |event| println!("{event:?}")) == 0 {
//!         // Sleep on node.fd() until it is readable.
//!     }
//! }
//! # }
//! ```
//!
//! # Bounds
//!
//! Posting and polling neither allocate nor lock nor enter the kernel (what the library does is its
//! own affair). All memory is taken when the node is opened and when a link is made; [`Limits`]
//! says how much. A node is for one thread at a time.
//!
//! # What a peer can do
//!
//! It can break its own link, and use up receive buffers until they are posted again, which delays
//! other links, where they share the buffers, and loses nothing. It can write into regions whose key it was told, and nowhere
//! else: queue pairs permit writing and no reading.

mod choice;
mod completion;
mod device;
mod endpoint;
mod error;
mod event;
mod library;
mod limits;
mod link;
mod node;
mod pages;
mod poll;
mod post;
mod queue;
mod receive;
mod region;
mod request;
mod status;
#[cfg(test)]
mod tests;

pub use choice::{DEVICES_VARIABLE, DeviceChoice};
pub use endpoint::{ENDPOINT_BYTES, Endpoint};
pub use error::{Error, PostError};
pub use event::{DeviceEvents, Event};
pub use library::Library;
pub use limits::{Limits, MESSAGE_BYTES_MAX};
pub use link::LinkId;
pub use node::{Node, QueuePosition};
pub use region::{Access, Region, Remote, Slice};
pub use request::WriteRequest;
pub use status::Status;
