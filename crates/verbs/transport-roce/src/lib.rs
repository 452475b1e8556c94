//! Verbs between hosts, by RoCEv2 on whatever carries IP packets: any RoCEv2 endpoint is a peer,
//! Linux's rxe and hardware among them.
//!
//! From the bottom up; what stands in a line names what stands in it and in those above it only,
//! never in a circle:
//!
//! | module | its part |
//! |---|---|
//! | [`locks`], [`baton`], [`keyed`] | the order of locks; one whose holder sees what was left for him; what one opens elsewhere |
//! | [`counters`], [`shard_set`], [`engines`] | what is counted, and what the user wants |
//! | [`ports`] | what is put around ports: faults on purpose, a trace; queues that are fewer than shards |
//! | [`network`] | from a GID to the way that packets take |
//! | [`completions`], [`watched`] | on which shards a queue's completions come; what wakes a shard's thread |
//! | [`queue_pair`] | its memory, the requester's and the responder's; what the protocol does with it; all of them |
//! | [`neighbours`], [`gsi`], [`multicast`] | several processes behind one address; queue pair 1; groups |
//! | [`shard`] | packets in and out, by one thread at a time, and what others leave for it |
//! | [`shards`] | all of them, and what they leave to one another |
//! | [`node`] | a process's share; groups joined and left; what has happened; the end |
//! | [`engine`] | the threads for when nobody polls |
//! | [`device`] | what the engine of verbs has of all that |
//!
//! The protocol itself is [`sluice_protocol`]'s, packets come and go by [`sluice_packet::Port`]s.

mod baton;
mod completions;
mod counters;
mod device;
mod engine;
mod engines;
mod gsi;
mod keyed;
mod locks;
mod multicast;
mod neighbours;
mod network;
mod node;
mod ports;
mod queue_pair;
mod shard;
mod shard_set;
mod shards;
mod watched;

pub use crate::device::{Dropped, OpenError, RoceTransport};
pub use crate::engines::{ENGINES_VARIABLE, Engines, NotEngines};
pub use crate::shard_set::SHARDS_MAX;
