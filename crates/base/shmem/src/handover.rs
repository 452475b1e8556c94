//! Handover: one direction of a connection is one stream of bytes, cut into segments that alternate
//! between TCP and the ring, and these are the rules by which its two ends agree on every cut.
//!
//! There is no I/O here. What the kernel knows (how many bytes went by TCP) and who is in it come
//! as arguments, and what is to be done comes back. [`Sender`] and [`Receiver`] are the private
//! halves of a direction; what they say to each other lies in its shared lines
//! ([`Direction`](crate::direction::Direction)). The models under loom run these two types, and
//! `exhaustive.rs` takes them through all states that a few bytes can reach; docs/handover.md is what it sees.
//!
//! The sender's states:
//!
//! | state | write: reader awake, ring drained | write: else | leaves (pin, sendfile, close, overflow) |
//! |---|---|---|---|
//! | TCP | publishes switch offset and mode, then bytes → ring | TCP | TCP |
//! | ring | bytes → ring | publishes mode → TCP | publishes mode → TCP |
//!
//! What the receiver finds next ([`Next`]), with the bytes that it has read from TCP so far:
//!
//! | ring has bytes | mode | bytes before the switch offset unread | next |
//! |---|---|---|---|
//! | yes | any | yes | [`Next::Owed`]: TCP, up to the switch offset |
//! | yes | any | no | [`Next::Ring`] |
//! | no | ring | yes | [`Next::Owed`] |
//! | no | ring | no | [`Next::Empty`] |
//! | no | TCP | | [`Next::Tcp`]: TCP without a bound, once it is announced |
//!
//! A read without a bound takes whatever the kernel delivers, so no byte of the ring may come
//! before any of it. It is announced like a sleep ([`Receiver::announce`]): while the announcement
//! stands no sender returns to the ring, and one that was about to has been seen.

mod receiver;
mod relay;
mod sender;

#[cfg(all(test, not(loom)))]
mod exhaustive;
#[cfg(all(test, not(loom)))]
mod relayed;
#[cfg(all(test, not(loom)))]
mod search;

pub use receiver::{Back, Look, Next, Receiver};
pub use relay::{Gate, Grant, RelayReader, RelayWriter, Seen};
pub use sender::{Begun, Route, Sender, Way};

use crate::direction::{Direction, Words};

/// Announces the sleep of a thread that waits for many directions, and looks behind it at the bits that
/// their senders set, instead of asking [`Receiver::may_read_free`] of each.
pub fn announce_watcher(into: &Direction) {
    into.announce_sleep();
}

/// Takes that back.
pub fn withdraw_watcher(into: &Direction) {
    into.withdraw_sleep();
}
