//! RDMA over TCP (iWARP) as a state machine: MPA, DDP and RDMAP (RFC 5044, 6581, 5041, 5040), with
//! the atomics and immediate data of RFC 7306. As elsewhere in this crate there is no I/O, no
//! clock, no thread and no randomness in it.
//!
//! | | what |
//! |---|---|
//! | [`request`], [`arrived`], [`accept`], [`reject`], [`established`] | agreeing on a connection, for both roles |
//! | [`Connection`] | one end from then on |
//! | [`Memory`] | what the driver implements |
//! | [`Frame`] | what it writes |
//!
//! # How a driver uses it
//!
//! TCP carries bytes in order and tells when it cannot: so there are no acknowledgements, no
//! repetition and no congestion control here. All calls for one connection come from one thread at
//! a time.
//!
//! | something happens | call |
//! |---|---|
//! | bytes of the stream are in a buffer | [`Connection::receive`], which says how many it took; the others stay in front of what comes next |
//! | bytes were read to where [`Connection::expected`] said | [`Connection::placed`] |
//! | the program posted a request | [`Connection::post`] |
//! | there is room to write | [`Connection::transmit`], until there is enough for a `writev` |
//! | what there was is written | [`Connection::sent`], which keepalives count from |
//! | what was written needs its memory no more | [`Connection::released`] |
//! | a receive was posted while [`Connection::is_stalled`] | [`Connection::receive`] again |
//! | the deadline has come | [`Connection::expire`] |
//! | the peer closed its direction; the connection broke | [`Connection::peer_closed`]; [`Connection::lost`] |
//! | after each of these | [`Connection::completion`] until it gives nothing, [`Connection::stream`], [`Connection::deadline`] |
//!
//! *A driver over kernel sockets* has a buffer of a few KiB for heads and small messages. It reads
//! with `readv` into what [`Connection::expected`] names and then that buffer, tells
//! [`Connection::placed`] of the former, and gives the latter to [`Connection::receive`]. It writes
//! head, gathered payload and trailer of several frames with `writev`, keeps the rest of a frame
//! that was cut, and calls [`Connection::released`] with [`Frame::end`] of those that went whole,
//! since the kernel has copied them. *A driver over its own TCP* calls that when their bytes are
//! acknowledged, and repeats them from the program's memory until then.
//!
//! # What is decided here
//!
//! - **Placement and CRC.** Where CRCs are on, a frame is looked at when all of it is there and its
//!   CRC is right, and [`Connection::expected`] names no place: damaged bytes are never placed, and
//!   nobody can change bytes between placing and summing (a program that polls on memory may clear
//!   it at once). Where they are off, TCP's checksum is what there is, and payload goes to its place
//!   as it comes. It is *placed* then and not *delivered*: the message counts when its last frame
//!   has come whole (RFC 5041 §5.4).
//! - **A segment is checked by its head.** Key, rights and bounds of all that it will place, before
//!   its first byte.
//! - **Messages are not interleaved**: one is sent wholly before another begins. Own requests and
//!   responses to READs take turns. What comes may be interleaved as RFC 5041 allows: WRITEs with
//!   anything, SENDs and responses only in their own order.
//! - **A SEND without a receive waits** ([`Config::receive_wait`]): the stream is not read further,
//!   and TCP holds the sender back. This is what retries are elsewhere, and programs rely on it.
//!   RFC 5041 has the stream given up; so it is when the wait is over, or at once if there is none.
//! - **Who is in the way gets a Terminate message** with the RFCs' code and the head at fault, and
//!   then the end of the stream; nothing that comes later is looked at.
//! - **READs go to no key.** The tag that a response names is a number of the request's, in no
//!   table of regions: so a READ may have several pieces of memory, and a peer can write them by a
//!   response only.
//! - **A SEND or WRITE is done when its bytes are let go of**, which says nothing of the peer (RFC
//!   5040 §5.5). That something is wrong with one may be known only by a Terminate message that
//!   comes later.
//! - **A peer that does not answer is sent a WRITE of nothing** ([`Config::keepalive`]), which no key is
//!   looked at for (RFC 5040 has such a WRITE be legal): there are peers that miss what comes while they are
//!   busy, and see it when more comes. Seven times at most, each after twice as long, until it says something
//!   or the program sends something.
//! - SEND with immediate data is not in RFC 7306. WRITE with it is a WRITE and a message of 8
//!   bytes, of which ours are the first 4.
//!
//! # Bounds
//!
//! A connection holds at most `depth` requests, `ird` responses that it owes, and the frame under
//! way. Nothing else grows. It keeps no byte of the stream.

mod connection;
mod counters;
mod frame;
mod keepalive;
mod memory;
mod receive;
mod send;
mod startup;

pub use connection::{Config, Connection, Failure, Stream};
pub use counters::Counters;
pub use frame::{Frame, Payload, Trailer, terminate};
pub use memory::{Direct, Memory, Place, Refusal};
pub use startup::{
    Arrived, First, Obstacle, Rtr, Settings, Wishes, accept, acceptable, arrived, established,
    reject, request,
};
