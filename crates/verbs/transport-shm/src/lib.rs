//! Verbs between the processes of one host, through shared memory and without a daemon.
//!
//! From what knows nothing of the others to what knows them all:
//!
//! | file | its part |
//! |---|---|
//! | [`arena`] | memory of the program that peers can map |
//! | [`os`], [`watched`] | system calls, what wakes the thread |
//! | [`hello`], [`wire`] | what is said over sockets and in rings |
//! | [`foreign`], [`area`], [`link`] | what two processes share |
//! | [`tap`], [`kept`] | what is in rings, for a trace; and what comes late, on purpose |
//! | [`route`], [`part`], [`multicast`], [`node`] | a process's routes, queue pairs, groups; all that it has |
//! | [`connect`], [`accept`] | how two processes come to a link |
//! | [`reach`] | one-sided operations without the responder |
//! | [`requester`], [`hold`], [`datagram`], [`responder`] | the protocol |
//! | [`ended`], [`progress`], [`engine`] | the end of a peer; the work on all links; the thread |
//! | [`qp`], [`cq`], [`transport`] | what the verbs engine calls |

mod accept;
mod area;
pub mod arena;
mod connect;
mod cq;
mod datagram;
mod ended;
mod engine;
mod foreign;
mod hello;
mod hold;
mod kept;
mod link;
mod multicast;
mod node;
mod os;
mod part;
mod progress;
mod qp;
mod reach;
mod requester;
mod responder;
mod route;
mod tap;
mod transport;
mod watched;
mod wire;

pub use transport::ShmTransport;
