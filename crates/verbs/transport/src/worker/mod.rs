//! The thread that makes progress when nobody polls, and sleeps when there is nothing to do.
//!
//! | file | its part |
//! |---|---|
//! | [`control`] | what others tell the thread: to end, and that somebody waits without polling |
//! | [`policy`] | when it sleeps, when it only watches, when it looks on: pure, the time is an argument |
//! | [`rounds`] | the thread's loop, and what it asks of a transport: [`Work`] |
//! | [`announced`], [`sleeper`] | what a thread that waits for descriptors says of its sleep, and by what it is woken |
//!
//! While a polling program does the work the thread stays out of the way: it *watches*, for which
//! nobody rings, and looks again after a millisecond. With no traffic, or where it does the work, it
//! *sleeps* until it is woken.

mod announced;
mod control;
mod policy;
mod rounds;
mod sleeper;

pub use announced::Announced;
pub use control::Control;
pub use policy::{Manner, WATCH_NS};
pub use rounds::{Look, Woken, Work, start};
pub use sleeper::{KICK, PORT, Sleeper, WATCHED, parse, token};
