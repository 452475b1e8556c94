//! What the engine and a transport say to each other, as far as it is plain data.

use crate::opcode::{Opcodes, type_bit};
use crate::types::{
    Gid, LinkLayer, NodeType, QpAttr, QpCap, QpState, QpType, TransportType, WcStatus,
};

/// What programs are told that a device is (`ibv_device`, `ibv_port_attr`): they choose by it how
/// they make connections and what they expect of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub node_type: NodeType,
    pub transport_type: TransportType,
    pub link_layer: LinkLayer,
}

impl Identity {
    /// A channel adapter on Ethernet: queue pairs are known to each other by GID and number.
    pub const ROCE: Identity = Identity {
        node_type: NodeType::Ca,
        transport_type: TransportType::Ib,
        link_layer: LinkLayer::Ethernet,
    };
    /// An adapter of RDMA over TCP (RFC 5040): a queue pair is an end of a TCP connection.
    pub const IWARP: Identity = Identity {
        node_type: NodeType::Rnic,
        transport_type: TransportType::Iwarp,
        link_layer: LinkLayer::Ethernet,
    };

    /// Whether a SEND or WRITE is complete when its bytes are on their way (RFC 5040 §5.5), and not
    /// when the peer has them. What is wrong with it is known later then, by the end of the
    /// connection.
    pub const fn completes_when_sent(&self) -> bool {
        matches!(self.transport_type, TransportType::Iwarp)
    }

    /// Whether its GIDs are addresses as RoCEv2 writes them (IBTA annex A17).
    pub const fn has_roce_gids(&self) -> bool {
        matches!(self.transport_type, TransportType::Ib)
            && matches!(self.link_layer, LinkLayer::Ethernet)
    }
}

/// What a device on this transport can do. Engine limits apply on top.
#[derive(Clone, Copy, Debug)]
pub struct TransportCaps {
    pub identity: Identity,
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
    /// What it can carry out on the services that it has and that have it. For atomics
    /// `atomic_cap` must say so too, and what concerns this side only is the engine's.
    pub opcodes: Opcodes,
    /// RC and XRC: a message that finds no receive is tried again, as `rnr_retry` says
    /// (`IBV_DEVICE_RC_RNR_NAK_GEN`). Otherwise it ends the connection.
    pub rnr_retry: bool,
    /// Peers are on a network, where an address finds them; without it a number alone does.
    pub by_address: bool,
}

impl TransportCaps {
    /// All that the engine has, among queue pairs that a number alone finds.
    pub const EVERYTHING: TransportCaps = TransportCaps {
        identity: Identity::ROCE,
        max_msg_sz: 1 << 31,
        mtu: 5,
        max_inline: 256,
        max_rd_atomic: 128,
        atomic_cap: 2,
        uc: true,
        ud: true,
        xrc: true,
        opcodes: Opcodes::ALL,
        rnr_retry: true,
        by_address: false,
    };

    /// Whether queue pairs of this type exist.
    pub const fn has(&self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::Rc => true,
            QpType::Uc => self.uc,
            QpType::Ud => self.ud,
            QpType::XrcSend | QpType::XrcRecv => self.xrc,
        }
    }

    /// What can be posted to a queue pair of this type; nothing where the type does not exist.
    pub fn opcodes_of(&self, qp_type: QpType) -> Opcodes {
        if !self.has(qp_type) {
            return Opcodes::NONE;
        }
        Opcodes::ALL.filter(|facts| {
            let can = self.opcodes.contains(facts.opcode) && (!facts.atomic || self.atomic_cap > 0);
            facts.types & type_bit(qp_type) != 0 && (facts.local || can)
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WrOpcode;

    const LITTLE: TransportCaps = TransportCaps {
        identity: Identity::IWARP,
        atomic_cap: 0,
        uc: false,
        ud: false,
        xrc: false,
        ..TransportCaps::EVERYTHING
    };

    fn names(caps: &TransportCaps, qp_type: QpType) -> Vec<WrOpcode> {
        let set = caps.opcodes_of(qp_type);
        let all = WrOpcode::ALL.iter().copied();
        all.filter(|opcode| set.contains(*opcode)).collect()
    }

    #[test]
    fn a_service_that_does_not_exist_has_no_opcodes() {
        for qp_type in [QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv] {
            assert_eq!(LITTLE.opcodes_of(qp_type), Opcodes::NONE, "{qp_type:?}");
        }
    }

    #[test]
    fn atomics_need_both_and_what_is_local_needs_nothing() {
        use WrOpcode::{BindMw, LocalInv, RdmaRead, RdmaWrite, Send};
        let opcodes = names(&LITTLE, QpType::Rc);
        assert!(!opcodes.contains(&WrOpcode::AtomicFetchAndAdd));
        assert_eq!(opcodes.len(), WrOpcode::ALL.len() - 2);
        let few = TransportCaps {
            opcodes: Opcodes::of(&[Send, RdmaWrite, RdmaRead]),
            atomic_cap: 1,
            uc: true,
            ..LITTLE
        };
        assert_eq!(
            names(&few, QpType::Rc),
            [RdmaWrite, Send, RdmaRead, LocalInv, BindMw]
        );
        assert_eq!(
            names(&few, QpType::Uc),
            [RdmaWrite, Send, LocalInv, BindMw],
            "no READ on an unreliable connection"
        );
    }
}
