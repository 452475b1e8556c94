//! What leaves next: for which queue pair, by which of two ways, with what beside it, and when the
//! kernel is told.
//!
//! A shard has several ways out. By the first, [`SOCKETS`], packets go in batches that the kernel takes
//! together; by the others, past the kernel, each is there sooner and costs more (decision 0012). The
//! shard's holder does what a [`Planner`] says and tells it what has happened. There is no I/O in here, no
//! clock and no lock: time is an argument, and so is whatever a port or a queue pair knows.
//!
//! # The rules
//!
//! 1. **An acknowledgement is never later than the answer that shows it.** A program that polls until its
//!    request is complete looks for the answer then, perhaps in memory only; one that sleeps on a channel
//!    for both counts on the completion being first. So an acknowledgement that is held leaves with what
//!    the program posts ([`Answers`]), by the way that this takes ([`Ways`]), and beside the packet that ends the
//!    first message behind it, or in front of that ([`Planner::beside`]). That it is not sooner either,
//!    where that can be, is why it waits for the end. The kernel is told of the sockets last.
//! 2. **Packets of a flow overtake each other nowhere.** A reliable connection takes what comes out of
//!    order for lost. Requests change their way only when all before them are answered, and answers,
//!    which nobody answers, stay where bulk was for longer than that is under way ([`Ways`]).
//! 3. **By one way a flow's packets leave in the order in which they were made.** What is kept back is
//!    one acknowledgement for each way; the next acknowledgement, and a packet of another flow, has it
//!    leave in front.
//! 4. **Nothing waits for ever.** A held acknowledgement has a deadline ([`Answers::until`]), what is
//!    gathered leaves with the next round of whoever comes, and [`Planner::due`] says when somebody must
//!    come.
//! 5. **Room is never exceeded.** A queue pair is asked for a packet only where the ways by which that
//!    may leave have room for it and for what is kept back there ([`Planner::may_put`]).
//! 6. **Everybody has a turn.** Turns are dealt by bytes ([`Scheduler`]), and a round ends after so many,
//!    so that what comes in is looked at in between.
//!
//! `tests/rules` holds them against two hosts whose programs do anything, and knows for each what breaks it.
//! Outside of them is a way past the kernel that refuses packets while the sockets take theirs, and data that the
//! peer reads: it leaves in turn with requests, and the acknowledgement of what came meanwhile is behind it; and a
//! little of it may go where bulk was just before answers do so no longer.
//!
//! What the protocol itself decides stays with it: that replies without data go in front of everything else
//! of their connection, what is sent again, and the pace.
//!
//! | module | decides |
//! |---|---|
//! | `turns` | whose turn it is |
//! | `answers` | which acknowledgements wait for the program's answer, and until when |
//! | `posts` | which posts are gathered |
//! | `way` | by which of the two ways a connection's packets go |
//! | `round` | all of these together: one round of a shard |
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

mod answers;
pub mod posts;
mod round;
mod turns;
mod way;

pub use answers::Answers;
pub use round::{Beside, End, Owes, Planner, Poster, SOCKETS, Step};
pub use turns::Scheduler;
pub use way::{Begins, Seen, Ways};
