//! TCP as a state machine: no I/O, threads, clock or randomness inside.
//!
//! A [`Connection`] is told what arrived ([`Connection::receive`]) and what time it is
//! ([`Connection::timed_out`]), and asked what is to leave ([`Connection::transmit`]). It never sees
//! a payload: the application's bytes lie in buffers of the caller, and are named by their offset in
//! the stream of their direction. What arrives is answered with where its bytes go, what leaves
//! names the bytes to send.
//!
//! | module | what | source |
//! |---|---|---|
//! | [`Connection`] | states, windows, acknowledgements | RFC 9293, 1122, 5961, 7323, 3168 |
//! | `scoreboard` | what is in flight, lost or arrived | RFC 2018, 8985 |
//! | `reassembly` | what arrived out of order | RFC 2018 |
//! | `rtt` | retransmission timeout | RFC 6298 |
//! | `congestion` | CUBIC and DCTCP | RFC 9438, 8257, 5681, 6928 |
//! | [`initial`] | first sequence numbers | RFC 6528 |
//!
//! The memory of a connection is bounded: [`SEGMENTS_MAX`] segments in flight (twice that when the
//! path takes smaller ones in the middle), and [`RANGES_MAX`] ranges out of order. The caller keeps
//! [`Config::receive_buffer`] bytes to receive and whatever it announces to send.
//!
//! Not here: checksums, ports and addresses (whose packet it is), how many connections there may
//! be and what half-open ones cost. Urgent data is data (RFC 6093 §6).
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod congestion;
mod connection;
mod reassembly;
mod rtt;
mod scoreboard;
mod segment;
mod sequence;
mod time;

pub use congestion::Algorithm;
pub use connection::{Config, Connection, Counters, End, State};
pub use reassembly::RANGES_MAX;
pub use scoreboard::SEGMENTS_MAX;
pub use segment::{Place, Received, Segment, Transmit, refuse};
pub use sequence::initial;
pub use time::{Instant, MILLISECOND, SECOND};
