//! sluiced: matches the two ends of a connection and gives them memory to share.
//!
//! It is on no data path. Programs announce their connections over a Unix socket ([`server`]),
//! [`matching`] finds the two ends of one connection, [`lanes`] hands out the memory between
//! their processes, and [`status`] tells people about it.

pub mod capture;
pub mod config;
pub mod counters;
mod disposal;
mod end_table;
pub mod fabric;
pub mod gateway;
pub mod lanes;
pub mod listener;
pub mod log_file;
pub mod log_share;
pub mod matching;
pub mod memory_limits;
pub mod metrics;
mod namespace;
pub mod notify;
pub mod options;
mod owners;
pub mod peer;
pub mod privileges;
mod program;
pub mod receiver;
pub mod server;
pub mod shares;
mod socket;
mod status;
mod words;

pub use namespace::Prover;
