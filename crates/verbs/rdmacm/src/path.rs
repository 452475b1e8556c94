//! What is said of every path to a peer.

/// Hop limit of packets between hosts; nothing here decrements it.
pub const HOP_LIMIT: u8 = 64;
/// IBTA 4.096 µs · 2^n; the kernel's for RoCE.
pub const PACKET_LIFE_TIME: u8 = 16;
