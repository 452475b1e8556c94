//! The process of a gateway (docs/decisions/0020): accepts clients outside, makes a connection to an
//! application node for each, says whom it is for, and copies.
//!
//! It is an ordinary socket program. `sluice gateway` runs it under the preload library, so that its
//! connections to nodes get lanes as those of any program. Where to listen and where to connect to
//! it hears from the daemon of its host; when that is gone it goes on with what it knows.

#![warn(missing_docs)]

mod balance;
mod daemon;
mod local;
mod outward;
mod server;

pub use server::{Error, Options, Server};
