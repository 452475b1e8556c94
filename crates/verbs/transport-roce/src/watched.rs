//! What wakes a shard's thread besides what wakes every transport's ([`sluice_transport::worker`]).

/// Kinds of what wakes a thread ([`sluice_transport::worker::token`]).
pub const NETWORK: u64 = 3;
pub const LISTENER: u64 = 4;
pub const NEIGHBOUR: u64 = 5;

/// Kinds of ports.
pub const UDP: u64 = 0;
pub const XDP: u64 = 1;
