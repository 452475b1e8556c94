//! Work requests as the engine takes them, and as a transport gets them.

use sluice_verbs_model::types::{AhAttr, Sge, WrOpcode, send_flags};

pub use crate::mw::MwBind;

/// A send request. Build it with [`SendWr::new`] and set what the opcode needs; nothing is
/// copied until the engine must keep it.
#[derive(Clone, Copy)]
pub struct SendWr<'a> {
    pub wr_id: u64,
    pub opcode: WrOpcode,
    /// [`send_flags`].
    pub flags: u32,
    /// Immediate data in network byte order, or the key to invalidate (SEND_WITH_INV,
    /// LOCAL_INV).
    pub imm: u32,
    /// With INLINE these are plain addresses, without keys; a C `ibv_data_buf` has the same
    /// layout on little-endian machines.
    pub sges: &'a [Sge],
    /// RDMA and atomics.
    pub remote_addr: u64,
    pub rkey: u32,
    /// XRC: the number of the SRQ at the peer.
    pub xrc_srqn: u32,
    /// FETCH_AND_ADD: what to add; CMP_AND_SWP: what to compare with. Host byte order.
    pub compare_add: u64,
    pub swap: u64,
    /// UD: where to.
    pub ud: Option<UdDestination<'a>>,
    /// BIND_MW.
    pub bind: Option<MwBind<'a>>,
}

impl<'a> SendWr<'a> {
    /// A request without data and flags.
    pub const fn new(opcode: WrOpcode, wr_id: u64) -> SendWr<'a> {
        SendWr {
            wr_id,
            opcode,
            flags: 0,
            imm: 0,
            sges: &[],
            remote_addr: 0,
            rkey: 0,
            xrc_srqn: 0,
            compare_add: 0,
            swap: 0,
            ud: None,
            bind: None,
        }
    }

    pub const fn is_inline(&self) -> bool {
        self.flags & send_flags::INLINE != 0
    }

    /// Bytes of local memory. Cannot overflow: lengths have 32 bits and there are few.
    pub fn length(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct UdDestination<'a> {
    /// [`crate::Ah::attr`].
    pub ah: &'a AhAttr,
    pub qpn: u32,
    /// With the highest bit set, the sending QP's own key is used (IBTA 10.2.5).
    pub qkey: u32,
}

/// A send request on its way: checked, and with addresses in place of keys.
#[derive(Clone, Copy)]
pub struct Wqe<'a> {
    /// Names the request in [`crate::Qp::complete_send`]; counts up by one per request of the
    /// QP, without gaps, and starts again at 0 when the QP is reset.
    pub seq: u64,
    /// `sges[..].addr` are addresses of this process, pieces of length 0 may be among them,
    /// and inline data has become such pieces too. `ud.qkey` is the key to put on the wire.
    pub wr: SendWr<'a>,
    /// Bytes of `wr.sges`.
    pub length: u64,
}

/// Requests that were lent to a transport one behind the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// The last of them.
    pub seq: u64,
    pub count: u32,
    /// Bytes of the longest.
    pub longest: u64,
}

impl Handed {
    pub(crate) const fn one(seq: u64, length: u64) -> Handed {
        Handed {
            seq,
            count: 1,
            longest: length,
        }
    }

    /// And those behind them.
    pub(crate) fn and(&mut self, later: Handed) {
        if later.count > 0 {
            self.seq = later.seq;
            self.count += later.count;
            self.longest = self.longest.max(later.longest);
        }
    }
}
