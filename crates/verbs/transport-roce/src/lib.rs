//! Verbs between hosts, by RoCEv2 on whatever carries IP packets: any RoCEv2 endpoint is a peer,
//! Linux's rxe and hardware among them.
//!
//! From the bottom up; a module names others of its own line and of those above it only, never in a
//! circle:
//!
//! | file | its part |
//! |---|---|
//! | [`locks`], [`baton`] | the order of locks; one whose holder sees what was left for him |
//! | [`counters`], [`notice`], [`lane_set`], [`engines`] | what is counted, what the user is told, and what he wants |
//! | [`ports`], [`impair`], [`tap`], [`timer`], [`share`] | what is put around ports: faults on purpose, a trace; queues that are fewer than lanes |
//! | [`path`], [`network`], [`directions`], [`demand`] | from a GID to the way that packets take |
//! | [`requests`], [`bridge`], [`bulk`], [`machine`] | a queue pair's memory, the requester's and the responder's, and what the protocol does with it |
//! | [`completions`], [`part`], [`queue_pairs`] | which lanes complete where; a queue pair for who works on it; all of them |
//! | [`names`], [`sleeper`], [`forward`], [`gsi`], [`multicast`] | several processes behind one address; queue pair 1; groups |
//! | [`brought`], [`burst`], [`gate`], [`common`] | what is left for a lane; what all lanes have in common |
//! | [`held`], [`intake`], [`worker`], [`lane`], [`lanes`] | packets in and out, by one thread at a time; what lanes leave to one another |
//! | [`node`], [`membership`], [`report`], [`leave`] | a process's share; groups joined and left; what has happened; the end |
//! | [`engine`] | the threads for when nobody polls |
//! | [`qp`], [`cq`], [`port1`], [`transport`] | what the engine of verbs has of all that |
//!
//! The protocol itself is [`sluice_protocol`]'s, packets come and go by [`sluice_packet::Port`]s.

mod baton;
mod bridge;
mod brought;
mod bulk;
mod burst;
mod common;
mod completions;
mod counters;
mod cq;
mod demand;
mod directions;
mod engine;
mod engines;
mod forward;
mod gate;
mod gsi;
mod held;
mod impair;
mod intake;
mod lane;
mod lane_set;
mod lanes;
mod leave;
mod locks;
mod machine;
mod membership;
mod multicast;
mod names;
mod network;
mod node;
mod notice;
mod part;
mod path;
mod port1;
mod ports;
mod qp;
mod queue_pairs;
mod report;
mod requests;
mod share;
mod sleeper;
mod tap;
mod timer;
mod transport;
mod worker;

pub use crate::engines::{ENGINES_VARIABLE, Engines, NotEngines};
pub use crate::lane_set::LANES_MAX;
pub use crate::transport::{Dropped, OpenError, RoceTransport};
