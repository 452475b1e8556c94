//! Packet formats of RDMA over converged Ethernet, version 2 (RoCEv2), as bytes and as values.
//!
//! ```text
//! Ethernet [VLAN]  IPv4 or IPv6  UDP 4791  BTH [extended headers]  payload  pad  ICRC
//! ```
//!
//! | module | formats | source |
//! |---|---|---|
//! | [`ethernet`], [`ipv4`], [`ipv6`], [`udp`] | what carries them | IEEE 802.3, 802.1Q; RFC 791, 8200, 768 |
//! | [`tcp`] | segments of TCP and their options | RFC 9293, 7323, 2018 |
//! | [`opcode`] | which headers and how much payload each opcode has | IBTA 9.2, annex A14 |
//! | [`bth`], [`extended`], [`grh`] | transport headers | IBTA 8.3, 9.2, 9.3, annex A14 |
//! | [`packet`] | one transport packet, from BTH to pad | IBTA 9.2 |
//! | [`icrc`] | the invariant checksum | IBTA 7.8.1, annex A17.3 |
//! | [`frame`] | one whole RoCEv2 frame | annex A17.3 |
//! | [`cnp`] | congestion notification packets | annex A17.9.3 |
//! | [`mad`], [`cm`] | management datagrams, connection management | IBTA 13.4, 12.6, annex A11 |
//! | [`capture`] | pcap and pcapng files | the pcap and pcapng drafts |
//! | [`iwarp`] | RDMA over TCP: another family of formats, with errors of its own | RFC 5040, 5041, 5044, 6581, 7306 |
//!
//! "IBTA" is the InfiniBand Architecture Specification, volume 1.
//!
//! There are two levels. A *view* ([`Packet`], [`Frame`], [`mad::Mad`]) is a checked look at
//! bytes that came in: once made, what it gives out cannot fail. A *value* ([`bth::Bth`],
//! [`extended::Reth`], [`cm::Req`]) can only be legal; it is parsed from bytes and emitted to
//! them. Reserved bits are sent as zero and not looked at when received (IBTA 9.2), but for those
//! by which Sluice knows itself ([`bth::Bth::sluice`]). Nothing here
//! panics, allocates or keeps state, whatever the bytes.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

pub mod bth;
mod bytes;
pub mod capture;
pub mod cm;
pub mod cnp;
mod error;
pub mod ethernet;
pub mod extended;
pub mod frame;
pub mod fuzz;
pub mod grh;
pub mod icrc;
pub mod ipv4;
pub mod ipv6;
pub mod iwarp;
pub mod mad;
mod number;
pub mod opcode;
pub mod packet;
pub mod piggyback;
pub mod selective;
pub mod tcp;
pub mod udp;

pub use error::{Error, Result};
pub use frame::{Envelope, Frame, Ip};
pub use number::{Ecn, Mtu, Psn, Qpn};
pub use opcode::Opcode;
pub use packet::{Headers, Packet};
