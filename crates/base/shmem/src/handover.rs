//! Handover: one direction of a connection is one stream of bytes, cut into segments that alternate
//! between TCP and the ring, and these are the rules by which its two ends agree on every cut.
//!
//! There is no I/O here. What the kernel knows (how many bytes went by TCP) and who is in it come
//! as arguments, and what is to be done comes back. [`Sender`] and [`Receiver`] are the private
//! halves of a direction; what they say to each other lies in its shared lines
//! ([`Direction`](crate::direction::Direction)). The models under loom run these two types, and
//! `exhaustive.rs` tries all orders of their steps.
//!
//! The sender's states:
//!
//! | state | write: reader awake, ring drained | write: else | leaves (pin, sendfile, close, overflow) |
//! |---|---|---|---|
//! | TCP | publishes mark and mode, then bytes → ring | TCP | TCP |
//! | ring | bytes → ring | publishes mode → TCP | publishes mode → TCP |
//!
//! What the receiver finds next ([`Next`]), with the bytes that it has read from TCP so far:
//!
//! | ring has bytes | mode | bytes before the mark unread | next |
//! |---|---|---|---|
//! | yes | any | yes | [`Next::Owed`]: TCP, up to the mark |
//! | yes | any | no | [`Next::Ring`] |
//! | no | ring | yes | [`Next::Owed`] |
//! | no | ring | no | [`Next::Empty`] |
//! | no | TCP | | [`Next::Tcp`]: TCP without a bound, once it is announced |
//!
//! A read without a bound takes whatever the kernel delivers, so no byte of the ring may come
//! before any of it. It is announced like a sleep ([`Receiver::announce`]): while the announcement
//! stands no sender returns to the ring, and one that was about to has been seen.

mod receiver;
mod sender;

#[cfg(all(test, not(loom)))]
mod exhaustive;

pub use receiver::{Look, Next, Receiver};
pub use sender::{Begun, Route, Sender};
