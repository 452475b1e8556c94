//! What a device says of itself holds.

use sluice_verbs::opcode::TABLE;
use sluice_verbs::{Error, QpInit, QpType, SendWr, WrOpcode, send_flags};

use super::AREA;
use crate::end::init;
use crate::row::Row;
use crate::side::{Joined, Side};

const TYPES: [QpType; 4] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend];

pub const fn what_a_device_does_not_claim_it_refuses() -> Row {
    Row::new(&[], refuse, refuse)
}

fn refuse(side: &mut Side) {
    let caps = side.caps();
    let cq = side.cq(None);
    for kind in TYPES.into_iter().filter(|kind| !caps.has(*kind)) {
        let refused = side.pd.create_qp(&init(kind, &cq)).err();
        assert_eq!(refused, Some(Error::NotSupported), "{kind:?}");
    }
    if !caps.xrc {
        let domain = side.context.open_xrcd(None, true, false).err();
        assert_eq!(domain, Some(Error::NotSupported));
        let target = side.context.create_xrc_recv(&QpInit::new(QpType::XrcRecv));
        assert_eq!(target.err(), Some(Error::NotSupported));
    }
    for kind in TYPES.into_iter().filter(|kind| caps.has(*kind)) {
        let end = side.connected(kind, 64);
        let opcodes = caps.opcodes_of(kind);
        for facts in TABLE.iter().filter(|facts| !opcodes.contains(facts.opcode)) {
            let sge = [end.sge(0, 8)];
            let wr = SendWr {
                flags: send_flags::SIGNALED,
                ..of(&end, facts.opcode, &sge)
            };
            assert_eq!(
                end.qp.post_send(&wr),
                Err(Error::BadOpcode),
                "{kind:?} {}",
                facts.name
            );
            assert!(end.cq.poll_one().is_none());
        }
        side.meet();
    }
}

/// A request that only its opcode can make wrong.
fn of<'a>(end: &'a Joined, opcode: WrOpcode, sges: &'a [sluice_verbs::Sge]) -> SendWr<'a> {
    SendWr {
        opcode,
        ..end.message(1, sges)
    }
}

pub const fn a_device_says_what_its_transport_is() -> Row {
    Row::new(&[], say, say)
}

/// `ibv_device_cap_flags`.
const RC_RNR_NAK_GEN: u32 = 1 << 12;
const XRC: u32 = 1 << 20;
/// `ibv_port_cap_flags`.
const IP_BASED_GIDS: u32 = 1 << 26;
/// `IBV_GID_TYPE_ROCE_V2`.
const ROCE_V2: u32 = 2;

fn say(side: &mut Side) {
    let caps = side.caps();
    let (attr, port) = (side.device.attr(), side.device.port_attr(1).unwrap());
    assert_eq!(u32::from(port.link_layer), caps.identity.link_layer as u32);
    assert_eq!(
        (port.active_mtu, port.max_msg_sz),
        (caps.mtu, caps.max_msg_sz)
    );
    assert_eq!(attr.atomic_cap, caps.atomic_cap);
    assert_eq!(attr.max_qp_rd_atom, i32::from(caps.max_rd_atomic));
    let flags = [RC_RNR_NAK_GEN, XRC].map(|flag| attr.device_cap_flags & flag != 0);
    assert_eq!(flags, [caps.rnr_retry, caps.xrc]);
    assert_eq!(attr.max_ah > 0, caps.ud);
    assert_eq!(attr.max_mcast_grp > 0, caps.ud);
    let is_roce = caps.identity.has_roce_gids();
    assert_eq!(port.port_cap_flags & IP_BASED_GIDS != 0, is_roce);
    let first = side.device.gid_table()[0];
    assert_eq!(first.gid_type == ROCE_V2, is_roce, "{first:?}");
    // What it claims is enough for the rows that every device runs.
    assert!(caps.max_msg_sz as usize >= AREA / 2);
    assert!(caps.max_inline >= 64 && caps.max_rd_atomic >= 16);
    let rc = caps.opcodes_of(QpType::Rc);
    for opcode in [WrOpcode::Send, WrOpcode::RdmaWrite, WrOpcode::RdmaRead] {
        assert!(rc.contains(opcode), "{opcode:?}");
    }
}
