//! What transports of verbs have in common, beside the engine that they serve.
//!
//! From the bottom up; what stands in a line names those above it only:
//!
//! | module | its part |
//! |---|---|
//! | [`sync`], [`pieces`], [`request`], [`inbound`], [`notice`] | atomics and mutexes; parts of the program's memory; requests, and what peers do to memory, in a protocol's words; what the user is told |
//! | [`timers`], [`polls`], [`counting`] | what is due without a peer's asking; polls in vain; counters |
//! | [`fault`] | faults on purpose: which, and what they do to packets and messages |
//! | [`tap`] | what a trace is told of requests and answers |
//! | [`worker`] | the thread that works when nobody polls and sleeps when there is nothing to do |
//!
//! A transport with packets of its own has its ports record these
//! ([`sluice_trace::Recorder::record_packet`]) and suffer faults ([`fault::Impair`]); one without has
//! [`tap::Tap`] and [`fault::Messages`].
#![warn(missing_docs)]

pub mod counting;
pub mod fault;
pub mod inbound;
#[cfg(all(test, loom))]
mod loom_models;
pub mod notice;
pub mod pieces;
pub mod polls;
pub mod request;
mod sync;
pub mod tap;
pub mod timers;
pub mod worker;
