//! Memory between two verbs processes.
//!
//! Every area has one writer. A process maps what others wrote read-only, and seals its own
//! areas before it hands them out, so a peer can lie about itself and about nothing else:
//!
//! - [`directory`]: a process's keys and queue pairs, for its peers to look up;
//! - [`record`]: the two rings of a link, one for requests and one for responses;
//! - [`hazard`]: which keys an initiator is using at this moment.
//!
//! What goes to memory that a program polls on goes there by [`copy`].

pub mod directory;
pub mod hazard;
pub mod record;

pub use crate::copy;
