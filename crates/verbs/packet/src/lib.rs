//! RoCEv2 packets in and out of this host.
//!
//! A [`Port`] carries transport packets, from the base transport header to the pad. Everything
//! around them is its own: Ethernet, IP and UDP headers, and the ICRC, which it computes for what
//! leaves and checks on what comes. Which port a packet leaves by, and where to, its owner says
//! with a [`Path`], made from what the kernel says of routes and neighbours ([`Routes`]).
//!
//! [`UdpPort`] is the port that works everywhere: ordinary sockets, without privileges.
//!
//! This code runs inside other people's programs: it has no threads, and enters the kernel
//! directly ([`sluice_sys::raw`]), never through C functions that may be somebody's hooks.

#![warn(missing_docs)]

mod leaving;
mod path;
mod port;
pub mod routes;
pub mod udp;

pub use leaving::{Kept, Leaving, SendError};
pub use path::{Ethernet, Path};
pub use port::{Facts, Port, PortCounters, Received};
pub use routes::Routes;
pub use udp::UdpPort;
