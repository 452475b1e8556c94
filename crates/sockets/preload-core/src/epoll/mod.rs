//! Epoll instances that watch tracked connections.
//!
//! A connection on a lane is registered in the kernel's instance edge-triggered for everything,
//! under a tag of ours, and level, edge, one-shot and interest are kept here; the ring's
//! readiness is merged with what the kernel reports under the tag. All other descriptors stay
//! exactly as the program registered them. Sleeping is the kernel's `epoll_wait` on the
//! program's own instance: a sender that finds the instance asleep writes to TCP
//! (docs/decisions/0001).

mod by_ring;
mod granted;
pub(crate) mod instance;
pub(crate) mod item;
pub(crate) mod oneshot;
mod registrations;
pub(crate) mod sleepers;
pub(crate) mod state;
mod unlocked;
mod writers;

pub use crate::waiting::Timeout;
pub use by_ring::{ByRing, ctl_by_ring, leave_instance, leave_registration};
pub use instance::{
    add_descriptor, after_fork, before_fork, close_descriptor, created, leave, release_after_fork,
};
pub use item::Glance;
pub use registrations::{
    bypass, conn_attached, ctl, forget_socket, is_waited_for, watched_from_outside, watchers,
    write_blocked,
};
pub use sleepers::{Sleep, enter_sleep, glance, leave_sleep};
