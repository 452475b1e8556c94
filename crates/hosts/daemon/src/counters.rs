//! What happened since the start, for `sluice status`.

use serde::Serialize;

/// Every decision of sluiced that a person could ask about has a number here.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counters {
    /// Connections to the control socket, and those of them that were turned away.
    pub clients_accepted: u64,
    pub clients_refused: u64,
    /// Programs that introduced themselves.
    pub programs: u64,
    /// Ends announced, and those whose descriptor was missing or no established TCP socket.
    pub announcements: u64,
    pub announcements_rejected: u64,
    /// The same socket announced by a second process while the first still has it.
    pub announcements_duplicate: u64,
    /// Stale ends that gave way to a new socket with the same addresses.
    pub ends_replaced: u64,
    /// Ends whose sockets were gone when their other ends came.
    pub ends_gone: u64,
    /// Ends that waited longest and were forgotten because too many wait.
    pub ends_forgotten: u64,
    pub ends_released: u64,
    /// Ends that asked whether a peer may still come, and were told no.
    pub ends_settled: u64,
    /// Connections that got a lane, and those of them across network namespaces.
    pub matches: u64,
    pub matches_across_namespaces: u64,
    /// Connections that got a lane to another host.
    pub matches_across_hosts: u64,
    /// Pairs of ends with mirrored addresses that are certainly not one connection.
    pub mirrors_refuted: u64,
    /// Such pairs about which nothing certain could be found out.
    pub mirrors_unproven: u64,
    /// Matches that stayed on TCP: no lane left, none of a user's share left, no memory or descriptor, a
    /// control group near its limit of memory, or a program that does not read its messages.
    pub lanes_refused_full: u64,
    pub lanes_refused_share: u64,
    pub lanes_refused_memory: u64,
    pub lanes_refused_limit: u64,
    pub lanes_refused_unread: u64,
    /// Messages that are none.
    pub messages_malformed: u64,
}
