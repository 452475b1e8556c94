//! Fabric lanes: connections whose ends are on two hosts, with `sluiced` as the other process of the
//! lane on each (docs/decisions/0016).
//!
//! A [`Lane`](lane::Lane) has two halves. [`up`] reads what the local program writes and places it in
//! the ring of the far end, by RDMA writes. [`down`] is the writer of the local program's incoming
//! direction, whose bytes the far daemon has placed there. The [`engine::Engine`] has all lanes of a
//! host, looks at those that may have something, and decides when there is nothing to poll for;
//! [`ab_test`] says whether polling pays.
//!
//! What moves the bytes is behind [`wire::Wire`]. Nothing here makes a system call, takes a lock or
//! copies payload.

pub mod ab_test;
pub mod down;
pub mod engine;
pub mod halves;
pub mod lane;
pub mod message;
pub mod outgoing;
pub mod oversubscribed;
pub mod up;
pub mod watched;
pub mod wire;

/// The far daemon broke the rules: its link is to be closed, and with it the lanes on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "the other host's sluiced {}", self.0)
    }
}

impl core::error::Error for Violation {}
