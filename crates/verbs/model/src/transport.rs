//! What the engine and a transport say to each other, as far as it is plain data.

use crate::types::{Gid, QpAttr, QpCap, QpState, QpType, WcStatus};

/// What a device on this transport can do. Engine limits apply on top.
#[derive(Clone, Copy, Debug)]
pub struct TransportCaps {
    /// Bytes.
    pub max_msg_sz: u32,
    /// The MTU's code, 1 to 5 for 256 to 4096 bytes; for UD it bounds a message.
    pub mtu: u32,
    /// Bytes of inline data that a QP can ask for.
    pub max_inline: u32,
    /// READs and atomics in flight per QP, as requester and as responder.
    pub max_rd_atomic: u8,
    /// 0 none, 1 among QPs of this device, 2 also against the processor.
    pub atomic_cap: u32,
    /// UC, UD and XRC exist; RC always does.
    pub uc: bool,
    pub ud: bool,
    pub xrc: bool,
    /// Peers are on a network, where an address finds them; without it a number alone does.
    pub by_address: bool,
}

/// What a transport may want to know to make its part of a QP.
#[derive(Clone, Copy, Debug)]
pub struct QpParams {
    pub qp_type: QpType,
    pub cap: QpCap,
    pub pd: u32,
    /// The CQ's number; None for an XRC target.
    pub send_cq: Option<u32>,
    pub recv_cq: Option<u32>,
    pub has_srq: bool,
}

/// A change of a QP's state or attributes that has passed the engine's checks.
#[derive(Clone, Copy, Debug)]
pub struct QpChange<'a> {
    pub from: QpState,
    pub to: QpState,
    /// What the program sets, [`crate::types::qp_mask`].
    pub mask: u32,
    /// All attributes as they will be.
    pub attr: &'a QpAttr,
    /// The queue pair breaks, and the program has called for nothing.
    pub by_itself: bool,
}

/// What became of a request that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is done, well or badly, and the transport is finished with its memory. The engine
    /// completes it in its turn.
    Done(SendDone),
    /// `Qp::complete_send` will say. The engine keeps a copy for `Qp::with_wqe`.
    Pending,
    /// No room now. The engine keeps it and all later ones and offers them again, in order,
    /// after `Qp::resume`. A transport must call that after every `Busy`.
    Busy,
}

/// How a send request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendDone {
    pub status: WcStatus,
    /// Bytes sent, written or read.
    pub byte_len: u32,
    /// Anything that helps to find the reason.
    pub vendor_err: u32,
}

impl SendDone {
    #[inline]
    pub const fn ok(byte_len: u32) -> SendDone {
        SendDone {
            status: WcStatus::Success,
            byte_len,
            vendor_err: 0,
        }
    }

    #[inline]
    pub const fn failed(status: WcStatus) -> SendDone {
        SendDone {
            status,
            byte_len: 0,
            vendor_err: 0,
        }
    }
}

/// Bytes of a management datagram (IBTA 13.4.2).
pub const MAD_BYTES: usize = 256;

/// Between whom a management datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadPath {
    /// This host's address.
    pub source: Gid,
    /// The peer's.
    pub destination: Gid,
    /// The interface, which is the scope of link-local addresses too; 0 when sending to leave
    /// it to the routes.
    pub interface: u32,
}
