//! RoCEv2 packets past the kernel's stack: AF_XDP sockets, and the XDP program that steers to them.
//!
//! [`Interface::open`] attaches the program (`bpf/steer.bpf.c`) to an interface and binds a socket
//! to each of its receive queues. It gives a [`Steering`], which says whose packets are ours, and
//! an [`XdpPort`] for each queue. What the program does not know as ours goes to the kernel as
//! before, and so does everything on a queue without a socket: a UDP socket gets it there.
//!
//! | what | who holds it | when it goes |
//! |---|---|---|
//! | program, maps | [`Steering`], by descriptors | dropped, or the process ends, however it ends |
//! | socket, rings, packet memory | [`XdpPort`] | dropped, or the process ends |
//!
//! Nothing is pinned, and no other program is replaced. A child of fork gets copies of the
//! descriptors, which would keep all this alive; [`Steering::descriptors`] and
//! [`XdpPort::all_descriptors`] say which to close there. The memory is not in the child at all:
//! a child must not use a port.
//!
//! Needed: CAP_NET_ADMIN (attach), CAP_NET_RAW (sockets), CAP_BPF (maps), CAP_PERFMON (the program
//! computes with pointers), Linux 5.11; for packets of more than about 3.8 KB (a path MTU of 4096)
//! Linux 6.6.

#![warn(missing_docs)]

mod attachment;
mod error;
mod flows;
mod interface;
mod left;
mod mode;
mod open;
mod order;
mod port;
mod program;
mod ring;
mod socket;
mod steering;
mod umem;

pub use error::OpenError;
pub use interface::Interface;
pub use left::Left;
pub use mode::Mode;
pub use open::Options;
pub use port::{Statistics, XdpPort};
pub use program::ADDRESSES_MAX;
pub use steering::{SteerError, Steering, SteeringCounters};
