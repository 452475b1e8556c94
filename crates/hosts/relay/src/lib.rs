//! Copies bytes between the two sockets of each of very many pairs, in one thread.
//!
//! An [`EventLoop`] is an epoll instance with the loop around it. Whoever has it adds pairs of connected
//! sockets ([`EventLoop::pair`]), has it watch descriptors of their own beside them ([`EventLoop::watch`]:
//! listeners, connections that are being made), and calls [`EventLoop::turn`] again and again.
//!
//! | what | how |
//! |---|---|
//! | backpressure | what one end does not take is not read from the other: the writer finds its socket full |
//! | memory | a pair has no buffer; one is allocated for what a socket took only in part, and freed when it has taken the rest |
//! | end of stream | passed on behind the last byte, for each direction |
//! | reset | passed on at once, behind what the other socket takes without waiting |
//! | death | both ends are reset: an end of the stream would say that it is complete |
//! | urgent data | becomes data, in its place |
//! | idle | no system call, no timer of this process; the kernel asks now and then whether both peers are there |
//! | a peer that is gone without a word | the other end is reset |
//!
//! All system calls on sockets go through the C library, unlike elsewhere in Sluice: a process that
//! copies is itself to be run under the preload library, which stands in for these functions, so that
//! the connections between two such processes get lanes like those of any program.

#![warn(missing_docs)]

mod event_loop;
pub mod host;
mod options;
mod pair;
mod poll;
pub mod socket;

pub use event_loop::{Counters, Event, EventLoop};
pub use options::Options;
pub use pair::{End, PairId};
pub use poll::{Interest, Readiness};
