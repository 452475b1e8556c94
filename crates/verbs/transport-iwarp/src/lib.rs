//! Verbs between hosts by RDMA over TCP (iWARP): wherever TCP goes, and any iWARP endpoint is a
//! peer, Linux's siw and adapters among them.
//!
//! From the bottom up; what stands in a line names what stands above it only:
//!
//! | module | its part |
//! |---|---|
//! | [`socket`] | the kernel's TCP, and waiting for it |
//! | [`trace`] | what a trace is told |
//! | [`staged`] | bytes that came and were not taken |
//! | [`pins`]; [`requests`], [`memory`] | what is sent and where what comes goes, in the program's memory |
//! | [`outgoing`] | frames on their way to the kernel |
//! | [`stream`] | a connection: a socket under the protocol's state machine |
//! | [`gather`] | which requests wait for others |
//! | [`completions`], [`part`] | the queue pairs of a completion queue; one, and its stream, in one thread's hands at a time |
//! | [`manager`] | connections before a queue pair has them |
//! | [`node`] | a process's share, and its threads |
//! | [`device`] | what the engine of verbs has of all that |
//!
//! The protocol itself is [`sluice_protocol::iwarp`]'s.
//!
//! *Bytes.* Payload of more than 2 KiB is sent from where it is, and goes to where it belongs, by
//! the calls of the kernel; smaller messages are gathered into one call. With CRCs everything is
//! copied once (decision 0029).
//!
//! *Who may do what.* A socket is worked on by one thread at a time: a program that polls, or posts,
//! or the transport's own. Whoever posts does not wait for it, and tells the engine nothing.

mod completions;
mod device;
mod gather;
mod manager;
mod memory;
mod node;
mod outgoing;
mod part;
mod pins;
mod requests;
mod socket;
mod staged;
mod stream;
mod trace;

pub use device::IwarpTransport;
