//! Unreliable connections, datagrams and extended connections.

use sluice_verbs::{
    AhAttr, Gid, QpInit, QpState, QpType, Sge, SrqAttr, SrqInit, UdDestination, WcOpcode, WcStatus,
    WrOpcode, send_flags, wc_flags,
};

use super::{AREA, HALF, sizes};
use crate::end::{QKEY, until};
use crate::row::{Need, Row};
use crate::side::{Joined, Side};

/// Of the GRH, in front of each datagram.
const HEADER: usize = 40;
/// The number that groups have.
const GROUP_QPN: u32 = 0xff_ffff;

pub const fn unreliable_connections_carry_sends_and_writes() -> Row {
    Row::new(&[Need::Uc], uc_send, uc_receive)
}

fn uc_send(side: &mut Side) {
    let end = side.connected(QpType::Uc, AREA);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        end.memory.fill(0, len, turn as u8 + 1);
        let sge = [end.sge(0, len / 2), end.sge(len / 2, len - len / 2)];
        side.meet();
        end.done(&end.request(WrOpcode::Send, 1, &sge, 0));
        side.meet();
        let mut wr = end.request(WrOpcode::RdmaWriteWithImm, 2, &sge, HALF);
        wr.imm = 9;
        end.done(&wr);
        side.meet();
    }
}

fn uc_receive(side: &mut Side) {
    let end = side.connected(QpType::Uc, AREA);
    for (turn, len) in sizes(side.mtu()).into_iter().enumerate() {
        end.post_recv(7, 0, HALF);
        side.meet();
        assert_eq!(end.good().byte_len, len as u32);
        end.memory.check(0, len, turn as u8 + 1);
        end.post_recv(8, 0, 0);
        side.meet();
        let wc = end.good();
        assert_eq!((wc.wr_id, wc.imm), (8, 9));
        assert_eq!(wc.opcode, WcOpcode::RecvRdmaWithImm as u32);
        end.memory.check(HALF, len, turn as u8 + 1);
        side.meet();
    }
}

pub const fn unreliable_connections_drop_silently() -> Row {
    Row::new(&[Need::Uc], uc_lose, uc_miss)
}

fn uc_lose(side: &mut Side) {
    let end = side.connected(QpType::Uc, 1 << 20);
    end.memory.fill(0, 100_000, 3);
    let sge = [end.sge(0, 100_000)];
    // Nobody takes this one; an unreliable sender does not care.
    end.done(&end.request(WrOpcode::Send, 2, &sge, 0));
    side.meet();
    side.meet();
    end.done(&end.request(WrOpcode::Send, 3, &sge, 0));
    let mut bad = end.request(WrOpcode::RdmaWrite, 4, &sge, 0);
    bad.rkey ^= 0x100;
    assert_eq!(end.run(&bad).status, 0, "no acknowledgement, no refusal");
    side.meet();
    end.memory.fill(0, 64, 4);
    let mut last = end.request(WrOpcode::RdmaWriteWithImm, 5, &sge[..], 0);
    last.imm = 1;
    end.done(&last);
    side.meet();
}

fn uc_miss(side: &mut Side) {
    let end = side.connected(QpType::Uc, 1 << 20);
    side.meet();
    for id in 7..11 {
        end.post_recv(id, 500_000, 100_000);
    }
    side.meet();
    let wc = end.good();
    assert_eq!((wc.wr_id, wc.byte_len), (7, 100_000));
    end.memory.check(500_000, 100_000, 3);
    assert_eq!(end.memory.bytes(0, 64), [0; 64], "the bad one wrote");
    side.meet();
    // The first message may have come late, and then the second one comes here.
    until("the message behind the bad one", || {
        end.good().opcode == WcOpcode::RecvRdmaWithImm as u32
    });
    assert_eq!(end.qp.state(), QpState::Rts);
    end.memory.check(0, 64, 4);
    side.meet();
}

pub const fn datagrams_arrive_or_are_dropped() -> Row {
    Row::new(&[Need::Ud], ud_send, ud_receive)
}

fn lengths(side: &Side) -> [usize; 6] {
    [0, 1, 2, 3, 64, side.mtu()]
}

fn ud_send(side: &mut Side) {
    let end = side.connected(QpType::Ud, 65_536);
    for len in lengths(side) {
        end.memory.fill(0, len, len as u8);
        let sge = [end.sge(0, len / 2), end.sge(len / 2, len - len / 2)];
        let mut wr = end.datagram(1, &sge);
        side.meet();
        // The wrong key, and a queue pair that nobody has: dropped.
        let right = wr.ud.unwrap();
        wr.ud = Some(UdDestination {
            qkey: QKEY + 1,
            ..right
        });
        end.done(&wr);
        wr.ud = Some(UdDestination {
            qpn: right.qpn ^ 0x80,
            ..right
        });
        end.done(&wr);
        wr.ud = Some(right);
        wr.opcode = WrOpcode::SendWithImm;
        wr.imm = len as u32;
        let wc = end.run(&wr);
        assert_eq!((wc.status, wc.opcode), (0, WcOpcode::Send as u32));
        side.meet();
    }
    // One byte too much is no datagram.
    let sge = [end.sge(0, side.mtu() + 1)];
    assert!(end.qp.post_send(&end.datagram(1, &sge)).is_err());
}

fn ud_receive(side: &mut Side) {
    let end = side.connected(QpType::Ud, 65_536);
    for len in lengths(side) {
        end.post_recv(5, 0, HEADER + side.mtu());
        side.meet();
        let wc = end.good();
        assert_eq!((wc.imm, wc.byte_len), (len as u32, (HEADER + len) as u32));
        assert_eq!(wc.wc_flags, wc_flags::GRH | wc_flags::WITH_IMM);
        assert_eq!((wc.src_qp, wc.qp_num), (end.peer.qpn, end.qp.num()));
        end.memory.check(HEADER, len, len as u8);
        side.meet();
        assert!(end.cq.poll_one().is_none(), "nothing else came");
    }
}

pub const fn a_group_gets_each_datagram_while_it_is_joined() -> Row {
    Row::new(&[Need::Ud], group_send, group_receive)
}

/// Of this link only (RFC 4291).
const GROUP: Gid = Gid([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x77]);

fn group_send(side: &mut Side) {
    let end = side.connected(QpType::Ud, 4096);
    let path: AhAttr = side.path(&GROUP);
    let sge = [end.sge(0, 64)];
    end.memory.fill(0, 64, 5);
    for _ in 0..2 {
        side.meet();
        let mut wr = end.datagram(1, &sge);
        wr.ud = Some(UdDestination {
            ah: &path,
            qpn: GROUP_QPN,
            qkey: QKEY,
        });
        end.done(&wr);
        // On the same way, behind it.
        end.done(&end.datagram(2, &sge));
        side.meet();
    }
}

fn group_receive(side: &mut Side) {
    let known = side.connected(QpType::Ud, 4096);
    let other = side.end(QpType::Ud, 4096, None);
    other.to_ready();
    let ends: [&Joined; 2] = [&known, &other];
    for end in ends {
        for id in 0..4 {
            end.post_recv(id, 0, 200);
        }
        end.qp.attach_multicast(&GROUP, 0).unwrap();
    }
    side.meet();
    for end in ends {
        assert_eq!(end.good().byte_len, 104);
        end.memory.check(HEADER, 64, 5);
    }
    known.good();
    side.meet();
    for end in ends {
        end.qp.detach_multicast(&GROUP, 0).unwrap();
    }
    side.meet();
    // The one that goes to it by its number comes.
    known.good();
    side.meet();
    for end in ends {
        assert!(end.cq.poll_one().is_none(), "left the group");
    }
}

pub const fn extended_connections_name_a_shared_receive_queue() -> Row {
    Row::new(&[Need::Xrc], xrc_send, xrc_receive)
}

const XRC_BYTES: usize = 50_000;
/// Where one that has them is written and added to: what a WRITE leaves first is 0.
const WORD: usize = 300_000;
const MORE: [WrOpcode; 3] = [
    WrOpcode::SendWithImm,
    WrOpcode::RdmaWriteWithImm,
    WrOpcode::AtomicFetchAndAdd,
];

fn xrc_send(side: &mut Side) {
    let mut end = side.end(QpType::XrcSend, 1 << 20, None);
    side.introduce(&mut end);
    let srqn = side.swap([0; 4])[0] as u32;
    end.to_ready();
    side.meet();
    end.memory.fill(0, XRC_BYTES, 1);
    let sge = [end.sge(0, XRC_BYTES)];
    for opcode in [WrOpcode::RdmaWrite, WrOpcode::Send, WrOpcode::RdmaRead] {
        let mut wr = end.request(opcode, 1, &sge, 0);
        wr.xrc_srqn = srqn;
        end.done(&wr);
    }
    end.memory.check(0, XRC_BYTES, 1);
    side.meet();
    let opcodes = side.caps().opcodes_of(QpType::XrcSend);
    let word = [end.sge(0, 8)];
    end.memory.set_word(0, 0);
    for opcode in MORE.into_iter().filter(|opcode| opcodes.contains(*opcode)) {
        let mut wr = end.request(opcode, 3, &word, WORD);
        (wr.xrc_srqn, wr.imm, wr.compare_add) = (srqn, 77, 5);
        end.done(&wr);
    }
    side.meet();
    // A queue that the peer does not have.
    let mut wr = end.request(WrOpcode::Send, 2, &sge, 0);
    wr.flags = send_flags::SIGNALED;
    wr.xrc_srqn = srqn ^ 0x100;
    let refused = [WcStatus::RemInvReqErr, WcStatus::RemOpErr].map(|status| status as u32);
    let wc = end.run(&wr);
    assert!(refused.contains(&wc.status), "{wc:?}");
    side.meet();
}

fn xrc_receive(side: &mut Side) {
    let cq = side.cq(None);
    let domain = side.context.open_xrcd(None, true, false).unwrap();
    let target = side.context.create_xrc_recv(&QpInit {
        xrcd: Some(domain.clone()),
        ..QpInit::new(QpType::XrcRecv)
    });
    let mut end = side.around(target.unwrap(), 1 << 20, &cq);
    let srq = side
        .pd
        .create_srq(&SrqInit {
            attr: SrqAttr {
                max_wr: 16,
                max_sge: 1,
                srq_limit: 0,
            },
            xrcd: Some(domain),
            cq: Some(cq),
            cookie: 0,
        })
        .unwrap();
    side.introduce(&mut end);
    side.swap([u64::from(srq.num()), 0, 0, 0]);
    let place: Sge = end.sge(200_000, XRC_BYTES);
    srq.post_recv(4, &[place]).unwrap();
    srq.post_recv(5, &[place]).unwrap();
    srq.post_recv(6, &[place]).unwrap();
    end.to_ready();
    side.meet();
    let wc = end.good();
    assert_eq!((wc.wr_id, wc.byte_len), (4, XRC_BYTES as u32));
    assert_eq!(wc.qp_num, end.qp.num());
    end.memory.check(200_000, XRC_BYTES, 1);
    side.meet();
    end.memory.check(0, XRC_BYTES, 1);
    let opcodes = side.caps().opcodes_of(QpType::XrcSend);
    for opcode in MORE.into_iter().filter(|opcode| opcodes.contains(*opcode)) {
        if opcode == WrOpcode::AtomicFetchAndAdd {
            continue;
        }
        let wc = end.good();
        assert_eq!(
            (wc.imm, wc.byte_len, wc.wc_flags),
            (77, 8, wc_flags::WITH_IMM)
        );
    }
    side.meet();
    if opcodes.contains(WrOpcode::AtomicFetchAndAdd) {
        assert_eq!(end.memory.word(WORD), 5);
    }
    side.meet();
}
