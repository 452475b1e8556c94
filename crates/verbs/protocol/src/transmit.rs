//! What leaves: headers, and where the payload is.

use sluice_wire::{Ecn, Headers, Qpn};

use crate::request::Remote;

/// A packet to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// All headers; the pad count is set when they are emitted.
    pub headers: Headers,
    /// Its bytes.
    pub payload: Payload,
    /// For the IP header: data takes part in congestion notification, replies do not.
    pub ecn: Ecn,
}

/// Where the payload of a packet is, so that the driver can gather it without a copy between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    None,
    /// A piece of a request's own memory. If it cannot be had, drop the packet and call
    /// `fail_request`.
    Request {
        /// [`crate::Request::seq`].
        seq: u64,
        /// Bytes from its beginning.
        offset: u32,
        /// Bytes, at most the path MTU.
        length: u32,
    },
    /// A piece of memory that the peer reads. Key and bounds are to be checked now. If it cannot
    /// be had, drop the packet and call `refuse_read`.
    Region {
        /// Where, with the key by which the peer asked.
        remote: Remote,
        /// Bytes, at most the path MTU.
        length: u32,
        /// As for [`crate::Memory::select`].
        srq: Option<Qpn>,
    },
    /// Which packets are kept, of so many bytes: [`crate::rc::Connection::write_report`].
    Report {
        /// Bytes.
        length: u32,
    },
    /// The reserved bytes of a congestion notification, [`sluice_wire::cnp::PAYLOAD`].
    Notification,
}

impl Payload {
    /// Bytes.
    pub const fn length(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Request { length, .. }
            | Self::Region { length, .. }
            | Self::Report { length } => *length,
            Self::Notification => sluice_wire::cnp::PAYLOAD.len() as u32,
        }
    }
}

impl Transmit {
    /// A packet with data, which routers may mark.
    pub(crate) const fn data(headers: Headers, payload: Payload) -> Self {
        Self {
            headers,
            payload,
            ecn: Ecn::Capable0,
        }
    }

    /// A reply without data.
    pub(crate) const fn reply(headers: Headers) -> Self {
        Self {
            headers,
            payload: Payload::None,
            ecn: Ecn::NotCapable,
        }
    }

    /// Bytes on an Ethernet link with IPv4: from preamble to gap, the least that it costs.
    pub const fn link_bytes(&self) -> u32 {
        // 8 preamble, 14 Ethernet, 20 IPv4, 8 UDP, 4 ICRC, 4 FCS, 12 gap.
        const AROUND: u32 = 70;
        AROUND + self.headers.bytes() as u32 + self.payload.length().next_multiple_of(4)
    }
}
