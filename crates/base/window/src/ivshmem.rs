//! The protocol by which virtual machines and programs get one memory and each other's doorbells
//! (QEMU, docs/specs/ivshmem-spec, "Client-Server protocol").
//!
//! Every message is a little-endian 64-bit number, with at most one descriptor. The server says
//! its version, the client's own number, −1 with the memory, and then for each peer its number
//! with an eventfd, once for each vector; the client's own come last. Later it says the same of
//! each peer that comes, and the number alone of one that goes. Clients say nothing.

mod client;
mod server;

pub use client::{Change, Client, ClientError, Greeted, Greeting, Presence};
pub use server::{Server, ServerError};

/// The version of the protocol.
const VERSION: i64 = 0;
/// What the memory comes with.
const MEMORY: i64 = -1;
/// Peers of one server at most.
pub const PEERS_MAX: usize = 64;
/// Doorbells of one peer at most.
pub const VECTORS_MAX: u32 = 32;

#[cfg(test)]
mod tests;
