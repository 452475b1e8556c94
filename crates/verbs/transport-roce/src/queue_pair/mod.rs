//! A queue pair: its memory, what the protocol does with it, and who may look at it when.

pub mod bridge;
pub mod bulk;
pub mod machine;
pub mod part;
pub mod requests;
pub mod table;
