//! The words of the verbs engine: opcodes and what each does, states and the ways between them,
//! attributes, completions, errors, keys and addresses as the InfiniBand Architecture (chapters 9
//! to 11) and `infiniband/verbs.h` have them.
//!
//! Nothing here has a state, a lock, a reference count or a thread; whatever has is `sluice-verbs`,
//! and it hands these types on under its own name.

#![forbid(unsafe_code)]

pub mod attributes;
pub mod error;
pub mod events;
pub mod gids;
pub mod keys;
pub mod limits;
pub mod opcode;
pub mod refusal;
pub mod report;
pub mod responder;
pub mod states;
pub mod transport;
pub mod types;
