//! Tests of the operations: cases that run against a kernel in memory and, the same, against the real one.

mod blocking;
mod calls;
mod descs;
mod fake;
mod machine;
mod messages;
mod pair;
mod streams;
mod transfers;
mod trap;
mod waits;

/// Epoll instances have places of the process, and one test needs the same place twice.
pub(crate) static PLACES: std::sync::Mutex<()> = std::sync::Mutex::new(());
/// A link that ends has what is announced announced again, whosever test that is.
pub(crate) static ANNOUNCED: std::sync::Mutex<()> = std::sync::Mutex::new(());
