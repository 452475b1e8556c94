//! The RoCEv2 transport protocol: requester and responder of reliable connections (extended ones
//! too), unreliable connections and datagrams, congestion control and pacing (IBTA, volume 1, chapter 9; annex
//! A17), as state machines. There is no I/O in here, no clock, no thread and no randomness: time
//! is an argument, and the same calls give the same answers.
//!
//! "IBTA" is the InfiniBand Architecture Specification, volume 1, release 1.4.
//!
//! | module | what |
//! |---|---|
//! | [`rc`] | reliable connections: [`rc::Connection`] |
//! | [`uc`], [`ud`] | unreliable connections and datagrams |
//! | [`iwarp`] | another protocol beside RoCEv2's: RDMA over TCP |
//! | [`congestion`] | notification, DCQCN rates, pacing; part of the connections |
//! | [`Memory`] | what the driver implements |
//! | [`Sequence`] | packet sequence numbers |
//!
//! # How a driver uses it
//!
//! One state machine is one queue pair from RTR on. All calls for it come from one thread at a
//! time.
//!
//! | something happens | call |
//! |---|---|
//! | a packet came, with a right ICRC, from the peer's address, for this queue pair | `receive` |
//! | the program posted a request | `post` |
//! | the deadline has come | `expire` |
//! | after each of these | `transmit` until it gives nothing, `completion` until it gives nothing, then `deadline` |
//! | `transmit` was about memory that is gone | `fail_request`, `refuse_read` |
//!
//! *Payloads are never held.* What comes in goes from the packet's bytes to its place by a call
//! of [`Memory`] from inside `receive`. What goes out is named by [`Transmit::payload`] (a range
//! of a request's own bytes, or of a region by the key that the peer gave), for the driver to
//! gather into the frame. It must be gathered before the next call: later it may be somebody
//! else's.
//!
//! *Memory is asked by a call and not by an effect in a queue*, because its answer is part of the
//! protocol: whether there is a receive makes the difference between ACK and RNR, and whether the
//! key is good that between ACK and NAK. So a packet's fate is known when `receive` returns, and
//! there is no state in which one waits for an answer.
//!
//! *Answers are put together by the driver's own rhythm.* A responder does not queue one
//! acknowledgement per request, it remembers that there is something to acknowledge; whoever gives
//! it ten packets and then calls `transmit` gets one acknowledgement for all. There is no delay
//! timer.
//!
//! ```
//! use sluice_protocol::rc::{Config, Connection};
//! use sluice_protocol::*;
//! use sluice_wire::extended::RnrTimer;
//! use sluice_wire::{Ecn, Mtu, Packet, Psn, Qpn};
//!
//! # struct Memories;
//! # impl Memory for Memories {
//! #     fn place(&mut self, _: u64, _: u32, _: &[u8]) -> Result<(), Refusal> { Ok(()) }
//! #     fn check(&mut self, _: Access, _: Remote, _: u32) -> Result<(), Refusal> { Ok(()) }
//! #     fn write(&mut self, _: Remote, bytes: &[u8]) -> Result<(), Refusal> {
//! #         assert_eq!(bytes, b"hello");
//! #         Ok(())
//! #     }
//! #     fn atomic(&mut self, _: Remote, _: Atomic) -> Result<u64, Refusal> { Ok(0) }
//! #     fn take_receive(&mut self) -> Result<(), TakeError> { Ok(()) }
//! #     fn scatter(&mut self, _: u32, _: &[u8]) -> Result<(), ScatterError> { Ok(()) }
//! #     fn invalidate(&mut self, _: u32) -> Result<(), Refusal> { Ok(()) }
//! #     fn complete_receive(&mut self, _: &Received) {}
//! # }
//! let config = Config {
//!     destination: Qpn::new(18),
//!     pkey: 0xffff,
//!     mtu: Mtu::Bytes1024,
//!     send_psn: Psn::new(100),
//!     receive_psn: Psn::new(100),
//!     depth: 16,
//!     window: 256,
//!     max_rd_atomic: 4,
//!     max_dest_rd_atomic: 4,
//!     timeout: 14,
//!     retry_cnt: 7,
//!     rnr_retry: 7,
//!     min_rnr_timer: RnrTimer::from_code(12),
//!     extended: false,
//!     early: false,
//!     single_writes: false,
//!     rate: None,
//! };
//! let (mut a, mut b) = (Connection::new(&config), Connection::new(&config));
//! let now = Instant::from_nanos(0);
//! a.post(Request {
//!     seq: 1,
//!     operation: Operation::Write(Remote { address: 0x1000, rkey: 7 }),
//!     length: 5,
//!     solicited: false,
//!     srq: None,
//! })?;
//!
//! // What a driver does with sockets: gather, emit, send; receive, parse, give.
//! fn carry(packet: &Transmit, bytes: &[u8], to: &mut Connection, memory: &mut Memories) {
//!     let payload = match packet.payload {
//!         Payload::Request { offset, length, .. } => &bytes[offset as usize..][..length as usize],
//!         _ => &[],
//!     };
//!     let mut buffer = [0; 2048];
//!     let used = packet.headers.emit(payload, &mut buffer).unwrap();
//!     let parsed = Packet::parse(&buffer[..used]).unwrap();
//!     to.receive(Instant::from_nanos(0), &parsed, Ecn::Capable0, memory);
//! }
//! while let Some(packet) = a.transmit(now) {
//!     carry(&packet, b"hello", &mut b, &mut Memories);
//! }
//! while let Some(packet) = b.transmit(now) {
//!     carry(&packet, b"", &mut a, &mut Memories);
//! }
//! assert_eq!(a.completion().map(|done| done.status), Some(Status::Success));
//! # Ok::<(), PostError>(())
//! ```
//!
//! # What is decided here
//!
//! - **Go-back-N**, as the wire demands: a NAK for a missing packet sends all from there again, of a
//!   window that shrinks with losses. READ data that comes out of order is kept all the same, since
//!   only the requester's own memory is concerned, and only what is missing is asked for again. A
//!   responder keeps requests that come early ([`rc::Config::early`]) and carries them out in their
//!   turn. Between two ends that do so and know it of each other only what is missing is sent again
//!   (`rc/losses.rs`, decision 0013).
//! - **Probes.** A NAK that is lost, or a packet that is lost a second time, would cost a local
//!   ACK timeout, which programs set to tens of milliseconds and more. So the oldest packet alone
//!   is sent again when no answer has come for a few round trips, with doubling delays. A
//!   responder sees a duplicate (IBTA 9.7.5.1.2) and answers. Probes neither restart the timeout
//!   nor count as retries: a silent peer is given up when the program's attributes say, after
//!   `retry_cnt` + 1 timeouts of 4.096 µs · 2^`timeout`, of which the third is twice and each later
//!   one four times as long (IBTA 9.7.6.1.3 allows four): a peer whose thread gets no processor for
//!   half a second is not gone.
//! - **Each gap is reported once** by a responder and acted on once by a requester, so that
//!   neither a flood of packets nor copies of a NAK cause a flood of repetitions.
//! - **Duplicates** are answered from what is remembered: SENDs and WRITEs are acknowledged
//!   again, READs read again, atomics answered with the old value. A duplicate that differs from
//!   the request it claims to be is dropped.
//! - **A refusal is repeated** to a requester that goes on, which may not have heard of it.
//! - **No end-to-end credits** (IBTA 9.7.7.2): acknowledgements say that there are none to give,
//!   as with a shared receive queue, and receivers that are not ready say RNR.
//! - **Fences are the engine's**, as is the order of local operations: requests leave in the order
//!   of posting.
//! - What is **stale, damaged in sense or hostile** is counted ([`Counters`]) and dropped.
//!
//! # Bounds
//!
//! A connection holds at most `depth` requests and completions, `max_dest_rd_atomic` resources and
//! as many replies, a bit set, and a megabyte of requests that came early. Nothing else grows. Loops
//! are over these, over a window of packets, over 2048 early responses or 1024 early
//! packets, or over the constants named in [`congestion`].
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;

#[cfg(test)]
extern crate std;

mod assembly;
pub mod congestion;
mod counters;
pub mod iwarp;
mod memory;
pub mod rc;
mod request;
mod segment;
mod sequence;
mod time;
mod transmit;
pub mod uc;
pub mod ud;

pub use counters::Counters;
pub use memory::{Access, Atomic, Memory, Received, Refusal, ScatterError, TakeError};
pub use request::{Completion, Datagram, Operation, PostError, Remote, Request, Status};
pub use sequence::{IN_FLIGHT_MAX, Sequence};
pub use time::Instant;
pub use transmit::{Payload, Transmit};
