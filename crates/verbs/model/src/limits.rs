//! How much of everything a device has.

/// Requests that one queue can hold.
pub const QUEUE_MAX: u32 = 1 << 15;
/// Completions that one CQ can hold.
pub const CQES_MAX: u32 = 1 << 22;
pub const CQS_MAX: u32 = 1 << 16;
pub const QPS_MAX: i32 = 1 << 16;
/// Multicast groups that one QP can be in.
pub const GROUPS_PER_QP: usize = 64;
/// Bytes of one region: what an address can be.
pub const REGION_MAX: u64 = 1 << 47;
/// Pieces of memory that a work request can have at most.
pub const MAX_SGE: usize = 32;
